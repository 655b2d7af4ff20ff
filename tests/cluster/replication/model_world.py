"""A small world for replicas: logs in memory, connections in order that break, a record store.

Everything that happens is a step, taken in order (`run`) or in any order a seed chooses
(`test_schedules.py`). The world judges as it goes: what is committed stays and is the same
everywhere, an epoch has one leader which has all that was committed, and who is answered finds the
own message at the offset.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, assert_never

import msgspec

from tests.cluster.replication.model_log import Entry, ModelLog, decoded
from waterclock.cluster.coordinator.records import PartitionRecord
from waterclock.cluster.coordinator.requests import Revision
from waterclock.cluster.replication.effects import (
    Append,
    BeginEpoch,
    CommitTo,
    Effect,
    Install,
    Led,
    Lost,
    Opened,
    Paused,
    Problem,
    ReadRecord,
    Replace,
    SavePromise,
    Send,
    SteppedDown,
    Stream,
    Succeeded,
    Swap,
    Swapped,
    Truncate,
    Unknown,
)
from waterclock.cluster.replication.log_view import ReplicaId
from waterclock.cluster.replication.messages import Frames, Message, decode, encode
from waterclock.cluster.replication.replica import Replica
from waterclock.model.ids import Epoch, Offset

LOG_ID = bytes(range(16))
LEASE_MS = 3_000


class Step(NamedTuple):
    """Something a shell or the coordinator has still to do for a replica."""

    kind: str
    owner: str
    run: int
    perform: Callable[[], None]


class Node:
    """A replica, its disk, and the process it is in."""

    def __init__(self, name: str, log: ModelLog) -> None:
        self.name = name
        self.log = log
        self.promised: tuple[int, str] = (0, "")
        self.run = 0
        self.is_up = False
        self.is_paused = False
        self.replica: Replica | None = None
        self.inbox: deque[tuple[str, Callable[[Replica], list[Effect]]]] = deque()
        """What it will hear of, in this order, when it goes on."""
        self.waiting: dict[int, str] = {}
        self.problems: list[str] = []
        self.effects: list[Effect] = []
        self.gone_ms = 0
        self.copy: list[Entry] = []
        """What another has and cannot stream, beside the log."""
        self.is_full = False
        """There is no room to put that in the place of the log."""


class World:
    """All replicas of one partition, and what is between them."""

    def __init__(self, names: str = "abc", *, learners: str = "", others: str = "") -> None:
        self.now_ms = 10_000
        self.record: PartitionRecord | None = PartitionRecord(
            epoch=0, state="vacant", replicas=tuple(names), learners=tuple(learners)
        )
        self.revision = Revision(2)
        self.nodes = {each: Node(each, ModelLog()) for each in names + learners + others}
        self.steps: deque[Step] = deque()
        self.wires: dict[tuple[str, str], deque[bytes]] = {}
        self.former: list[tuple[str, str, bytes]] = []
        """What was under way when a connection broke: it is lost, or comes late."""
        self.cuts: set[frozenset[str]] = set()
        self.links: set[frozenset[str]] = set()
        self.watches: dict[str, deque[tuple[PartitionRecord | None, Revision]]] = {}
        self.committed: list[Entry] = []
        self.leaders: dict[int, str] = {}
        self.acked: dict[str, int] = {}
        self.frames_max = 100
        self.unknown: Callable[[], bool] = lambda: False
        self.held: Callable[[Step], bool] = lambda step: False
        self.lost: Callable[[str, str, Message], bool] = lambda sender, to, message: False
        self.trace: list[str] = []

    # Processes

    def start(self, name: str) -> None:
        node = self.nodes[name]
        assert not node.is_up
        node.run += 1
        node.is_up = True
        node.log.crash()
        epoch, candidate = node.promised
        node.replica = Replica(
            ReplicaId(name), LOG_ID, node.log, promised=Epoch(epoch), candidate=candidate
        )
        self.watches[name] = deque()
        self.tell(
            name, "record", lambda it: it.record_changed(self.record, self.revision, self.now_ms)
        )
        self.tell_alive()
        for other in self.nodes:
            self.link(name, other)

    def start_all(self) -> None:
        for name, node in self.nodes.items():
            if not node.is_up:
                self.start(name)

    def crash(self, name: str) -> None:
        node = self.nodes[name]
        self.trace.append(f"{name} crashes")
        node.is_up = node.is_paused = False
        node.replica = None
        node.waiting.clear()
        node.inbox.clear()
        node.gone_ms = self.now_ms
        for other in self.nodes:
            self.unlink(name, other)
            if other != name and self.nodes[other].is_up:
                self.tell(other, "gone", lambda it: it.gone(ReplicaId(name), self.now_ms))

    def pause(self, name: str) -> None:
        self.nodes[name].is_paused = self.nodes[name].is_up

    def resume(self, name: str) -> None:
        node = self.nodes[name]
        node.is_paused = False
        while node.inbox:
            self.tell(name, *node.inbox.popleft())

    def tell_alive(self) -> None:
        """Tell everybody who has a lease."""
        alive = frozenset(
            ReplicaId(each.name)
            for each in self.nodes.values()
            if each.is_up or self.now_ms < each.gone_ms + LEASE_MS
        )
        for name, node in self.nodes.items():
            if node.is_up:
                self.tell(name, "alive", lambda it: it.alive_changed(alive, self.now_ms))

    # Links

    def link(self, one: str, other: str) -> None:
        pair = frozenset((one, other))
        ups = all(self.nodes[each].is_up for each in pair)
        if one == other or not ups or pair in self.cuts or pair in self.links:
            return
        self.links.add(pair)
        self.wires[one, other], self.wires[other, one] = deque(), deque()
        self.tell(one, "up", lambda it: it.link_up(ReplicaId(other), self.now_ms))
        self.tell(other, "up", lambda it: it.link_up(ReplicaId(one), self.now_ms))

    def unlink(self, one: str, other: str) -> None:
        pair = frozenset((one, other))
        if pair not in self.links:
            return
        self.links.discard(pair)
        for ends in ((one, other), (other, one)):
            self.former += [(*ends, each) for each in self.wires.pop(ends)]
        for each, peer in ((one, other), (other, one)):
            if self.nodes[each].is_up:
                self._tell_down(each, ReplicaId(peer))

    def _tell_down(self, node: str, peer: ReplicaId) -> None:
        self.tell(node, "down", lambda it: it.link_down(peer, self.now_ms))

    def cut(self, one: str, other: str) -> None:
        self.cuts.add(frozenset((one, other)))
        self.unlink(one, other)

    def heal(self) -> None:
        self.cuts.clear()
        for one in self.nodes:
            for other in self.nodes:
                self.link(one, other)

    # Events and effects

    def tell(self, name: str, what: str, event: Callable[[Replica], list[Effect]]) -> None:
        """Let a replica know of something, and do what it says."""
        node = self.nodes[name]
        if node.replica is None:
            return
        if node.is_paused:
            node.inbox.append((what, event))
            return
        effects = event(node.replica)
        node.replica.check_invariants()
        self.trace.append(f"{self.now_ms} {name} {what}: {effects}")
        for effect in effects:
            node.effects.append(effect)
            self.perform(node, effect)

    def later(
        self, kind: str, owner: str, perform: Callable[[], None], *, run: int | None = None
    ) -> None:
        """Have something done later, for the process that is there now, or of that run."""
        self.steps.append(Step(kind, owner, run or self.nodes[owner].run, perform))

    def perform(self, node: Node, effect: Effect) -> None:
        name, now_ms = node.name, self.now_ms
        replica = node.replica
        assert replica is not None
        match effect:
            case Send(to, message):
                self.send(name, to, message)
            case Stream(_, offset, _) if offset < node.log.stream_start:
                self.tell(name, "overtaken", lambda it: it.overtaken(effect, now_ms))
            case Stream(to, offset, _):
                data, end = node.log.encoded(offset, self.frames_max)
                commit_end = replica.committed_end
                self.send(name, to, Frames(LOG_ID, replica.epoch, offset, commit_end, data))
                self.tell(
                    name, "streamed", lambda it: it.streamed(effect, Offset(end), len(data), now_ms)
                )
            case SavePromise():
                self.later("promise", name, lambda: self.save_promise(node, effect))
            case Swap():
                run = node.run
                self.later("swap", name, lambda: self.swap(name, effect, run))
            case ReadRecord():
                self.later("read", name, lambda: self.read(name))
            case Append(data, _):
                node.log.append(decoded(data))
                self.tell(name, "appended", lambda it: it.appended(now_ms))
                self.later("flush", name, lambda: self.flush(node))
            case Truncate(end):
                assert not node.waiting, "the false ack"
                self.later("truncate", name, lambda: self.truncate(node, end))
            case Install(source):
                self.later("install", name, lambda: self.install(node, source))
            case Replace():
                self.later("replace", name, lambda: self.replace(node))
            case BeginEpoch(epoch):
                self.later("begin", name, lambda: self.begin(node, epoch))
            case CommitTo(end):
                self.commit(node, end)
            case SteppedDown():
                node.waiting.clear()
            case Paused(_, fails_waiting):
                if fails_waiting:
                    node.waiting.clear()
            case Problem(text):
                node.problems.append(text)
            case Opened() | Led():
                pass
            case _:
                assert_never(effect)

    def send(self, sender: str, to: str, message: Message) -> None:
        if frozenset((sender, to)) in self.links and not self.lost(sender, to, message):
            self.wires[sender, to].append(b"".join(encode(message)))

    def deliver(self, sender: str, to: str) -> None:
        self.hand(sender, to, self.wires[sender, to].popleft())

    def hand(self, sender: str, to: str, data: bytes) -> None:
        message = decode(data)
        what = f"<- {sender} {message}"
        self.tell(to, what, lambda it: it.received(ReplicaId(sender), message, self.now_ms))

    # Disks

    def save_promise(self, node: Node, promise: SavePromise) -> None:
        node.promised = max(node.promised, promise)
        self.tell(node.name, "saved", lambda it: it.promise_saved(promise.epoch, self.now_ms))

    def flush(self, node: Node) -> None:
        node.log.flush()
        self.tell(node.name, "flushed", lambda it: it.flushed(self.now_ms))

    def truncate(self, node: Node, end: int) -> None:
        assert end >= min(len(self.committed), end), "what is committed is cut"
        node.log.truncate(end)
        self.tell(node.name, "reopened", lambda it: it.reopened(node.log, self.now_ms))

    def install(self, node: Node, source: str) -> None:
        """Copy what the leader cannot stream any more, if it can be reached and still leads."""
        theirs, link = self.nodes[source], frozenset((node.name, source))
        leads = theirs.is_up and theirs.replica is not None and theirs.replica.role == "leader"
        has_more = theirs.log.stream_start > node.log.end or node.log.is_faulty
        replica = ReplicaId(source)
        if link not in self.links or theirs.is_paused or not leads or not has_more:
            self.tell(node.name, "failed", lambda it: it.copy_failed(replica, self.now_ms))
            return
        node.copy = theirs.log.entries[: theirs.log.stream_start]
        self.tell(node.name, "copied", lambda it: it.copied(replica, self.now_ms))

    def replace(self, node: Node) -> None:
        if node.is_full:
            self.tell(node.name, "not installed", lambda it: it.install_failed(self.now_ms))
            return
        held = () if node.log.is_faulty else node.log.entries
        assert node.copy[: len(held)] == [*held], "what was flushed is gone"
        node.log = ModelLog(node.copy)
        node.log.stream_start = node.log.end
        self.tell(node.name, "reopened", lambda it: it.reopened(node.log, self.now_ms))

    def begin(self, node: Node, epoch: Epoch) -> None:
        first = self.leaders.setdefault(epoch, node.name)
        assert first == node.name, f"{first} and {node.name} lead under {epoch}"
        kept = node.log.entries[: len(self.committed)]
        assert kept == self.committed, f"leader {node.name} of {epoch} lacks what is committed"
        if node.replica is None or node.replica.epoch != epoch:
            return  # superseded meanwhile
        node.log.append([Entry(epoch)])
        self.tell(node.name, "begun", lambda it: it.appended(self.now_ms))
        self.later("flush", node.name, lambda: self.flush(node))

    def commit(self, node: Node, end: int) -> None:
        assert end <= node.log.end, f"{node.name} commits to {end} of {node.log}"
        shown = node.log.entries[:end]
        known = self.committed[:end]
        assert shown[: len(known)] == known, f"{node.name} committed {shown}, others {known}"
        self.committed += shown[len(self.committed) :]
        for offset in [each for each in node.waiting if each < end]:
            value = node.waiting.pop(offset)
            assert node.log.entries[offset].value == value, f"a false ack of {value}"
            self.acked[value] = offset

    # The coordinator

    def swap(self, name: str, swap: Swap, run: int) -> None:
        outcome: Swapped = Lost(self.record, self.revision)
        if swap.revision == self.revision:
            outcome = Succeeded(self.put(swap.record))
        if self.unknown():
            outcome = Unknown()
        self.later("swapped", name, lambda: self.swapped(name, outcome), run=run)

    def swapped(self, name: str, outcome: Swapped) -> None:
        self.tell(name, f"swapped {outcome}", lambda it: it.swapped(outcome, self.now_ms))

    def put(self, record: PartitionRecord | None) -> Revision:
        if record is not None:
            msgspec.convert(msgspec.to_builtins(record), PartitionRecord)
        self.record, self.revision = record, Revision(self.revision + 1)
        for watch in self.watches.values():
            watch.append((record, self.revision))
        return self.revision

    def read(self, name: str) -> None:
        found = (self.record, self.revision)
        self.later(
            "was read",
            name,
            lambda: self.tell(name, "read", lambda it: it.record_read(*found, self.now_ms)),
        )

    def watch(self, name: str) -> None:
        record, revision = self.watches[name].popleft()
        self.tell(name, "watch", lambda it: it.record_changed(record, revision, self.now_ms))

    # Taking steps in order

    def run(self, steps_max: int = 10_000) -> None:
        """Take every step that is not held, until there is none."""
        for _ in range(steps_max):
            if not self.take():
                return
        raise AssertionError("the world does not come to rest")

    def take(self) -> bool:
        for number, step in enumerate(self.steps):
            if self.is_ready(step):
                del self.steps[number]
                if self.is_current(step):
                    step.perform()
                return True
        for (sender, to), wire in list(self.wires.items()):
            if wire and not self.nodes[to].is_paused and not self.nodes[sender].is_paused:
                self.deliver(sender, to)
                return True
        for name, watch in self.watches.items():
            if watch and self.nodes[name].is_up and not self.nodes[name].is_paused:
                self.watch(name)
                return True
        return False

    def is_ready(self, step: Step) -> bool:
        return not self.nodes[step.owner].is_paused and not self.held(step)

    def is_current(self, step: Step) -> bool:
        # A swap that was sent takes effect whatever becomes of its process.
        node = self.nodes[step.owner]
        return step.kind.endswith("swap") or (node.is_up and node.run == step.run)

    def wait(self, ms: int) -> None:
        """Let time pass, and everything happen meanwhile."""
        until_ms = self.now_ms + ms
        while self.now_ms < until_ms:
            self.run()
            self.now_ms = min([until_ms, *self.deadlines()])
            self.tick()
        self.run()

    def deadlines(self) -> list[int]:
        up = [
            each for each in self.nodes.values() if each.replica is not None and not each.is_paused
        ]
        found = [each.replica.next_deadline() for each in up if each.replica is not None]
        found += [n.gone_ms + LEASE_MS for n in self.nodes.values() if not n.is_up and n.gone_ms]
        return [each for each in found if each is not None and each > self.now_ms]

    def tick(self) -> None:
        for name, node in self.nodes.items():
            if node.replica is None or node.is_paused:
                continue
            deadline_ms = node.replica.next_deadline()
            if deadline_ms is not None and deadline_ms <= self.now_ms:
                self.tell(name, "tick", lambda it: it.tick(self.now_ms))
        if any(node.gone_ms + LEASE_MS == self.now_ms for node in self.nodes.values()):
            self.tell_alive()

    # Clients

    def leader(self) -> Node | None:
        """Return the one that takes publishes, under the greatest epoch."""
        opened = [n for n in self.nodes.values() if n.replica is not None and n.replica.is_open]
        return max(opened, key=lambda n: n.replica.epoch if n.replica else 0, default=None)

    def publish(self, value: str, name: str | None = None) -> None:
        node = self.nodes[name] if name is not None else self.leader()
        assert node is not None
        assert node.replica is not None
        assert node.replica.is_open
        node.waiting[node.log.end] = value
        node.log.append([Entry(node.replica.epoch, value)])
        self.tell(node.name, f"publish {value}", lambda it: it.appended(self.now_ms))
        self.later("flush", node.name, lambda: self.flush(node))

    def logs(self) -> dict[str, str]:
        return {
            name: " ".join(f"{each.epoch}{each.value or '*'}" for each in node.log.entries)
            for name, node in self.nodes.items()
        }
