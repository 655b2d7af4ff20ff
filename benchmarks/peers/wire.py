"""Raw sockets to a peer: the fastest honest client there is, since it only counts what comes back.

What is sent was encoded before the clock started. Answers are counted by a mark each of them
carries exactly once; values are plain text, so no mark can occur in them.
"""

import select
import socket
from collections.abc import Callable, Iterable

READ_BYTES = 1 << 20
SILENCE_S_MAX = 60
VALUE = b"x" * 128
"""The same size as ours; what is in it matters to no peer."""

Feed = Callable[[bytes], int]
"""Takes what was received; gives how many answers were in it."""


def connect(port: int) -> socket.socket:
    """Open a connection that sends at once."""
    wire = socket.create_connection(("127.0.0.1", port), timeout=60)
    wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return wire


class Marks:
    """Counts a mark in what is received, wherever it was cut; fails when it sees a bad one."""

    def __init__(self, mark: bytes, *, bad: bytes | None = None) -> None:
        self._mark = mark
        self._bad = bad
        self._tail = b""

    def feed(self, data: bytes) -> int:
        """Take what was received; give how many more marks there are."""
        data = self._tail + data
        if self._bad is not None and self._bad in data:
            raise RuntimeError(f"the peer refused: {data[data.find(self._bad) :][:200]!r}")
        count = data.count(self._mark)
        # Shorter than the mark, so none is counted twice, and it holds any that is cut.
        self._tail = data[max(0, len(data) - len(self._mark) + 1) :]
        return count


def pump(
    wire: socket.socket, batches: Iterable[bytes], *, answers: int, window: int, feed: Feed
) -> None:
    """Send all batches, at most a window of them unanswered; each gets that many answers."""
    wire.setblocking(False)
    waiting = iter(batches)
    batch = next(waiting, None)
    unsent = memoryview(b"")
    owed = 0
    while owed or unsent or batch is not None:
        if not unsent and batch is not None and owed <= (window - 1) * answers:
            unsent, batch = memoryview(batch), next(waiting, None)
            owed += answers
        readable, writable, _ = select.select([wire], [wire] if unsent else [], [], SILENCE_S_MAX)
        if not readable and not writable:
            raise TimeoutError(f"the peer owes {owed} answers and is silent")
        if readable:
            owed -= feed(received(wire))
        if writable:
            unsent = unsent[wire.send(unsent) :]
    wire.setblocking(True)


def drain(
    wire: socket.socket,
    *,
    messages: int,
    batch: int,
    window: int,
    feed: Feed,
    request: Callable[[], bytes],
) -> None:
    """Ask for batches, a window of them at a time, until so many messages have come."""
    asked = done = 0
    while done < messages:
        while asked < messages and asked - done <= (window - 1) * batch:
            wire.sendall(request())
            asked += batch
        done += feed(received(wire))


def received(wire: socket.socket) -> bytes:
    """Give what has come; fail if the peer has hung up."""
    data = wire.recv(READ_BYTES)
    if not data:
        raise ConnectionError("the peer closed the connection")
    return data
