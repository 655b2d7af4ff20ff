"""How long the loop kept everyone waiting: a heartbeat that notes how late it is."""

import asyncio
import time

from waterclock.node.counters import Histogram

BEAT_S = 0.010


class LoopWatch:
    """Beats every 10 ms. A beat that is 50 ms late means that nothing at all ran for that long."""

    def __init__(self) -> None:
        self.stall_ms = Histogram()

    async def run(self) -> None:
        """Beat until cancelled."""
        due = time.perf_counter()
        while True:
            due += BEAT_S
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            now = time.perf_counter()
            self.stall_ms.observe(max(0.0, now - due) * 1_000)
            # Beats that were missed are one stall, not many.
            due = now
