"""What a consumer did, as it wrote it down: one line for each thing, written before it counts.

A line is one `write` to a file opened for appending, so it is in the kernel's hands when the call
returns: a process that is killed loses nothing it had begun to act upon. A message is written down
as finished before the pool can know that it is. Times are nanoseconds of the monotonic clock, which
all processes of a machine share.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from time import monotonic_ns

Position = tuple[int, int]
"""Partition and offset of a message."""


class What(Enum):
    """What happened to a message."""

    BEGUN = "b"
    FINISHED = "f"
    FAILED = "e"
    DEAD_LETTERED = "d"


@dataclass(frozen=True, slots=True)
class Entry:
    """One line."""

    what: What
    place: Position
    number: int
    at_ns: int


class JournalWriter:
    """Writes the journal of this process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, what: What, place: Position, number: int) -> None:
        """Write a line; when this returns it is safe from the end of the process."""
        line = b"%c %d %d %d %d\n" % (what.value.encode(), *place, number, monotonic_ns())
        written = os.write(self._file, line)
        assert written == len(line)


class JournalReader:
    """Reads what was added to a journal since the last time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def more(self) -> Iterator[Entry]:
        """Yield new entries; half a line is left for the next time."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        end = data.rfind(b"\n") + 1
        self._read += end
        for line in data[:end].splitlines():
            what, partition, offset, number, at_ns = line.decode().split()
            yield Entry(What(what), (int(partition), int(offset)), int(number), int(at_ns))
