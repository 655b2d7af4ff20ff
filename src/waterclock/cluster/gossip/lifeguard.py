"""Doubt, of others and of oneself: what Lifeguard adds to SWIM (Dadgar et al., 2017).

A suspect has long to refute at first, and less with each independent confirmation: if it is the
accuser that is slow, nobody confirms. A node that misses answers it should have had, or is accused
itself, takes longer over its own checks.
"""

from math import floor, log, log10

from waterclock.cluster.gossip.timers import Timer


class Awareness:
    """How far a node doubts itself: 0 is not at all."""

    def __init__(self, score_max: int) -> None:
        """The score stays below `score_max`."""
        self._score_max = score_max
        self.score = 0

    def change(self, delta: int) -> None:
        """Doubt more, or less."""
        self.score = min(max(self.score + delta, 0), self._score_max - 1)

    def scaled(self, length_ms: int) -> int:
        """Return how long to wait for what should take so long."""
        return length_ms * (self.score + 1)


def suspicion_ms(mult: int, node_count: int, interval_ms: int) -> int:
    """Return how long a suspect has that everyone suspects."""
    scale = max(1.0, log10(max(1, node_count)))
    return mult * floor(scale * 1_000) * interval_ms // 1_000


class Suspicion:
    """One suspect: who confirmed it, and until when it can refute."""

    __slots__ = (
        "_confirmers",
        "_expected",
        "_max_ms",
        "_min_ms",
        "_started_ms",
        "announced_ms",
        "timer",
    )  # fmt: skip

    def __init__(
        self, accuser: str, *, expected: int, min_ms: int, max_ms: int, now_ms: int
    ) -> None:
        """`expected` confirmations bring the time down to `min_ms`."""
        self._confirmers = {accuser}
        self._expected = expected
        self._min_ms = min_ms
        self._max_ms = max_ms if expected > 0 else min_ms
        self._started_ms = now_ms
        self.timer: Timer | None = None
        self.announced_ms: int | None = None
        """When it was last told to others who can hear us; None if perhaps nobody did."""

    @property
    def confirmations(self) -> int:
        """How many others suspect it too."""
        return len(self._confirmers) - 1

    @property
    def deadline_ms(self) -> int:
        """Until when it can refute."""
        if not self.confirmations:
            return self._started_ms + self._max_ms
        share = log(self.confirmations + 1) / log(self._expected + 1)
        length = floor(self._max_ms - share * (self._max_ms - self._min_ms))
        return self._started_ms + max(self._min_ms, length)

    def confirm(self, accuser: str) -> bool:
        """Count a confirmation; return whether it was one more that counts."""
        if self.confirmations >= self._expected or accuser in self._confirmers:
            return False
        self._confirmers.add(accuser)
        return True

    def postpone(self, length_ms: int) -> None:
        """Give the suspect longer."""
        self._started_ms += length_ms

    def end(self) -> None:
        """Let nothing happen any more."""
        if self.timer is not None:
            self.timer.cancel()
