"""Groups of dispatchers and workers under seeds: kills, freezes, cuts, lost calls, take-overs.

Everything is drawn from one seed, so a seed is a story that can be told again:

    python -m tests.dispatch.simulation --seed 17

A story: messages come on a channel and on a stream while faults happen; then the faults end, and
all that can be finished must be within PROGRESS_MS. The judge (judge.py) looks on all the way, and
says at the end what is missing. In a *steady* story Redis is well, and a standby that listened long
enough is always there: then nothing published may be missing at all, whoever is killed or frozen.
"""

import argparse
import sys

from tests.dispatch.judge import Judge
from tests.dispatch.model_redis import ModelRedis, Violation
from tests.dispatch.processes import Schedule
from tests.dispatch.simulated_dispatcher import SimulatedDispatcher
from tests.dispatch.simulated_worker import SimulatedWorker
from waterclock.dispatch.core.lease import LeaseConfig
from waterclock.dispatch.core.plan import PlanConfig

STORY_MS = 15_000
PROGRESS_MS = 40_000
STEADY_MS = 4_000
"""A standby that listened for so long has heard markers, and all that is not stored."""


class World:
    """One story."""

    def __init__(self, seed: int) -> None:
        self.schedule = Schedule(seed)
        rng = self.schedule.rng
        self.is_steady = self.schedule.is_smooth = rng.random() < 0.5
        self.redis = ModelRedis(lambda: self.schedule.now_ms)
        self.judge = Judge(self)
        self.lease_config = LeaseConfig(lease_ms=rng.choice([500, 1_000, 2_000]))
        self.plan_config = PlanConfig(
            deadline_ms=rng.choice([500, 1_000, 2_000]),
            deliveries_max=rng.choice([4, 20]),
            messages_max=rng.choice([100, 1_000]),
            batch_messages_max=rng.choice([3, 50]),
            batch_bytes_max=rng.choice([50, 1_000_000]),
            retry_ms=50,
            retry_ms_max=500,
            rest_ms_max=2_000,
        )
        self.ring_max = 5_000 if self.is_steady else rng.choice([50, 5_000])
        self.dispatchers: dict[int, SimulatedDispatcher] = {}
        self.dispatchers_ever: dict[int, SimulatedDispatcher] = {}
        self.workers: list[SimulatedWorker] = []
        self._born: dict[int, int] = {}
        self._next_number = 0
        self._next_key = 0
        self._sent = 0
        for _ in range(3 if self.is_steady else rng.randrange(1, 4)):
            self.add_dispatcher()
        for _ in range(rng.randrange(1, 5)):
            self.add_worker()

    def next_key(self) -> int:
        self._next_key += 1
        return self._next_key

    def add_dispatcher(self) -> None:
        self._next_number += 1
        dispatcher = SimulatedDispatcher(self._next_number, self)
        self.dispatchers[dispatcher.number] = dispatcher
        self.dispatchers_ever[dispatcher.number] = dispatcher
        self._born[dispatcher.number] = self.schedule.now_ms

    def add_worker(self) -> None:
        self._next_number += 1
        self.workers.append(SimulatedWorker(self._next_number, self))

    # What comes in

    def send(self) -> None:
        """Publish a few messages, or add them to the stream."""
        rng = self.schedule.rng
        kinds = [b"poison"] * 1 + [b"flaky"] * 2 + [b"plain"] * 97
        for _ in range(rng.choice([1, 1, 5, 40])):
            self._sent += 1
            body = b"%b-%d" % (rng.choice(kinds), self._sent)
            if rng.random() < 0.5:
                entry = b"%d-%d" % (self.schedule.now_ms, self._sent)
                self.redis.source_entries.append((entry, body))
                self.judge.added.add(body)
            elif self.redis.subscribers:
                self.judge.published[body] = self.schedule.now_ms
                self.redis.publish("c", body)
        for dispatcher in list(self.dispatchers.values()):
            if dispatcher.plan is not None:
                dispatcher.hear(dispatcher.turn)

    # What goes wrong

    def fault(self) -> None:
        """Let one thing go wrong."""
        rng = self.schedule.rng
        dispatcher = rng.choice(list(self.dispatchers.values()))
        leader = next((d for d in self.dispatchers.values() if d.plan is not None), dispatcher)
        worker = rng.choice(self.workers)
        match rng.randrange(11):
            case 0 if not self.is_steady or self._has_stand_in(dispatcher):
                self._kill(dispatcher)
            case 1 if not self.is_steady or self._has_stand_in(dispatcher):
                duration_ms = rng.choice([100, 1_000, 3_000])
                if dispatcher.plan is not None and rng.random() < 0.5:
                    dispatcher.freeze_when_asking_ms = duration_ms
                else:
                    dispatcher.freeze(duration_ms)
            case 9 if not self.is_steady:
                leader.cut_when_asking_ms = 3_000
            case 10 if not self.is_steady or self._has_stand_in(leader):
                leader.freeze_when_sending_ms = 3_000
            case 2 if not self.is_steady and dispatcher.is_subscribed:
                dispatcher.break_subscription()
            case 3 | 4:
                worker.is_dead = True
                self._cut_all(worker)
                self.workers.remove(worker)
                self.add_worker()
            case 5 | 6:
                worker.freeze(rng.choice([100, 1_000, 4_000]))
            case 7 | 8:
                worker.cut(worker.connection)

    def _cut_all(self, worker: SimulatedWorker) -> None:
        for dispatcher in self.dispatchers.values():
            for connection, _, other in list(dispatcher.links.values()):
                if other is worker:
                    worker.cut(connection)

    def _has_stand_in(self, dispatcher: SimulatedDispatcher) -> bool:
        old_ms = self.schedule.now_ms - STEADY_MS
        return all(
            self._born[each.number] < old_ms and each.is_running
            for each in self.dispatchers.values()
            if each is not dispatcher
        )

    def _kill(self, dispatcher: SimulatedDispatcher) -> None:
        dispatcher.is_dead = True
        del self.dispatchers[dispatcher.number]
        self.redis.subscribers.pop(dispatcher.number, None)
        for connection, _, worker in dispatcher.links.values():
            connection.cut(lambda: None, worker.disconnected(connection))
        self.add_dispatcher()

    # The story

    def run(self) -> None:
        rng, schedule = self.schedule.rng, self.schedule
        end_ms = schedule.now_ms + STORY_MS
        next_fault_ms = schedule.now_ms + 3_000
        while schedule.now_ms < end_ms:
            self._step(rng.randrange(1, 60))
            self.send()
            if schedule.now_ms >= next_fault_ms:
                self.fault()
                next_fault_ms += rng.randrange(50, 1_500)
        schedule.is_calm = True
        end_ms = schedule.now_ms + PROGRESS_MS
        while schedule.now_ms < end_ms and not (self.judge.is_done() and self.is_quiet()):
            self._step(100)
        self.judge.verdict()
        self._nothing_is_left()

    def _step(self, duration_ms: int) -> None:
        for _ in range(duration_ms):
            self.schedule.run_to(self.schedule.now_ms + 1)
            self.judge.leaders()

    def is_quiet(self) -> bool:
        """Say whether the leader has nothing in its ring and its plan, and nothing is on its way to
        it."""
        return any(
            each.plan is not None
            and each.lease.is_held(each.now_ms)
            and not (each.plan.held or each.ring.messages or each.unheard)
            for each in self.dispatchers.values()
        )

    def _nothing_is_left(self) -> None:
        for each in self.dispatchers.values():
            if each.plan is not None and each.lease.is_held(each.now_ms):
                each.plan.check_invariants()
                if each.plan.held or each.plan.waiting or each.plan.in_flight:
                    raise Violation(f"{each.plan} is not empty")
            each.ring.check_invariants()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stories", type=int, default=1)
    arguments = parser.parse_args()
    for seed in range(arguments.seed, arguments.seed + arguments.stories):
        try:
            World(seed).run()
        except Violation as violation:
            sys.exit(f"seed {seed}: {violation}")


if __name__ == "__main__":
    main()
