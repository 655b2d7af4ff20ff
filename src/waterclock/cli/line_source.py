"""Lines of a file or of stdin, handed out as they come.

A pipe is read when there is something in it, in the event loop, so that Ctrl-C ends the wait and
nothing lies around until a chunk is full. A regular file is always ready.
"""

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from waterclock.model.errors import BadInput

READ_BYTES = 256 << 10
LINE_BYTES_MAX = 64 << 20
"""A line of more is not a message that any node takes."""
STDIN = Path("-")


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Open a file to read, or stdin for `-`; raise BadInput if it cannot be."""
    if path == STDIN:
        yield 0
        return
    try:
        number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from error
    try:
        yield number
    finally:
        os.close(number)


def size_of(number: int) -> int | None:
    """Return how many bytes will come; None for a pipe, which does not know."""
    found = os.fstat(number)
    return found.st_size if stat.S_ISREG(found.st_mode) else None


async def lines_of(number: int, *, advance: Callable[[int], None]) -> AsyncIterator[list[bytes]]:
    """Yield lines without their ends, as many as there are at a time; tell of bytes as read."""
    rest: list[bytes] = []
    waiting = 0
    while data := await _read(number):
        first, *others = data.split(b"\n")
        rest.append(first)
        waiting += len(first)
        if waiting > LINE_BYTES_MAX:
            raise BadInput(f"a line has more than {LINE_BYTES_MAX} bytes")
        if others:
            *whole, last = b"".join(rest), *others
            rest, waiting = [last], len(last)
            yield whole
        advance(len(data))
    if waiting:
        yield [b"".join(rest)]


async def _read(number: int) -> bytes:
    if size_of(number) is None:
        await _readable(number)
    try:
        return os.read(number, READ_BYTES)
    except OSError as error:
        raise BadInput(f"cannot read: {error.strerror}") from error


async def _readable(number: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        loop.add_reader(number, ready.set)
    except OSError:  # /dev/null and such, which are always ready
        return
    try:
        await ready.wait()
    finally:
        loop.remove_reader(number)
