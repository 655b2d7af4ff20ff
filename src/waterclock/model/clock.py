"""What time it is: the one thing about time that cores are told and shells ask.

There are two clocks because there are two questions. "Is this message due?" is about the world's
time, so it needs the wall clock, which operators and NTP may step forwards or back. "Has this
lease run out?" is about how long something took, so it needs a clock that only goes forward,
which says nothing about the date and starts anew with each boot. Asking the wrong one is a
classic: a lease measured on the wall clock ends early, or never, when the clock is set.

Cores have no clock at all: they are handed `now_ms`. Shells ask `waterclock.storage.clock`, and
tests turn `waterclock.testing.clock` by hand.
"""

from typing import Final, Protocol

from waterclock.model.ids import Millis


class Clock(Protocol):
    """A source of both times; real or turned by hand."""

    def now_ms(self) -> Millis:
        """Return the wall-clock time since 1970 UTC. It may jump, also back."""
        ...

    def monotonic_ms(self) -> Millis:
        """Return a time that never goes back. Only differences mean anything, never on disk."""
        ...


class SteadyClock:
    """Tells the time as if nobody had set the wall clock since this one was made.

    For spans that are told as instants: "this lease ends at ..." must not move when the clock does.
    Who meets the world's time (people, disks) adds `set_by_ms` on the way out, and takes it off on
    the way in.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock: Final = clock
        self._ahead_ms: Final = clock.now_ms() - clock.monotonic_ms()

    def __repr__(self) -> str:
        return f"<SteadyClock {self.now_ms()} ms, the wall clock was set by {self.set_by_ms()} ms>"

    def now_ms(self) -> Millis:
        """Return the time; it never goes back."""
        return Millis(self._clock.monotonic_ms() + self._ahead_ms)

    def set_by_ms(self) -> int:
        """Return by how much the wall clock has been set since, negative if back."""
        return self._clock.now_ms() - self.now_ms()
