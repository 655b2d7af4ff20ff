"""Simulated processes and what lies between them: clocks that differ, links that delay and break.

A process hears what arrives in order, while it is neither frozen nor dead; frozen, it wakes to all
of it at once, as after SIGSTOP, and to its timers first or last, by chance.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from random import Random
from typing import Any

from tests.dispatch.model_redis import FAILED

Step = Callable[[], None]


class Schedule:
    """What happens when, in ms of the world."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.now_ms = 1_000
        self.is_calm = False
        """Nothing goes wrong any more."""
        self.is_smooth = False
        """Redis and the network do what they should; processes may still fail."""
        self._heap: list[tuple[int, int, Step]] = []
        self._sequence = 0

    def at(self, time_ms: int, step: Step) -> None:
        self._sequence += 1
        heappush(self._heap, (max(time_ms, self.now_ms), self._sequence, step))

    def run_to(self, end_ms: int) -> None:
        while self._heap and self._heap[0][0] <= end_ms:
            self.now_ms, _, step = heappop(self._heap)
            step()
        self.now_ms = end_ms

    def delay(self) -> int:
        """Return how long something takes on the way: mostly little, sometimes long."""
        if self.chance(0.01) and not self.is_smooth:
            return self.rng.randrange(50, 1_500)
        return self.rng.randrange(0, 4)

    def chance(self, share: float) -> bool:
        return not self.is_calm and self.rng.random() < share


class Process:
    """Something that can be frozen and killed."""

    def __init__(self, number: int, schedule: Schedule) -> None:
        self.number = number
        self.schedule = schedule
        self.is_dead = False
        self.frozen_until_ms = 0
        self.cut_off_until_ms = 0
        """Until then nothing it asks arrives at Redis."""
        self._inbox: deque[Step] = deque()
        self._rate = schedule.rng.uniform(0.98, 1.02)
        self._origin_ms = schedule.now_ms - schedule.rng.randrange(1_000)
        self._sent_ms = 0
        self._timer = 0

    @property
    def now_ms(self) -> int:
        """This process's own monotonic clock."""
        return int((self.schedule.now_ms - self._origin_ms) * self._rate)

    @property
    def is_running(self) -> bool:
        return not self.is_dead and self.schedule.now_ms >= self.frozen_until_ms

    def freeze(self, duration_ms: int) -> None:
        self.frozen_until_ms = self.schedule.now_ms + duration_ms
        self.schedule.at(self.frozen_until_ms, self._wake)

    def hear(self, step: Step) -> None:
        """Let the process do something as soon as it can."""
        self._inbox.append(step)
        self._wake()

    def call(
        self, script: Callable[[], Any], answer: Callable[[Any], None], *, late_ms: int = 0
    ) -> None:
        """Run a script at Redis, in the order of the calls; the answer may be that it failed."""
        schedule, fate = self.schedule, self.schedule.rng.random()
        self._sent_ms = max(self._sent_ms, schedule.now_ms + schedule.delay())
        is_rough = not schedule.is_calm and not schedule.is_smooth
        is_lost = (is_rough and fate < 0.01) or schedule.now_ms < self.cut_off_until_ms
        is_answer_lost = is_rough and fate > 0.99

        def happen() -> None:
            result = FAILED if is_lost else script()
            said = FAILED if is_answer_lost else result
            wait_ms = 300 if said is FAILED else schedule.delay() + late_ms
            schedule.at(schedule.now_ms + wait_ms, lambda: self.hear(lambda: answer(said)))

        schedule.at(self._sent_ms, happen)

    def wake_at(self, local_ms: int | None) -> None:
        """Call `turn` when the process's clock says so, or before."""
        self._timer += 1
        timer = self._timer
        if local_ms is None:
            return
        delay_ms = max(1, int((local_ms - self.now_ms) / self._rate) + 1)
        self.schedule.at(
            self.schedule.now_ms + delay_ms,
            lambda: self.hear(lambda: self.turn() if timer == self._timer else None),
        )

    def turn(self) -> None:
        """Do what is due."""

    def _wake(self) -> None:
        while self._inbox and self.is_running:
            self._inbox.popleft()()


class Connection:
    """Bytes between a dispatcher and a worker, both ways, until it is cut."""

    def __init__(self, key: int, leader: Process, worker: Process) -> None:
        self.key = key
        self.ends = (leader, worker)
        self.is_cut = False
        self._arrivals = [0, 0]

    def send(
        self,
        sender: Process,
        receive: Callable[[bytes], None],
        data: bytes,
        *,
        late_ms: int = 0,
    ) -> None:
        """Let the other end receive this, after what was sent before."""
        schedule = sender.schedule
        to = 1 - self.ends.index(sender)
        delay_ms = schedule.delay() + late_ms
        self._arrivals[to] = max(self._arrivals[to], schedule.now_ms + delay_ms)

        def arrive() -> None:
            if not self.is_cut:
                self.ends[to].hear(lambda: receive(data))

        schedule.at(self._arrivals[to], arrive)

    def cut(self, *said: Callable[[], None]) -> None:
        """Lose all that is on the way; each end notices in its own time."""
        self.is_cut = True
        schedule = self.ends[0].schedule
        for end, tell in zip(self.ends, said, strict=True):
            wait_ms = schedule.rng.randrange(0, 500)
            schedule.at(schedule.now_ms + wait_ms, partial(end.hear, tell))
