"""A simulated cluster with replicated topics: machines, processes, coordinator, clients, faults.

All from one seed, on virtual time. A seed has three to five nodes with one to three partitions of
one to five replicas, or six partitions and a node that joins; a few publishers and two readers for
each partition, an operator, and eight to sixteen seconds with the kinds of faults that it chose,
mostly several at once (see `faults`). Replicas are placed by the node's own rules: lost ones are
replaced, new nodes are given something. Then everything is mended, and whatever was asked must be
answered, all that is due must have fired, all replicas must have the same, and nothing moves.
"""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import NamedTuple

from tests.cluster.history.checkers import Bounds, counts_of, judge, run_of
from tests.cluster.history.events import Ended, Event, Healed
from tests.cluster.simulation.topics.clients import Publisher, Reader, poll
from tests.cluster.simulation.topics.faults import Faults
from tests.cluster.simulation.topics.hosted import Hosted
from tests.cluster.simulation.topics.links import Network
from tests.cluster.simulation.topics.machine import Machine
from tests.cluster.simulation.topics.people import Operator
from tests.cluster.simulation.topics.process import Process
from tests.cluster.simulation.topics.session import KEYS, Store
from tests.cluster.simulation.topics.timeline import Timeline
from tests.kit.verdict import Findings
from waterclock.cluster.coordinator.records import PartitionRecord, encode_record
from waterclock.cluster.coordinator.requests import Put, Txn
from waterclock.model.errors import StorageFailed, WaterclockError

HEAL_MS = 12_000
"""After so long without faults nothing may be left over."""


class Shape(NamedTuple):
    """How large a cluster is, and what it is set to do."""

    nodes: int = 3
    partitions: int = 1
    copies: int = 3
    is_joined: bool = False
    """The last node joins the others later."""
    publishers: int = 0
    clean_ms: int = 0
    """How often retention takes what is old of one of a node's logs; 0: it takes nothing."""
    replace_after_ms: int = 0
    """A replica that is away for so long is replaced; 0: none is."""
    frames_max: int = 100
    """Frames in a message."""
    is_busy: bool = False
    """An operator moves leaders and replicas about."""


def drawn(rng: Random) -> Shape:
    """Return what a seed chooses."""
    nodes = rng.choice((3, 3, 3, 4, 5))
    # So much more than the new node has is moved there; else all stays.
    is_joined = nodes == 4 and rng.random() < 0.3
    return Shape(
        nodes=nodes,
        partitions=6 if is_joined else rng.randint(1, 3),
        copies=3 if is_joined else rng.choice((3, 3, 3, 3, 2, min(5, nodes), 1)),
        is_joined=is_joined,
        publishers=rng.randint(2, 4),
        clean_ms=rng.choice((0, 0, 250, 1_000)),
        replace_after_ms=rng.choice((0, 800, 2_500, 5_000)),
        frames_max=rng.choice((1, 2, 100, 100)),
        is_busy=rng.random() < 0.4,
    )


