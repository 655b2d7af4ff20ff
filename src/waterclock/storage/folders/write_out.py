"""Writing much to a file while others wait for the same disk.

What is written stays in the page cache until an fsync sends all of it to the disk at once, and
whoever publishes meanwhile has his own fsync wait behind it: a checkpoint of forty megabytes was
felt by everyone for a tenth of a second. So it is written in steps, and at most two of them are on
their way. This makes nothing durable: an fsync comes at the end as before, and has little to do.

Linux alone can be told to (`sync_file_range`); elsewhere all goes at once, as ever.
"""

import ctypes
import errno
import os
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Protocol

from waterclock.model.units import KIB
from waterclock.storage.folders.parts import Bytes

STEP_BYTES = 256 * KIB
_WAIT_BEFORE, _WRITE, _WAIT_AFTER = 1, 2, 4
_MISSING = frozenset({errno.ENOSYS, errno.ESPIPE, errno.EINVAL, errno.EOPNOTSUPP})


class WrittenOut(Protocol):
    """What of a `File` is needed here."""

    def write(self, position: int, parts: Sequence[Bytes]) -> None: ...

    def write_out(self, start: int, end: int, *, waits: bool) -> None: ...


def write_in_steps(file: WrittenOut, position: int, parts: Sequence[Bytes]) -> None:
    """Write all parts at `position`, a step behind the disk. Sync the file after it, as ever."""
    steps = list(_steps(parts))
    before: tuple[int, int] | None = None
    for step in steps:
        file.write(position, step)
        end = position + sum(map(len, step))
        if len(steps) > 1:
            file.write_out(position, end, waits=False)
        if before is not None:
            file.write_out(*before, waits=True)
        before = position, end
        position = end


def _steps(parts: Sequence[Bytes]) -> Iterator[list[Bytes]]:
    step: list[Bytes] = []
    room = STEP_BYTES
    for part in parts:
        view = memoryview(part)
        rest = view.cast("B") if view.nbytes else view  # an empty one cannot be cast
        while len(rest):
            step.append(rest[:room])
            rest, room = rest[room:], room - len(step[-1])
            if not room:
                yield step
                step, room = [], STEP_BYTES
    if step:
        yield step


def write_out(number: int, start: int, end: int, *, waits: bool) -> None:
    """Have the system send written bytes of a descriptor to the disk, and perhaps wait for it."""
    library = _library()
    if library is None or start >= end:
        return
    flags = _WAIT_BEFORE | _WRITE | _WAIT_AFTER if waits else _WRITE
    failed = library.sync_file_range(
        number, ctypes.c_int64(start), ctypes.c_int64(end - start), ctypes.c_uint(flags)
    )
    if failed and ctypes.get_errno() not in _MISSING:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


@lru_cache(maxsize=1)
def _library() -> Any:  # noqa: ANN401 - a library has whatever functions it has
    """Return the C library, if it has the function."""
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None, use_errno=True)
    return library if hasattr(library, "sync_file_range") else None
