"""What time it is: the one thing about time that cores are told and shells ask.

There are two clocks because there are two questions. "Is this message due?" is about the world's
time, so it needs the wall clock, which operators and NTP may step forwards or back. "Has this
lease run out?" is about how long something took, so it needs a clock that only goes forward,
which says nothing about the date and starts anew with each boot. Asking the wrong one is a
classic: a lease measured on the wall clock ends early, or never, when the clock is set.

Cores have no clock at all: they are handed `now_ms`. Shells ask `waterclock.storage.clock`, and
tests turn `waterclock.testing.clock` by hand.
"""

from typing import Protocol

from waterclock.model.ids import Millis


class Clock(Protocol):
    """A source of both times; real or turned by hand."""

    def now_ms(self) -> Millis:
        """Return the wall-clock time since 1970 UTC. It may jump, also back."""
        ...

    def monotonic_ms(self) -> Millis:
        """Return a time that never goes back. Only differences mean anything, never on disk."""
        ...