class World:
    """One cluster, and all that happens to it."""

    def __init__(self, seed: int, shape: Shape | None = None) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.timeline = Timeline()
        self.events: list[Event] = []
        self.story: list[str] = []
        self.problems: list[str] = []
        self.counts: Counter[str] = Counter()
        self.findings = Findings()
        self.error: Exception | None = None
        self.is_loaded = True
        """Publishers send."""
        rng = self.rng
        self.shape = shape or drawn(rng)
        self.names = [f"n{number}" for number in range(1, self.shape.nodes + 1)]
        self.lost: set[str] = set()
        """Nodes that never come back."""
        self.bereft: set[str] = set()
        """Nodes of which the folder of a log was removed: they say so."""
        self.network = Network(self.timeline, Random(rng.random()), self.names)
        self.store = Store(self.timeline, Random(rng.random()))
        self._disks = 0
        self._runs = 0
        self.machines = {
            name: Machine(name, self.timeline, Random(rng.random()), self._new_disk())
            for name in self.names
        }
        self.processes: dict[str, Process | None] = dict.fromkeys(self.names)
        self.log_ids = [bytes([number]) * 16 for number in range(self.shape.partitions)]
        self.partition_names = {each: f"topic/{each[0]}" for each in self.log_ids}
        self._begin()
        self.publishers = [
            Publisher(self, f"p{n}", Random(rng.random())) for n in range(self.shape.publishers)
        ]
        for log_id in self.log_ids:
            for n in range(2):
                Reader(self, f"r{log_id[0]}-{n}", log_id, Random(rng.random()))
        self.operator = Operator(self, Random(rng.random()), is_busy=self.shape.is_busy)
        self.faults = Faults(self, Random(rng.random()))

    def _begin(self) -> None:
        """Place the partitions, and start the nodes that are there at first."""
        first = self.names[:-1] if self.shape.is_joined else self.names
        for log_id in self.log_ids:
            names = self.rng.sample(first, self.shape.copies)
            record = PartitionRecord(
                epoch=0, state="vacant", replicas=tuple(map(self.replica, names))
            )
            self.store.fake.store.write(
                Txn(success=(Put(KEYS.partition(log_id), encode_record(record)),))
            )
        for name in self.names:
            self.network.ends[name] = None
            if name in first:
                self.start(name)
            else:
                self.network.off.add(name)
                self.timeline.after(self.rng.randint(500, 8_000), partial(self.start, name))

    def _new_disk(self) -> str:
        self._disks += 1
        return f"{self._disks:016x}"

    # The story

    def note(self, event: Event) -> None:
        """Keep an event for the checkers."""
        self.events.append(event)

    def tell(self, text: str) -> None:
        """Keep a line for whoever reads the story."""
        self.story.append(f"{self.timeline.now_ms:6} {text}")

    # Nodes

    def replica(self, name: str) -> str:
        return f"{name}:{self.machines[name].disk_id}"

    def start(self, name: str) -> None:
        """Start the process of a node, if it does not run."""
        if self.processes[name] is not None or name in self.lost:
            return
        self.network.off.discard(name)
        self._runs += 1
        try:
            process = Process(self, self.machines[name], self._runs)
        except StorageFailed as error:
            self.machines[name].killed()
            self._start_again(name, error)
            return
        self.processes[name] = self.network.ends[name] = process

    def kill(self, name: str) -> None:
        """End a process; its machine goes on."""
        process = self.processes[name]
        if process is not None:
            self.processes[name] = self.network.ends[name] = None
            process.end()
            self.machines[name].killed()

    def cut_power(self, name: str) -> None:
        """End a machine; what its disk did not sync is lost."""
        process = self.processes[name]
        self.network.off.add(name)
        if process is not None:
            self.processes[name] = self.network.ends[name] = None
            process.end()
        self.machines[name].power_cut()

    def wipe(self, name: str) -> None:
        """End a process and put another disk into its machine."""
        self.kill(name)
        self.machines[name].wipe(self._new_disk())

    def remove_log(self, name: str, log_id: bytes) -> None:
        """End a process and remove what it has of a log, but not what it has promised."""
        self.kill(name)
        self.bereft.add(name)
        self.machines[name].remove_log(log_id)
        self.counts["logs removed"] += 1

    def lose(self, name: str) -> None:
        """End a machine for good."""
        self.cut_power(name)
        self.lost.add(name)

    def failed(self, process: Process, error: WaterclockError) -> None:
        """A process met an error of its disk: it ends, and is started again."""
        self.kill(process.name)
        self._start_again(process.name, error)

    def _start_again(self, name: str, error: WaterclockError) -> None:
        self.tell(f"{name} ends: {error}")
        self.counts["processes ended by their disk"] += 1
        self.timeline.after(self.rng.randint(100, 1_500), lambda: self.start(name))

    def faulty(self, name: str, problem: str) -> None:
        """A log was found damaged: only a disk that rots does that."""
        self.tell(f"{name} is faulty: {problem}")
        if name != self.faults.rotten and name not in self.bereft:
            self.findings.add("faulty log", f"{name}: {problem}")

    # Replica sets

    def leader(self, log_id: bytes) -> Hosted | None:
        """Return the replica that leads and takes publishes, of the latest epoch if two do."""
        found = [
            process.replicas[log_id]
            for process in self.processes.values()
            if process is not None and process.is_running and log_id in process.replicas
        ]
        return max((each for each in found if each.is_open), key=_epoch_of, default=None)

    def check_on_all(self, leader: Hosted, end: int) -> None:
        """See that every replica which runs has flushed what is acknowledged for all."""
        record = leader.core.record
        assert record is not None
        for process in self.processes.values():
            other = None if process is None else process.replicas.get(leader.log_id)
            if other is None or other.me not in record.replicas or other.log.is_faulty:
                continue
            if other.log.flushed_end < end:
                self.findings.add("not on all", f"{leader.partition} to {end}: {other!r}")

    # The run

    def run(self) -> Findings:
        """Play it all; return what was found."""
        faults_ms = self.rng.randint(8_000, 16_000)
        self.faults.begin(faults_ms)
        self.timeline.run(faults_ms)
        self.end()
        return self.findings

    def end(self) -> None:
        """Mend everything, let all come to rest, and judge."""
        self.faults.heal()
        self.is_loaded = False
        self.operator.rest()
        healed_ms = self.timeline.now_ms
        self.note(Healed(healed_ms))
        self.tell("healed")
        left = self._left_over()
        while left and self.timeline.now_ms < healed_ms + HEAL_MS:
            self.timeline.run(self.timeline.now_ms + 250)
            left = self._left_over()
        for text in left:
            self.findings.add("stuck", text)
        self._finish()

    def _left_over(self) -> list[str]:
        """Return what has not come to its end."""
        left = [f"unanswered: {each}" for p in self.publishers for each in p.unanswered]
        for log_id in self.log_ids:
            leader = self.leader(log_id)
            name = self.partition_names[log_id]
            if leader is None or not leader.is_led:
                left.append(f"{name} has no leader: {self._replicas(log_id)}")
                continue
            end = leader.log.store.end
            if len(leader.log.store.open_scheduled()[0]):
                left.append(f"{name} has timers")
            record = leader.process.session.view.partitions[log_id].record
            alive = {self.replica(each) for each in self.names if each not in self.lost}
            is_placed = len(record.replicas) == self.shape.copies and not record.learners
            if not is_placed or not alive.issuperset(record.replicas):
                left.append(f"{name} is on {record}")
            elif leader.process.caretaker.is_busy:
                left.append(f"the places of what {leader.process} leads are changed")
            for process in self.processes.values():
                hosted = None if process is None else process.replicas.get(log_id)
                is_due = process is not None and self.replica(process.name) in record.replicas
                if is_due and (hosted is None or hosted.committed_end != end):
                    left.append(f"{process} lags behind {leader}: {hosted}")
        return left

    def _replicas(self, log_id: bytes) -> list[Hosted | None]:
        return [p.replicas.get(log_id) for p in self.processes.values() if p is not None]

    def _finish(self) -> None:
        """Read everything everywhere, and judge."""
        for log_id in self.log_ids:
            for process in self.processes.values():
                hosted = None if process is None else process.replicas.get(log_id)
                if hosted is not None and hosted.is_readable:
                    poll(self, f"last of {hosted.me}", hosted, 0)
        for publisher in self.publishers:
            for each in publisher.unanswered:
                self.note(each)
        self.note(Ended(self.timeline.now_ms))
        bounds = Bounds(clock_ms=self.faults.clock_error_max_ms, heal_ms=HEAL_MS)
        found = judge(self.events, bounds)
        for kind, examples in found.examples.items():
            for example in examples:
                self.findings.add(kind, example)
        for problem in self.problems:
            self.findings.add("problem", problem)
        self.counts.update(counts_of(run_of(self.events)))
        self.counts["links broken"] = self.network.breaks


def _epoch_of(hosted: Hosted) -> int:
    return hosted.core.epoch


def played(seed: int, kinds: Sequence[str] = ()) -> World:
    """Play one seed, perhaps with these faults and not those that it chooses; an error of the code
    under test is a finding, too."""
    world = World(seed)
    if kinds:
        world.faults.do_only(*kinds)
    try:
        world.run()
    except Exception as error:  # whatever it is, the seed must be told
        world.findings.add("error", f"{type(error).__name__}: {error}")
        world.error = error
    return world
