"""The figures of one moment of the demo, as the screen shows them."""

from collections import deque
from dataclasses import dataclass, field

EVENTS_SHOWN = 6
RATE_S = 1.0
"""Rates are of so long a time."""


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """One process, as the screen shows it."""

    name: str
    state: str
    messages: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Figures of one moment."""

    at_s: float
    sent: int
    written: int
    dead: int
    queued: int
    pending: int
    redelivered: int
    epoch: int
    processes: tuple[ProcessRow, ...] = ()
    events: tuple[str, ...] = ()
    sent_rate: float = 0
    written_rate: float = 0


@dataclass(slots=True)
class Rates:
    """Speeds, from counts seen a while ago."""

    _seen: deque[tuple[float, int, int]] = field(default_factory=deque)

    def of(self, at_s: float, sent: int, written: int) -> tuple[float, float]:
        """Return how many a second were sent and written lately."""
        self._seen.append((at_s, sent, written))
        while len(self._seen) > 2 and self._seen[1][0] <= at_s - RATE_S:
            self._seen.popleft()
        then_s, sent_then, written_then = self._seen[0]
        took_s = max(at_s - then_s, 1e-9)
        if len(self._seen) == 1:
            return 0.0, 0.0
        return (sent - sent_then) / took_s, (written - written_then) / took_s
