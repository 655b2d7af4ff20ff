"""A circuit breaker: who has failed again and again is left alone for a while. Pure.

closed      requests go; after FAILURES_MAX failures in a row it opens
open        none go until the pause is over; pauses double, up to PAUSE_MS_MAX
half open   one goes, to see: its success closes the breaker, its failure opens it anew
"""

from typing import Final

FAILURES_MAX: Final = 5
PAUSE_MS: Final = 500
PAUSE_MS_MAX: Final = 30_000


class Breaker:
    """What is known of one peer. Count only failures that are the peer's."""

    __slots__ = ("_failures", "_pause_ms", "_retry_ms", "is_trying")

    def __init__(self) -> None:
        self._failures = 0
        self._pause_ms = PAUSE_MS
        self._retry_ms = 0
        self.is_trying = False
        """Half open: one request is on its way to see."""

    def __repr__(self) -> str:
        return f"<Breaker {self.state}, {self._failures} failures>"

    @property
    def state(self) -> str:
        """`closed`, `open` or `half open`."""
        return "half open" if self.is_trying else "open" if self.is_open else "closed"

    @property
    def is_open(self) -> bool:
        """Whether requests are held back, but for the one that is to see."""
        return self._failures >= FAILURES_MAX

    def allows(self, now_ms: int) -> bool:
        """Whether a request may go; if so, tell how it ended."""
        if not self.is_open:
            return True
        if self.is_trying or now_ms < self._retry_ms:
            return False
        self.is_trying = True
        return True

    def succeeded(self) -> None:
        """A request was answered, in whatever way."""
        self._failures, self._pause_ms, self.is_trying = 0, PAUSE_MS, False

    def failed(self, now_ms: int) -> None:
        """A request was not answered, and that is the peer's fault."""
        was_open = self.is_open
        self._failures += 1
        if self.is_open:
            if was_open and self.is_trying:
                self._pause_ms = min(self._pause_ms * 2, PAUSE_MS_MAX)
            self._retry_ms = now_ms + self._pause_ms
        self.is_trying = False
