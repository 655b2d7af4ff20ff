"""When to try again, and whether: backoff that doubles, with jitter, within a deadline.

Jitter keeps clients that failed together from returning together. Half of each wait is fixed, so
that none comes back at once; the other half is chance ("equal jitter").
"""

from random import Random

from waterclock.model.errors import (
    Closed,
    Overloaded,
    QuotaExceeded,
    Stopping,
    StorageFailed,
    StorageFull,
    TimedOut,
    Unavailable,
    WaterclockError,
)

_DOUBLINGS_MAX = 30
"""Beyond it every wait is the longest one; the number of a retry has no bound."""


class Backoff:
    """The waits between attempts at one thing."""

    def __init__(self, *, delay_ms: int, delay_ms_max: int, rng: Random) -> None:
        self._delay_ms = delay_ms
        self._delay_ms_max = delay_ms_max
        self._rng = rng
        self.failures = 0

    def __repr__(self) -> str:
        return f"<Backoff after {self.failures} failures>"

    def next_ms(self, error: WaterclockError | None = None) -> float:
        """Count a failure and return how long to wait before the next attempt: at least as long as
        a node says that will not have us go faster."""
        doubled = self._delay_ms << min(self.failures, _DOUBLINGS_MAX)
        longest = min(doubled, self._delay_ms_max)
        self.failures += 1
        asked_ms = error.retry_after_ms if isinstance(error, QuotaExceeded) else None
        return (asked_ms or 0) + longest * (1 + self._rng.random()) / 2

    def reset(self) -> None:
        """Forget the failures: an attempt succeeded."""
        self.failures = 0


def is_transient(error: WaterclockError) -> bool:
    """Return whether the same request may succeed later: once the node is back, or has space."""
    return isinstance(error, Unavailable | TimedOut | StorageFull | StorageFailed | Closed)


def was_refused(error: WaterclockError) -> bool:
    """Return whether nothing was done, so that a retry is no repeat."""
    return isinstance(error, Overloaded | Stopping)
