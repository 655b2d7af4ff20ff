"""Work that takes its time, and how long it really took.

`asyncio.sleep` is a poor stand-in for a call that takes a millisecond: the loop waits in whole
milliseconds, rounded up, so 1 ms takes between 1 and 2 and 10 ms nearly 11. `ExactWait` is told by
a timer of the kernel instead, as the network would tell of an answer, and it sets the timer earlier
by what waking up takes on this machine when the loop has nothing else to do (some 0.1 ms). So to a
function alone on its loop the work takes just its time. What is longer was spent waiting for a busy
loop, and counts against whoever keeps it busy.
"""

import asyncio
import ctypes
import os
from collections import deque
from statistics import median
from time import perf_counter

MONOTONIC, ABSOLUTE = 1, 1
FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
FAR_S = 3_600.0
TRIALS, TRIAL_S = 100, 0.001
"""Waits to find out how long waking up takes, which is the same for all lengths."""

_libc = ctypes.CDLL(None, use_errno=True)


class _TimerSpec(ctypes.Structure):
    """struct itimerspec: an interval, of which there is none, and a time."""

    _fields_ = [(name, ctypes.c_long) for name in ("every_s", "every_ns", "at_s", "at_ns")]


class ExactWait:
    """Waits of one length, many at once: who begins first ends first, so they stand in a queue."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.early_s = 0.0
        """How long waking up takes: the timer is set earlier by it."""
        self.count = 0
        self.total_s = 0.0
        """How long all waits took that have ended, as those saw it who waited."""
        self._loop = asyncio.get_running_loop()
        self._queue: deque[tuple[float, asyncio.Future[None]]] = deque()
        self._spec = _TimerSpec()
        self._timer = _libc.timerfd_create(MONOTONIC, FLAGS)
        if self._timer < 0:
            raise OSError(ctypes.get_errno(), "the kernel gives no timer")
        self._loop.add_reader(self._timer, self._fire)

    async def settle(self) -> None:
        """Find out how long waking up takes. Call it before anything else runs on the loop."""
        seconds, self.seconds = self.seconds, TRIAL_S
        late = []
        for _ in range(TRIALS):
            before = self.total_s
            await self.wait()
            late.append(self.total_s - before - TRIAL_S)
        self.seconds = seconds
        self.early_s = max(0.0, min(median(late), seconds / 2))
        self.forget()

    def forget(self) -> None:
        """Count from here."""
        self.count, self.total_s = 0, 0.0

    async def wait(self) -> None:
        """Wait."""
        begun = perf_counter()
        future: asyncio.Future[None] = self._loop.create_future()
        until = begun + self.seconds - self.early_s
        self._queue.append((until, future))
        if len(self._queue) == 1:
            self._set(until)
        await future
        self.total_s += perf_counter() - begun
        self.count += 1

    @property
    def mean_s(self) -> float:
        """How long a wait took."""
        return self.total_s / self.count if self.count else 0.0

    def close(self) -> None:
        """Give the timer back."""
        self._loop.remove_reader(self._timer)
        os.close(self._timer)

    def _set(self, when: float) -> None:
        # `perf_counter` is this clock on Linux. To set the timer also clears what it has told.
        self._spec.at_s, self._spec.at_ns = divmod(int(when * 1e9), 1_000_000_000)
        _libc.timerfd_settime(self._timer, ABSOLUTE, ctypes.byref(self._spec), None)

    def _fire(self) -> None:
        queue, now = self._queue, perf_counter()
        while queue and queue[0][0] <= now:
            future = queue.popleft()[1]
            if not future.done():
                future.set_result(None)
        # A time of 0 would stop it without clearing.
        self._set(queue[0][0] if queue else now + FAR_S)
