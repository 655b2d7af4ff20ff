"""The computer's own clocks."""

import time

from waterclock.model.ids import Millis

_NANOS_PER_MILLI = 1_000_000


class SystemClock:
    """The `Clock` of a running node."""

    def now_ms(self) -> Millis:
        """Return the wall-clock time since 1970 UTC. It may jump, also back."""
        # Not Millis(...), which is a call: this is asked for every message.
        return time.time_ns() // _NANOS_PER_MILLI  # type: ignore[return-value]

    def monotonic_ms(self) -> Millis:
        """Return a time that never goes back. Only differences mean anything, never on disk."""
        return time.monotonic_ns() // _NANOS_PER_MILLI  # type: ignore[return-value]
