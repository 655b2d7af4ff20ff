"""An event loop whose time is a clock turned by hand: when nothing is left to do, time passes.

Timers ring in their order and at their time, however long that is, and nobody waits for it. What
would run on a thread is run at once. So whatever happens in this loop happens again in the same
way, and an hour takes as long as what is done in it.

`run_until_complete(asyncio.sleep(60))` lets a minute pass. A clock that is turned from outside,
while the loop does not run, is a process that was stopped: all timers ring late, and together.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any

from tests.kit.clock import ManualClock
from waterclock.storage.fsyncs import OnFsynced, Sync
from waterclock.storage.jobs import Ended, Work

WAIT_S_MAX = 3_600.0
"""Nothing in a history takes longer by itself: something waits for what never comes."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """Runs callbacks and timers; has no sockets and no threads."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock
        self._selector = self
        self._clock_resolution = 1e-4
        self.call_soon_threadsafe = self.call_soon  # type: ignore[method-assign]
        """There is only one thread."""
        self.set_exception_handler(self._note)
        self.unheard: list[dict[str, Any]] = []
        """What went wrong in callbacks, which nobody else would hear of."""

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.unheard.append(context)

    def time(self) -> float:
        """Return the time nobody can set."""
        return self._clock.monotonic_ms() / 1_000

    def select(self, timeout: float | None) -> list[object]:
        """Let time pass until the next timer; where a loop would wait for sockets."""
        assert timeout is not None, "everyone waits, and nothing will ever happen"
        assert timeout <= WAIT_S_MAX, "everyone waits for what is far away"
        if timeout > 0:
            self._clock.advance(max(1, math.ceil(timeout * 1_000 - 1e-3)))
        return []

    def run_turns(self, count: int) -> None:
        """Run what is ready, so many times over; no time passes."""

        async def turns() -> None:
            for _ in range(count):
                await asyncio.sleep(0)

        self.run_until_complete(turns())

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> "asyncio.Future[Any]":
        """Run it at once."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def _process_events(self, events: list[object]) -> None:
        assert not events

    def _write_to_self(self) -> None:
        pass


class InlineThreads:
    """Stands for the threads of a node's jobs: what is handed to them is done on the spot."""

    def __init__(self, *_: object) -> None:
        pass

    def submit(self, work: Work, on_end: Callable[[Ended], None]) -> None:
        """Run it, then call `on_end`."""
        on_end(Ended(work, _run(work), 0.0))

    def stop(self) -> None:
        """There is nothing to end."""


class InlineFsyncs(InlineThreads):
    """Stands for the threads that run fsyncs."""

    def submit(self, syncs: Sequence[Sync], on_end: OnFsynced) -> None:  # type: ignore[override]
        """Run them, then call `on_end`."""
        on_end(syncs, [_run(sync) for sync in syncs], 0.0)


def _run(work: Work) -> Exception | None:
    try:
        work.run()
    except Exception as failure:
        return failure
    return None
