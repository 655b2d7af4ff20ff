"""Much is written in steps, of which few are on their way to the disk at once."""

import random

import numpy as np
import pytest

from waterclock.storage.folders import write_out as module
from waterclock.storage.folders.parts import Bytes
from waterclock.storage.folders.write_out import write_in_steps

STEP = 16


class RecordingFile:
    """Keeps what is written, and what was said of it."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.calls: list[tuple[str, int, int]] = []

    def write(self, position, parts):
        assert position == len(self.content)
        self.content += b"".join(parts)
        self.calls.append(("write", position, len(self.content)))

    def write_out(self, start, end, *, waits):
        self.calls.append(("wait" if waits else "begin", start, end))


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    monkeypatch.setattr(module, "STEP_BYTES", STEP)


@pytest.mark.parametrize("seed", range(20))
def test_every_byte_is_written_once_in_its_place_however_parts_are_cut(seed):
    rng = random.Random(seed)
    parts: list[Bytes] = [
        rng.randbytes(rng.choice([0, 1, 5, STEP, 3 * STEP + 1])) for _ in range(8)
    ]
    parts.append(np.frombuffer(rng.randbytes(24), np.int64).view(np.uint8).data)
    parts.append(np.empty(0, np.int64).view(np.uint8).data)
    file = RecordingFile()

    write_in_steps(file, 0, parts)

    assert bytes(file.content) == b"".join(parts)
    assert all(end - start <= STEP for _, start, end in file.calls)


def test_a_step_is_begun_before_the_one_before_it_is_waited_for_and_no_more_than_two_are():
    file = RecordingFile()

    write_in_steps(file, 0, [bytes(3 * STEP)])

    assert file.calls == [
        ("write", 0, STEP),
        ("begin", 0, STEP),
        ("write", STEP, 2 * STEP),
        ("begin", STEP, 2 * STEP),
        ("wait", 0, STEP),
        ("write", 2 * STEP, 3 * STEP),
        ("begin", 2 * STEP, 3 * STEP),
        ("wait", STEP, 2 * STEP),
    ]


def test_what_is_one_step_is_left_to_the_sync():
    file = RecordingFile()

    write_in_steps(file, 0, [b"head", b"body"])

    assert file.calls == [("write", 0, 8)]
