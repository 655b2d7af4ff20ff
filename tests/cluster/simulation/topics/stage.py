"""A simulated cluster to which nothing happens by chance: a schedule says what, and when."""

from collections.abc import Callable

from msgspec.structs import replace

from tests.cluster.history.events import Published
from tests.cluster.simulation.topics.hosted import Answer, Hosted
from tests.cluster.simulation.topics.process import Process
from tests.cluster.simulation.topics.session import KEYS
from tests.cluster.simulation.topics.world import Shape, World
from waterclock.cluster.coordinator.records import PartitionRecord, decode_record
from waterclock.cluster.coordinator.requests import one_key
from waterclock.cluster.coordinator.store import Store
from waterclock.cluster.replication.messages import Frames, decode

WAIT_MS = 15_000


class Stage:
    """A world with one partition in which somebody leads, and what can be done to it."""

    def __init__(self, seed: int, shape: Shape) -> None:
        self.world = World(seed, shape)
        self.log_id = self.world.log_ids[0]
        self._sent: dict[str, Published] = {}
        self._cut: dict[str, str] = {}
        self.leader = self.led()

    def __repr__(self) -> str:
        return f"<Stage of seed {self.world.seed} at {self.world.timeline.now_ms} ms>"

    # Time

    def run(self, ms: int) -> None:
        """Let time pass."""
        self.world.timeline.run(self.world.timeline.now_ms + ms)

    def until(self, claim: Callable[[], bool]) -> None:
        """Let time pass until something is so."""
        timeline = self.world.timeline
        end_ms = timeline.now_ms + WAIT_MS
        while not claim():
            assert timeline.now_ms < end_ms, f"{self}: it never comes"
            timeline.run(timeline.now_ms + 1)

    def led(self) -> str:
        """Let time pass until somebody leads; return the name of its node."""
        found: list[Hosted] = []

        def is_led() -> bool:
            leader = self.world.leader(self.log_id)
            found[:] = [leader] if leader is not None and leader.is_led else []
            return bool(found)

        self.until(is_led)
        return found[0].process.name

    # What there is

    @property
    def others(self) -> list[str]:
        """Those that have a replica and did not lead at first."""
        record = self.record
        names = [each.partition(":")[0] for each in record.replicas]
        return [name for name in names if name != self.leader]

    @property
    def record(self) -> PartitionRecord:
        """The record of the partition, as the coordinator has it now."""
        key = KEYS.partition(self.log_id)
        [item] = self.world.store.fake.store.read(one_key(key)).items
        return decode_record(PartitionRecord, item.value, key=key)

    def process(self, name: str) -> Process:
        found = self.world.processes[name]
        assert found is not None, name
        return found

    def hosted(self, name: str) -> Hosted:
        return self.process(name).replicas[self.log_id]

    def end_of(self, name: str) -> int:
        """Return the end of what a node has flushed."""
        return int(self.hosted(name).log.flushed_end)

    # What is done to it

    def publish(self, name: str, message: str) -> list[Answer]:
        """Send a message to a node, once; return what it will answer."""
        world, process = self.world, self.process(name)
        now_ms = world.timeline.now_ms
        sent = Published(message, world.partition_names[self.log_id], now_ms, now_ms, "unknown")
        self._sent.setdefault(message, sent)
        answers: list[Answer] = []

        def answered(answer: Answer, offset: int | None) -> None:
            answers.append(answer)
            if answer == "acked":
                self._sent[message] = replace(
                    sent, until_ms=world.timeline.now_ms, outcome="acked", offset=offset
                )

        process.handle(lambda: process.publish(self.log_id, message, None, answered))
        return answers

    def store(self, *messages: str) -> None:
        """Have messages acknowledged, and copied to all who are there."""
        for message in messages:
            answers = self.publish(self.leader, message)
            self.until(lambda answers=answers: answers == ["acked"])  # type: ignore[misc]
        end = self.end_of(self.leader)
        names = [self.leader, *self.others]
        self.until(lambda: all(self.hosted(name).committed_end == end for name in names))

    def start(self, name: str) -> None:
        """Start a node, and let time pass until it has opened its replica."""
        self.world.start(name)
        self.until(lambda: self.log_id in self.process(name).replicas)

    def slow_disk(self, name: str, flush_ms: tuple[int, int] = (WAIT_MS, WAIT_MS)) -> None:
        """Have each flush of a node take so long; at first, longer than anybody waits."""
        self.world.machines[name].flush_ms = flush_ms

    def part(self, name: str, *others: str) -> None:
        """Let nothing pass between a node and others."""
        for other in others:
            self.world.network.block(name, other)
            self.world.network.block(other, name)

    def join(self, name: str, *others: str) -> None:
        """Let all pass again."""
        for other in others:
            self.world.network.unblock(name, other)
            self.world.network.unblock(other, name)

    def part_from_etcd(self, name: str) -> None:
        self._cut[name] = self.process(name).session.client
        self.world.store.pass_time()
        self.world.store.fake.cut(self._cut[name])

    def join_etcd(self, name: str) -> None:
        self.world.store.pass_time()
        self.world.store.fake.heal(self._cut.pop(name))
        self.world.store.wake()

    def restore_etcd(self, copy: Store) -> None:
        """Put an older copy in the place of what the coordinator has."""
        self.world.store.pass_time()
        self.world.store.fake.restore(copy)
        self.world.store.wake()

    def hold_frames(self, source: str, *, to: str = "", above: int = 0) -> None:
        """Have frames that a node sends on their way until others are held: those to one node, and
        those that begin at an offset or behind it."""

        def holds(sender: str, target: str, message: object) -> bool:
            assert isinstance(message, tuple)
            if sender != source or to not in ("", target):
                return False
            sent = decode(message[1])
            return isinstance(sent, Frames) and bool(len(sent.data)) and sent.base_offset >= above

        self.world.network.hold(holds)

    def hold_nothing(self) -> None:
        self.world.network.hold(lambda source, target, message: False)

    def judge(self) -> World:
        """Mend what is left, let all come to rest, and judge."""
        self.hold_nothing()
        for sent in self._sent.values():
            self.world.note(sent)
        self.world.end()
        return self.world
