"""How many partitions a stream should have, by the requests that it gets.

A stream grows when the rate of a short window is more than its partitions are meant for, and
shrinks when that of a long window is far less: between the two bounds nothing happens, so a steady
rate has a steady count. After each change the scaler waits and looks again. It grows to twice as
many at most, and shrinks by one.

A stream of which somebody wants one order for all messages is *pinned*: it has one partition until
nobody has wanted that for a while.
"""

from collections import deque
from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalerConfig:
    """When streams are split. Rates are of requests a second, sends and polls."""

    rate: int = 5_000
    """What a partition is meant for: a stream that gets more for each of its own gets another.
    Lower spreads sooner; requests that meet in two nodes cost more than in one."""

    partitions_max: int = 16
    """Of one stream, however many nodes there are."""

    shrink_percent: int = 60
    """A stream shrinks when one partition less would be used by so much. Higher frees nodes
    sooner, and changes the count more often."""

    up_window_ms: int = 5_000
    """So long the rate must have been high. Shorter follows a burst that is soon over."""

    down_window_ms: int = 60_000
    """So long the rate must have been low. Longer rides out a pause."""

    cool_down_ms: int = 10_000
    """Between two changes, so that the first is seen in the rate before the second."""

    pin_ms: int = 600_000
    """How long a stream has one partition after somebody wanted one order."""


class Scaler:
    """Decides for one stream; its root tells it of all requests, wherever they came."""

    __slots__ = ("_changed_ms", "_config", "_first_ms", "_pinned_ms", "_samples")

    def __init__(self, config: ScalerConfig, now_ms: int) -> None:
        self._config = config
        self._samples: deque[tuple[int, int]] = deque()
        """When, and how many requests since the sample before."""
        self._first_ms = now_ms
        self._changed_ms = now_ms - config.cool_down_ms
        self._pinned_ms: int | None = None

    def __repr__(self) -> str:
        return f"<Scaler of {len(self._samples)} samples>"

    def note(self, now_ms: int, requests: int) -> None:
        """Take how many requests came since this was called last."""
        self._samples.append((now_ms, requests))
        over_ms = now_ms - self._config.down_window_ms
        while self._samples[0][0] <= over_ms:
            self._first_ms = self._samples.popleft()[0]

    def pin(self, now_ms: int) -> None:
        """Somebody wants all messages in one order."""
        self._pinned_ms = now_ms

    def is_pinned(self, now_ms: int) -> bool:
        """Return whether the stream must have one partition."""
        return self._pinned_ms is not None and now_ms - self._pinned_ms < self._config.pin_ms

    def settle(self, now_ms: int) -> None:
        """Change nothing for a while: what was measured is about to change."""
        self._changed_ms = now_ms

    def rate(self, now_ms: int, window_ms: int) -> float:
        """Return the requests a second in a window before now."""
        start_ms = max(now_ms - window_ms, self._first_ms)
        requests = sum(count for at_ms, count in self._samples if at_ms > start_ms)
        return 1_000 * requests / max(1, now_ms - start_ms)

    def signal(self, now_ms: int) -> float:
        """Return how many partitions the rate would fill; more than there are nodes: add some."""
        return self.rate(now_ms, self._config.up_window_ms) / self._config.rate

    def count(self, now_ms: int, present: int, *, most: int) -> int:
        """Return how many partitions there should be from now on; there can be `most`."""
        most = min(most, self._config.partitions_max)
        if present > 1 and (most <= 1 or self.is_pinned(now_ms)):
            self._changed_ms = now_ms
            return 1
        wanted = min(present, most)
        if now_ms - self._changed_ms >= self._config.cool_down_ms:
            wanted = self._by_rate(now_ms, wanted, most)
        if wanted != present:
            self._changed_ms = now_ms
        return wanted

    def _by_rate(self, now_ms: int, present: int, most: int) -> int:
        config = self._config
        seen_ms = now_ms - max(self._first_ms, self._changed_ms)
        rate = self.rate(now_ms, config.up_window_ms)
        if rate > present * config.rate:
            if seen_ms < config.up_window_ms or self.is_pinned(now_ms):
                return present
            return min(ceil(rate / config.rate), 2 * present, most)
        bound = (present - 1) * config.rate * config.shrink_percent / 100
        if present > 1 and seen_ms >= config.down_window_ms and rate < bound:
            return present - (self.rate(now_ms, config.down_window_ms) < bound)
        return present
