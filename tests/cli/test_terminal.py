"""Bytes, sizes and times as people read them."""

import io
import sys

import pytest
from rich.console import Console

from tests.cli.terminals import Seen, at_terminal
from waterclock.cli.output.terminal import (
    ask,
    busy,
    bytes_json,
    bytes_text,
    counted,
    due_text,
    next_lines,
    one_line,
    program,
    progress,
    size_text,
    span_text,
    time_text,
)
from waterclock.model.errors import BadInput
from waterclock.model.ids import Millis, uuid7


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"plain", "plain"),
        ("Grüße, 水時計".encode(), "Grüße, 水時計"),
        (b"a\tbcd", r"a\tbcd"),
        (b"\1\0\0\0", "0x01000000"),
        ("水".encode() * 100_000, "水水水水水水水水水…"),
        (("水" * 15).encode() + b"\xff", "水水水水水水水水水…"),
        (b"a\xff" + b"b" * 100_000, "0x61ff626…"),
        (b"0123456789abc", "012345678…"),
        (b"\xff\x00", "0xff00"),
        (b"\xff" * 1_000, "0xfffffff…"),
        (b"", ""),
        ("\u202elive".encode(), r"\u202elive"),
        (b"\n" + b"x" * 99, r"\nxxxxxxx…"),
    ],
)
def test_bytes_are_shown_safely_and_shortened(data, text):
    assert bytes_text(data, chars_max=10) == text


def test_an_id_of_ours_is_shown_as_a_uuid():
    made = uuid7(Millis(1_700_000_000_000), b"\xff" * 10)

    assert bytes_text(made, chars_max=10) == "018bcfe5-6800-7fff-9fff-ffffffffffff"


def test_bytes_become_json_without_loss():
    assert bytes_json(b"text") == "text"
    assert bytes_json(b"\xff") == {"base64": "/w=="}
    assert bytes_json(None) is None


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"), (1_023, "1023 B"), (1_024, "1 KiB"), (1_500, "1.46 KiB"),
        (1_000 * 1_024, "0.977 MiB"), (512 << 20, "512 MiB"), (3 << 40, "3 TiB"),
        (9_999 << 40, "9999 TiB"),
    ],
)  # fmt: skip
def test_sizes_have_three_digits(count, text):
    assert size_text(count) == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"), (999, "999 ms"), (1_000, "1 s"), (61_000, "1 min 1 s"),
        (3_600_000, "1 h"), (90_061_000, "1 d 1 h"),
        (3_601_000, "1 h"), (86_460_000, "1 d"), (5_999, "5 s"),
    ],
)  # fmt: skip
def test_lengths_of_time_have_two_units(ms, text):
    assert span_text(ms) == text
    assert due_text(ms, 0) == f"in {text}"


def test_a_time_past_is_ago():
    assert due_text(1_000, 6_000) == "5 s ago"


def test_a_time_beyond_the_calendar_is_shown_as_a_number():
    assert time_text(1 << 60) == f"{1 << 60} ms"


def test_one_is_not_many():
    assert [counted(n, "frame") for n in (0, 1, 1_000)] == ["0 frames", "1 frame", "1,000 frames"]


def test_an_error_is_one_line_without_escapes():
    assert one_line("a\nb \x1b[31m") == r"a b \x1b[31m"


def test_progress_is_silent_unless_a_terminal_watches(monkeypatch):
    silent, watched = io.StringIO(), Terminal()

    for stream in (silent, watched):
        monkeypatch.setattr(sys, "stderr", stream)
        with progress("checking", 10 << 20) as advance:
            advance(5 << 20)
        with busy("waiting"):
            pass

    assert silent.getvalue() == ""
    assert "checking" in watched.getvalue()
    assert "waiting" in watched.getvalue()


def test_the_program_is_named_as_it_can_be_called(monkeypatch, tmp_path):
    command = tmp_path / "waterclock"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)

    monkeypatch.setattr(sys, "argv", [str(command)])
    assert program() == str(command)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program() == "waterclock"
    monkeypatch.setattr(sys, "argv", ["/x/__main__.py"])
    assert program().endswith("-m waterclock")


def test_what_lines_are_for_stands_in_a_column():
    out = Console(file=io.StringIO(), width=80)

    with out.capture() as said:
        next_lines(out, [("up", "start"), ("publish x", "send")])

    assert said.get() == "   up         # start\n   publish x  # send\n"


PROGRAM = """
import typer
from waterclock.cli.output.terminal import ask
app = typer.Typer()
@app.command()
def main():
    ask("Delete it?", is_agreed=False)
    print("deleted")
app()
"""


def asked(answer: str) -> Seen:
    return at_terminal("-c", PROGRAM, typed=answer)


def test_yes_is_not_asked(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO())

    ask("Delete it?", is_agreed=True)


def test_where_nobody_can_answer_it_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))

    with pytest.raises(BadInput, match="Nobody is here to ask: add --yes"):
        ask("Delete it?", is_agreed=False)


def test_a_person_may_agree():
    seen = asked("y\n")

    assert seen.exit_code == 0
    assert "deleted" in seen.screen


def test_a_person_may_decline_and_that_is_the_default():
    seen = asked("\n")

    assert seen.exit_code == 1
    assert "Delete it? [y/N]" in seen.screen
    assert "Nothing was changed." in seen.screen
    assert "deleted" not in seen.screen
