"""Performs the plan of a round: publishes, starts consumers, and does to them what is planned.

Consumers are processes of their own. The conductor reads their journals as they grow, so it knows
when everything is finished; then it asks all to end, and looks at what they leave behind.
"""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer

from tests.burrow.chaos.clusters import Cluster
from tests.burrow.chaos.history import Fault, History, ProcessRun
from tests.burrow.chaos.journal import JournalReader, Position, What
from tests.burrow.chaos.plan import (
    CALM_S,
    PARTITIONS,
    PAUSE_TICKS,
    RATE,
    TICK_S,
    Plan,
    Step,
    StepKind,
)
from tests.burrow.kafka.kafka_broker import read
from tests.kit.processes import Process

ROOT = Path(__file__).parents[3]
PATIENCE_S = 60.0
"""How long everything may take to be finished after the last fault."""
STOP_S_MAX = 45.0
"""How long a clean stop may take: the grace of a pool, and some."""
LOOK_S = 0.05


@dataclass
class Member:
    """A consumer process."""

    run: ProcessRun
    process: Process
    journal: JournalReader
    slot: int


class Publisher:
    """Publishes the messages of a plan at an even pace, on a thread of its own."""

    def __init__(self, cluster: Cluster, plan: Plan, topic: str) -> None:
        # Idempotent: a broker that restarts must not make two messages of one.
        more = {"enable.idempotence": True, "linger.ms": 5, "reconnect.backoff.max.ms": 500}
        self._producer = Producer({**cluster.settings, **more})
        self._plan = plan
        self._topic = topic
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.log: dict[Position, int] = {}

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Return when everything that was published is acknowledged."""
        self._is_over.set()
        self._thread.join()
        assert self._producer.flush(60) == 0, "the broker took no more messages"

    def _run(self) -> None:
        begun, number = time.monotonic(), 0
        while not self._is_over.wait(0.02):
            due = int((time.monotonic() - begun) * RATE)
            for each in range(number, due):
                self._publish(each)
            number = max(number, due)
            self._producer.poll(0)

    def _publish(self, number: int) -> None:
        nature = self._plan.nature(number)

        def acknowledged(error: KafkaError | None, message: Message) -> None:
            partition, offset = message.partition(), message.offset()
            assert error is None, error
            assert partition is not None
            assert offset is not None
            self.log[partition, offset] = number

        self._producer.produce(
            self._topic,
            b"%d" % number,
            nature.key,
            partition=nature.partition,
            on_delivery=acknowledged,
        )


class Conductor:
    """One round."""

    def __init__(
        self,
        cluster: Cluster,
        plan: Plan,
        folder: Path,
        *,
        plant: str = "",
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._cluster = cluster
        self._plan = plan
        self._folder = folder
        self._plant = plant
        self._patience_s = patience_s
        name = f"{plan.kind}-{plan.seed}-{os.getpid()}-{time.monotonic_ns()}"
        self._topic, self._group = f"chaos-{name}", f"group-{name}"
        self._members: dict[int, Member] = {}
        self._everybody: list[Member] = []
        self._due: list[tuple[float, Callable[[], None]]] = []
        self._done: set[Position] = set()
        self.history = History(plan)

    def run(self) -> History:
        """Perform the whole plan; no process of it is left afterwards."""
        self._folder.mkdir(parents=True, exist_ok=True)
        begun = time.monotonic()
        self._cluster.create(self._topic, PARTITIONS)
        self._cluster.create(f"{self._topic}.dlq", 1)
        self._cluster.watch(self._topic, self._group)
        publisher = Publisher(self._cluster, self._plan, self._topic)
        try:
            publisher.start()
            self._perform_all()
            self._look_until(time.monotonic() + CALM_S, lambda: False)
            publisher.stop()
            deadline = self._last_fault() + self._patience_s
            self._look_until(deadline, lambda: self._done.issuperset(publisher.log))
            self.history.is_drained = self._done.issuperset(publisher.log)
            self._end_all()
        finally:
            for member in self._everybody:
                if member.process.is_running:
                    member.process.kill()
        self.history.log = publisher.log
        self._collect()
        self.history.seconds = time.monotonic() - begun
        return self.history

    # Time

    def _perform_all(self) -> None:
        begun = time.monotonic()
        for step in self._plan.steps():
            self._look_until(begun + step.tick * TICK_S, lambda: False)
            self._perform(step)
        while self._due:
            self._look_until(self._due[0][0], lambda: not self._due)
        self._cluster.calm()

    def _look_until(self, when: float, is_enough: Callable[[], bool]) -> None:
        """Read journals until a time, or until it is enough; wake who was paused, when due."""
        while True:
            while self._due and self._due[0][0] <= time.monotonic():
                self._due.pop(0)[1]()
            for member in self._everybody:
                for entry in member.journal.more():
                    member.run.entries.append(entry)
                    if entry.what in (What.FINISHED, What.DEAD_LETTERED):
                        self._done.add(entry.place)
                if member.run.code is None and not member.process.is_running:
                    self._note_end(member)
            if is_enough() or time.monotonic() >= when:
                return
            time.sleep(LOOK_S)

    def _last_fault(self) -> float:
        return max(fault.over_ns for fault in self.history.faults) / 1e9

    # Acts

    def _perform(self, step: Step) -> None:
        begun_ns = time.monotonic_ns()
        name = ""
        match step.act:
            case StepKind.JOIN:
                name = self._join(step.slot).run.name
            case StepKind.LEAVE:
                name = self._leave(self._members.pop(step.slot))
            case StepKind.KILL:
                member = self._members.pop(step.slot)
                name, member.run.killed_ns = member.run.name, begun_ns
                member.process.kill()
            case StepKind.PAUSE:
                name = self._pause(self._members[step.slot])
                return
            case _:
                self._cluster.perform(step.act, self._group, step.detail)
        self._note(step.act, name, begun_ns)

    def _note(self, act: StepKind, name: str, begun_ns: int) -> None:
        self.history.faults.append(Fault(act, name, begun_ns, time.monotonic_ns()))

    def _join(self, slot: int) -> Member:
        name = f"c{len(self._everybody)}"
        journal = self._folder / f"{name}.journal"
        said = {
            "plan": asdict(self._plan),
            "settings": dict(self._cluster.settings),
            "topic": self._topic,
            "group": self._group,
            "journal": str(journal),
            "plant": self._plant,
        }
        process = Process("tests.burrow.chaos.worker", said, log=self._folder / f"{name}.output")
        run = ProcessRun(name, time.monotonic_ns())
        member = Member(run, process, JournalReader(journal), slot)
        self.history.runs[name] = run
        self._members[slot] = member
        self._everybody.append(member)
        return member

    def _leave(self, member: Member) -> str:
        member.run.asked_ns = time.monotonic_ns()
        member.process.terminate()
        return member.run.name

    def _pause(self, member: Member) -> str:
        begun_ns = time.monotonic_ns()
        member.run.paused_ns.append(begun_ns)
        member.process.pause()

        def wake() -> None:
            member.process.resume()
            self._note(StepKind.PAUSE, member.run.name, begun_ns)

        self._due.append((time.monotonic() + PAUSE_TICKS * TICK_S, wake))
        return member.run.name

    # The end

    def _end_all(self) -> None:
        for member in self._members.values():
            self._leave(member)
        deadline = time.monotonic() + STOP_S_MAX
        self._look_until(deadline, self._has_everybody_ended)
        for member in self._everybody:
            if member.process.is_running:  # the oracle sees that it has no code
                member.process.kill()
                member.run.ended_ns = time.monotonic_ns()
        self._look_until(0, lambda: True)

    def _has_everybody_ended(self) -> bool:
        return not any(member.process.is_running for member in self._everybody)

    def _note_end(self, member: Member) -> None:
        run = member.run
        run.code, run.ended_ns = member.process.code, time.monotonic_ns()
        if run.killed_ns > run.ended_ns and run.code:
            run.output = member.process.output()[-2_000:]

    def _collect(self) -> None:
        history = self.history
        history.commits = self._cluster.commits(self._group)
        for commit in history.commits:
            history.final[commit.partition] = commit
        dead_letters = read(self._cluster.settings, f"{self._topic}.dlq")
        history.dead_letters = [int(value) for value in dead_letters]
