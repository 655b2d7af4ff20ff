"""A clock that stands still until a test turns it.

It tells apart the two things that happen to real clocks: time passes (both hands move), or
somebody sets the wall clock (only that hand moves, perhaps back).
"""

from waterclock.model.ids import Millis


class ManualClock:
    """The `Clock` of a test."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0

    def __repr__(self) -> str:
        return f"<ManualClock wall {self._now_ms} ms, {self._monotonic_ms} ms since start>"

    def now_ms(self) -> Millis:
        """Return the wall-clock time, as set and advanced so far."""
        return Millis(self._now_ms)

    def monotonic_ms(self) -> Millis:
        """Return how far the clock was advanced; steps do not count."""
        return Millis(self._monotonic_ms)

    def advance(self, ms: int) -> None:
        """Let time pass on both clocks."""
        assert ms >= 0, "time does not pass backwards; use step"
        self._now_ms += ms
        self._monotonic_ms += ms

    def step(self, ms: int) -> None:
        """Set the wall clock forwards, or back if `ms` is negative, while no time passes."""
        self._now_ms += ms
