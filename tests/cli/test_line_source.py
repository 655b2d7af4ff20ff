"""Lines come as they are written, whole, whatever pieces they arrive in."""

import asyncio
import os
from pathlib import Path

import pytest

from waterclock.cli import line_source
from waterclock.cli.line_source import lines_of, opened, size_of
from waterclock.model.errors import BadInput


def read_all(number: int) -> list[list[bytes]]:
    """Return the lines of a file, as many at a time as came together."""

    async def read() -> list[list[bytes]]:
        return [lines async for lines in lines_of(number, advance=lambda _: None)]

    return asyncio.run(read())


def test_lines_of_a_file(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b"one\n\ntwo\r\nthree")

    with opened(path) as number:
        assert size_of(number) == 15
        assert read_all(number) == [[b"one", b"", b"two\r"], [b"three"]]


def test_a_line_may_be_longer_than_a_read(tmp_path, monkeypatch):
    monkeypatch.setattr(line_source, "READ_BYTES", 4)
    path = tmp_path / "lines"
    path.write_bytes(b"a long line\nb\n")

    with opened(path) as number:
        assert [line for lines in read_all(number) for line in lines] == [b"a long line", b"b"]


def test_a_line_without_end_is_refused_before_memory_is_full(tmp_path, monkeypatch):
    monkeypatch.setattr(line_source, "READ_BYTES", 4)
    monkeypatch.setattr(line_source, "LINE_BYTES_MAX", 8)
    path = tmp_path / "lines"
    path.write_bytes(b"x" * 20)

    with opened(path) as number, pytest.raises(BadInput, match="more than 8 bytes"):
        read_all(number)


async def test_a_pipe_gives_what_is_there_at_once():
    ours, theirs = os.pipe()

    os.write(theirs, b"one\ntw")
    chunks = lines_of(ours, advance=lambda _: None)
    first = await anext(chunks)
    os.write(theirs, b"o\n")
    os.close(theirs)

    assert [first, *[lines async for lines in chunks]] == [[b"one"], [b"two"]]
    assert size_of(ours) is None
    os.close(ours)


def test_what_is_always_ready_need_not_be_waited_for():
    with opened(Path("/dev/null")) as number:
        assert read_all(number) == []


def test_what_cannot_be_read_is_told(tmp_path):
    with pytest.raises(BadInput, match="No such file"), opened(tmp_path / "no"):
        pass
    with opened(tmp_path) as number, pytest.raises(BadInput, match="Is a directory"):
        read_all(number)
