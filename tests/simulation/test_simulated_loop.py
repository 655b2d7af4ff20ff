"""The loop that the histories run in: time passes by itself, in order, and the same each time."""

import asyncio

from tests.kit.clock import ManualClock
from tests.simulation.node_history import NodeHistory
from tests.simulation.simulated_loop import SimulatedLoop


def test_time_passes_when_nothing_is_left_to_do():
    clock = ManualClock(1_000)
    loop = SimulatedLoop(clock)
    rang: list[tuple[str, int]] = []

    async def sleep(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        rang.append((name, clock.monotonic_ms()))

    async def main() -> None:
        await asyncio.gather(sleep("hour", 3_600), sleep("moment", 0.002), sleep("minute", 60))

    loop.run_until_complete(main())
    loop.close()

    assert rang == [("moment", 2), ("minute", 60_000), ("hour", 3_600_000)]
    assert clock.now_ms() == 3_601_000


def test_timers_ring_late_and_together_after_a_pause():
    clock = ManualClock()
    loop = SimulatedLoop(clock)
    rang: list[int] = []

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds)
        rang.append(clock.monotonic_ms())

    sleeping = [loop.create_task(sleep(seconds)) for seconds in (1, 2, 9)]
    loop.run_turns(1)
    clock.advance(5_000)
    loop.run_turns(3)
    assert rang == [5_000, 5_000]

    loop.run_until_complete(asyncio.wait(sleeping))
    loop.close()
    assert rang == [5_000, 5_000, 9_000]


def test_what_would_run_on_a_thread_is_run_at_once():
    loop = SimulatedLoop(ManualClock())
    assert loop.run_until_complete(asyncio.to_thread(sum, [1, 2])) == 3
    loop.close()


def test_a_seed_tells_the_same_story_twice():
    stories: list[list[str]] = []
    for _ in range(2):
        history = NodeHistory(3)
        history.run()
        stories.append(history.story)

    assert stories[0] == stories[1]
