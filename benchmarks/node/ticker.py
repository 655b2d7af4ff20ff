"""A clock that wakes a loop at a steady rate, to some ten microseconds.

Timers of a loop go by whole milliseconds: a client that sends each millisecond would ask four times
before each message whether it is due, and take from the server the processor it measures. The
clients of the peers wait in `select`, which is as exact as this.
"""

import asyncio
import ctypes
import os
from contextlib import suppress
from types import TracebackType

_CLOCK_MONOTONIC = 1
_NONBLOCK = os.O_NONBLOCK | os.O_CLOEXEC
_ABSOLUTE = 1
_EXPIRATIONS_BYTES = 8
_NS = 1_000_000_000

_libc = ctypes.CDLL(None, use_errno=True)


class Ticker:
    """Ticks from a time of `time.perf_counter` on; what nobody waited for is not made up for."""

    def __init__(self, first_s: float, *, rate: int) -> None:
        self._first_ns = int(first_s * _NS)
        self._interval_ns = _NS // rate
        self._loop = asyncio.get_running_loop()
        self._ticked = asyncio.Event()
        self._descriptor = -1

    def __enter__(self) -> "Ticker":
        self._descriptor = _libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK)
        # Interval and first tick, each in seconds and nanoseconds.
        times = (*divmod(self._interval_ns, _NS), *divmod(self._first_ns, _NS))
        setting = (ctypes.c_long * 4)(*times)
        if self._descriptor < 0 or _libc.timerfd_settime(
            self._descriptor, _ABSOLUTE, ctypes.byref(setting), None
        ):
            raise OSError(ctypes.get_errno(), "the system has no timer for this")
        self._loop.add_reader(self._descriptor, self._rang)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)

    async def tick(self) -> None:
        """Return at the next tick, or at once if there was one since the last."""
        await self._ticked.wait()
        self._ticked.clear()

    def _rang(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._descriptor, _EXPIRATIONS_BYTES)
            self._ticked.set()
