"""A simulated node looks after the places of what it leads: the node's own `Placing`, on virtual
time and with the simulated replicas."""

from typing import TYPE_CHECKING, NamedTuple, cast

from tests.cluster.simulation.topics.session import KEYS
from waterclock.cluster.coordinator.records import PartitionRecord
from waterclock.cluster.coordinator.requests import Delete, Txn, Unchanged, one_key
from waterclock.cluster.replication import effects as do
from waterclock.cluster.replication.log_view import ReplicaId
from waterclock.cluster.replication.replica import Replica
from waterclock.server.cluster.replication.placing import Placing

if TYPE_CHECKING:
    from tests.cluster.simulation.topics.hosted import Hosted
    from tests.cluster.simulation.topics.process import Process
    from tests.cluster.simulation.topics.session import Session
    from waterclock.server.cluster.replication.replicator import Replicator


class Settings(NamedTuple):
    """Those of a replicator that placing asks for."""

    replace_after_ms: int


class Channels(NamedTuple):
    """Those of a replicator, as placing sees them."""

    up: frozenset[ReplicaId]


class Place:
    """A simulated replica, as placing sees it."""

    is_everywhere = False

    def __init__(self, hosted: "Hosted") -> None:
        self._hosted = hosted
        self.name = hosted.partition
        self.factor = hosted.process.world.shape.copies
        self.is_leading = hosted.is_led
        self.core: Replica = hosted.core
        self.log_id = self.core.log_id

    def caught_up(self, replicas: tuple[str, ...]) -> frozenset[ReplicaId]:
        ends = {ReplicaId(each): self.core.flushed_end_of(ReplicaId(each)) for each in replicas}
        committed = self.core.committed_end
        return frozenset(each for each, end in ends.items() if end is not None and end >= committed)

    def tell(self, effects: list[do.Effect]) -> None:
        world = self._hosted.process.world
        record = self.core.record
        for effect in effects:
            if isinstance(effect, do.Swap) and record is not None:
                world.counts[_change(record, effect.record)] += 1
        self._hosted.tell(effects)


class Caretaker:
    """A node with its replicas, as placing sees it."""

    is_leaving = False

    def __init__(self, process: "Process") -> None:
        self.name = process.name
        self.me = f"{process.name}:{process.disk_id}"
        self.settings = Settings(process.world.shape.replace_after_ms)
        self.is_busy = False
        """A place was changed, or a replica is on its way."""
        self._process = process
        self._placing = Placing(cast("Replicator", self))

    @property
    def session(self) -> "Session":
        return self._process.session

    @property
    def channels(self) -> Channels:
        return Channels(self._process.linked)

    @property
    def hosted(self) -> list[Place]:
        return [Place(each) for each in self._process.replicas.values()]

    def now_ms(self) -> int:
        return self._process.now_ms

    def look(self) -> None:
        """Do the next step for all that this node leads."""
        self.is_busy = self._placing._step_all()
        view = self.session.view
        for log_id in self._placing._moved:
            key = KEYS.move(log_id)
            is_known = Unchanged(key, view.moves[log_id].revision)
            self.session.ask(Txn((is_known,), (Delete(one_key(key)),)), lambda outcome: None)


def _change(before: PartitionRecord, after: PartitionRecord) -> str:
    if len(after.replicas) != len(before.replicas):
        return "voters added" if len(after.replicas) > len(before.replicas) else "voters removed"
    is_more = len(after.learners) > len(before.learners)
    return "learners added" if is_more else "learners removed"
