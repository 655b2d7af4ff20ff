"""A named consumer of a stream: how far it has come.

One that polls without a position moves past what it is given: a poll whose answer is lost has lost
its messages. One that brings a position *confirms*: it moves to there and no further, so whatever
it was given and did not confirm comes again.
"""

from waterclock.streams.ring import Ring

CONSUMER_BYTES = 200
"""About what a consumer takes besides its name."""


def consumer_bytes(name: str) -> int:
    """Return about what a consumer takes in memory."""
    return CONSUMER_BYTES + 4 * len(name)


class Consumer:
    """How far a named consumer has come, and when it was last heard of."""

    __slots__ = ("missed", "position", "seen_ms")

    def __init__(self, position: int) -> None:
        self.position = position
        self.missed = 0
        """Messages it was too late for, not yet reported to it."""
        self.seen_ms = 0

    def confirm_stored(self, ring: Ring | None, stored: int) -> None:
        """Move past the messages of a ring that are stored up to a position in the store."""
        if ring is None:
            return
        start = max(ring.first, self.position + 1)
        items = enumerate(ring.read(start, len(ring)), start)
        passed = [position for position, item in items if 0 < item.stored <= stored]
        if passed:
            self.position, self.missed = passed[-1], 0
