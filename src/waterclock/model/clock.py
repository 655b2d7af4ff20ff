"""What time it is: the one thing about time that cores are told and shells ask.

There are two clocks because there are two questions. "Is this message due?" is about the world's
time, so it needs the wall clock, which operators and NTP may step forwards or back. "Has this
lease run out?" is about how long something took, so it needs a clock that only goes forward,
which says nothing about the date and starts anew with each boot. Asking the wrong one is a
classic: a lease measured on the wall clock ends early, or never, when the clock is set.

Linux has two that only go forward. CLOCK_BOOTTIME goes on while the machine is suspended,
CLOCK_MONOTONIC does not. `monotonic_ms` is the latter, on purpose: a node that slept with its
machine has heard nobody meanwhile, so the time must not count against anyone.

Cores have no clock at all: they are handed `now_ms`. Shells ask `waterclock.runtime.clock`, and
tests turn `tests.kit.clock` by hand.
"""

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final, Protocol

from waterclock.model.ids import Millis

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def time_of(ms: int) -> datetime:
    """Return the UTC time so many milliseconds after 1970."""
    return _EPOCH + timedelta(milliseconds=ms)


def rfc3339(ms: int) -> str:
    """Return the UTC time so many milliseconds after 1970 as text."""
    seconds, left_ms = divmod(ms, 1_000)
    return f"{_second(seconds)}.{left_ms:03d}Z"


@lru_cache(maxsize=1_000)  # messages of one second are many
def _second(seconds: int) -> str:
    return time_of(seconds * 1_000).strftime("%Y-%m-%dT%H:%M:%S")


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
        # Not Millis(...), which is a call: this is asked for every message.
        return self._clock.monotonic_ms() + self._ahead_ms  # type: ignore[return-value]

    def set_by_ms(self) -> int:
        """Return by how much the wall clock has been set since, negative if back."""
        return self._clock.now_ms() - self.now_ms()


PULSE_MS: Final = 100
"""How often a running clock must be told that its process runs."""
PAUSE_MS: Final = 500
"""Without a pulse for so long, the loop stood still. Of a pause no more than this counts."""
SETTLE_MS: Final = 250
"""How long the clock stands still after that, until what was sent meanwhile has been read."""
GRACE_MS: Final = 2_000
"""Most that is forgiven of stalls in a row; as much time has to count before it is again."""
_BUSY_SHARE: Final = 4
"""A process that had a fourth of a core meanwhile was not stopped: its loop was busy."""


class RunningClock(SteadyClock):
    """A steady clock that leaves out the time in which its process did not run.

    A process is stopped (SIGSTOP, a debugger, a hypervisor), or its loop blocked, while heartbeats
    and acks pile up in its sockets. By any other clock its first act afterwards would be to declare
    everyone dead whom it did not hear. By this one no time has passed: sessions and leases have
    what they had left, and what was sent meanwhile is read before any of it ends. Cassandra's
    failure detector does the same about a "local pause".

    A loop that is blocked again and again must not keep leases from ending, though. So of a stall
    in which the process was busy all counts, of a pause `PAUSE_MS`, and both are forgiven only out
    of a grace that is earned by as much time that counted: at least half of the time is told.

    Whoever drives the loop calls `pulse`; without one for `PAUSE_MS` the clock stands until the
    next. Without any pulse this is a steady clock.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.paused_ms = 0
        """How long all pauses were, together."""
        self._pulsed_ms: int | None = None
        self._pulsed_cpu_ms = 0
        self._shown_ms = 0
        self._uncounted_ms = 0
        self._grace_ms = GRACE_MS
        self._earns_from_ms = 0

    def now_ms(self) -> Millis:
        """Return the time; it never goes back."""
        monotonic_ms, pulsed_ms = self._clock.monotonic_ms(), self._pulsed_ms
        if pulsed_ms is None or monotonic_ms - pulsed_ms < PAUSE_MS:
            self._shown_ms = max(self._shown_ms, monotonic_ms - self._uncounted_ms)
        return Millis(self._shown_ms + self._ahead_ms)

    def pulse(self, cpu_ms: int) -> None:
        """Note that the process runs, and how much time of processors it has had so far."""
        monotonic_ms, pulsed_ms = self._clock.monotonic_ms(), self._pulsed_ms
        if pulsed_ms is not None and monotonic_ms - pulsed_ms >= PAUSE_MS:
            self._stalled(pulsed_ms, monotonic_ms, cpu_ms - self._pulsed_cpu_ms)
        self._pulsed_ms, self._pulsed_cpu_ms = monotonic_ms, cpu_ms

    def _stalled(self, from_ms: int, until_ms: int, cpu_ms: int) -> None:
        counted_ms = stall_ms = until_ms - from_ms
        if cpu_ms * _BUSY_SHARE < stall_ms:
            self.paused_ms += stall_ms
            counted_ms = PAUSE_MS
        shown_ms = max(self._shown_ms, from_ms - self._uncounted_ms)
        grace_ms = min(GRACE_MS, self._grace_ms + shown_ms - self._earns_from_ms)
        forgiven_ms = min(counted_ms, grace_ms)
        settle_ms = min(SETTLE_MS, grace_ms - forgiven_ms)
        self._grace_ms = grace_ms - forgiven_ms - settle_ms
        # Some of it may have been told before anybody knew.
        shown_ms = min(shown_ms + counted_ms - forgiven_ms, until_ms - self._uncounted_ms)
        self._shown_ms = self._earns_from_ms = shown_ms
        self._uncounted_ms = until_ms + settle_ms - shown_ms
