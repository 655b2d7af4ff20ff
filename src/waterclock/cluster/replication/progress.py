"""What a leader knows of one replica that copies its log, and how far it has sent it.

`flushed_end` only rises while the epoch lasts, unless the replica's disk damaged its log: what it
has once told of the leader's log it keeps, for a log is cut only where it leaves the leader's. So a
report that comes late does no harm.
"""

from collections import deque
from typing import Final

from waterclock.cluster.replication.effects import Stream
from waterclock.cluster.replication.log_view import ReplicaId
from waterclock.model.ids import Offset

STREAM_BYTES: Final = 1 << 20
"""One `Stream`: more makes other partitions wait, less costs more of them."""
WINDOW_BYTES: Final = 8 << 20
"""Sent and not known to be flushed: what a slow replica may have under way."""


class Progress:
    """One replica that copies the log."""

    __slots__ = (
        "_sent",
        "_sent_bytes",
        "flushed_end",
        "is_damaged",
        "next_offset",
        "replica",
        "stream",
    )

    def __init__(self, replica: ReplicaId) -> None:
        self.replica = replica
        self.flushed_end = Offset(0)
        """Of the leader's log, as far as is known."""
        self.next_offset: Offset | None = None
        """What is sent next; None until the replica fetches, over a link that holds."""
        self.stream: Stream | None = None
        self.is_damaged = False
        """It told of damage, and has not fetched since: what it had flushed counts for nothing."""
        self._sent: deque[tuple[Offset, int]] = deque()
        self._sent_bytes = 0

    def __repr__(self) -> str:
        return f"<Progress {self.replica} flushed {self.flushed_end}, next {self.next_offset}>"

    def open(self, offset: Offset) -> None:
        """Begin to send from an offset on; what was under way before counts no more."""
        self.close()
        self.next_offset = offset

    def close(self) -> None:
        """Send nothing until the replica fetches again."""
        self.next_offset = self.stream = None
        self._sent.clear()
        self._sent_bytes = 0

    def pump(self, end: Offset) -> Stream | None:
        """Return the next part to send, if there is something and the window has room."""
        if self.next_offset is None or self.stream is not None or self.next_offset >= end:
            return None
        if self._sent_bytes >= WINDOW_BYTES:
            return None
        self.stream = Stream(self.replica, self.next_offset, STREAM_BYTES)
        return self.stream

    def sent(self, stream: Stream, next_offset: Offset, size: int) -> bool:
        """Note what was sent; say if it was of the stream that is open now."""
        if self.stream is not stream:
            return False
        self.stream, self.next_offset = None, next_offset
        self._sent.append((next_offset, size))
        self._sent_bytes += size
        return True

    def damaged(self) -> None:
        """Note that the replica's log is damaged, or gone."""
        self.close()
        self.flushed_end, self.is_damaged = Offset(0), True

    def flushed(self, end: Offset) -> None:
        """Note what the replica has flushed."""
        if self.is_damaged:
            return  # it was said before the damage
        self.flushed_end = max(self.flushed_end, end)
        while self._sent and self._sent[0][0] <= end:
            self._sent_bytes -= self._sent.popleft()[1]
