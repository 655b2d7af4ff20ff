"""A simulated node's process: the replicas it hosts, its session, its links."""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tests.cluster.simulation.topics.caretaker import Caretaker
from tests.cluster.simulation.topics.hosted import Answered, Hosted
from tests.cluster.simulation.topics.links import End
from tests.cluster.simulation.topics.machine import Machine
from tests.cluster.simulation.topics.session import Session
from waterclock.cluster.coordinator.errors import RevisionWentBack
from waterclock.cluster.coordinator.records import PartitionRecord
from waterclock.cluster.coordinator.requests import Revision
from waterclock.cluster.replication.log_view import ReplicaId
from waterclock.cluster.replication.messages import Message, decode, encode
from waterclock.model.errors import FrameDamaged, PartitionFaulty, StorageError
from waterclock.model.ids import Epoch
from waterclock.model.message import Acks
from waterclock.storage.promises import KeptPromise, Promises

if TYPE_CHECKING:
    from tests.cluster.simulation.topics.world import World

TIMER_MS = 25
PLACING_MS = 300
Step = Callable[[], None]


class Process:
    """One run of a node."""

    def __init__(self, world: "World", machine: Machine, number: int) -> None:
        self.world = world
        self.machine = machine
        self.name = machine.name
        self.disk_id = machine.disk_id
        self.is_gone = False
        self.is_paused = False
        self.replicas: dict[bytes, Hosted] = {}
        self.faulty: set[bytes] = set()
        """Logs that could not be opened."""
        self._peers: dict[str, str] = {}
        """The replica ids of the nodes it is linked with."""
        self._held: deque[Step] = deque()
        self._saving: dict[bytes, Epoch] = {}
        self.promises = Promises(machine.own, new_disk_id=bytes.fromhex(machine.disk_id))
        self.session = Session(world.store, self, f"{self.name}#{number}")
        self.caretaker = Caretaker(self)
        self.soon(TIMER_MS, self._fire)
        self.soon(PLACING_MS, self._place)
        if world.shape.clean_ms:
            self.soon(world.shape.clean_ms, self._clean)

    def __repr__(self) -> str:
        state = "gone" if self.is_gone else "paused" if self.is_paused else "up"
        return f"<Process {self.name} {state}>"

    # Time

    @property
    def now_ms(self) -> int:
        return self.world.timeline.now_ms

    @property
    def is_running(self) -> bool:
        return not self.is_gone and not self.is_paused

    def soon(self, delay_ms: int, act: Step) -> None:
        """Have something done while the process is there; later, if it is stopped then."""
        self.world.timeline.after(delay_ms, lambda: self.handle(act))

    def handle(self, act: Step) -> None:
        """Do something now, or when the process goes on; a failed disk ends it."""
        if self.is_gone:
            return
        if self.is_paused:
            self._held.append(act)
            return
        try:
            act()
        except FrameDamaged as error:
            self.world.faulty(self.name, str(error))
            for hosted in self.replicas.values():
                hosted.tell_faults()
        except StorageError as error:
            if self.is_gone:
                return
            self.world.failed(self, error)

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        held, self._held = self._held, deque()
        for act in held:
            self.handle(act)
        self.world.network.resumed(self)

    def end(self) -> None:
        """Stop without a word."""
        self.is_gone = True
        self.session.end()
        self.world.network.ended(self)
        for hosted in self.replicas.values():
            hosted.fail_waiting()

    def flush_delay_ms(self) -> int:
        return self.machine.rng.randint(*self.machine.flush_ms)

    # Replicas

    def record_changed(
        self, log_id: bytes, record: PartitionRecord | None, revision: Revision
    ) -> None:
        """Open the replica if the record names this one, and tell it."""
        hosted = self.replicas.get(log_id)
        me = f"{self.name}:{self.disk_id}"
        if hosted is None and log_id not in self.faulty:
            if record is None or me not in (*record.replicas, *record.learners):
                return
            try:
                hosted = self.replicas[log_id] = Hosted(self, log_id, votes=me in record.replicas)
            except PartitionFaulty as error:
                self.world.faulty(self.name, str(error))
                self.faulty.add(log_id)
                return
            for peer in self._peers.values():
                hosted.tell(hosted.core.link_up(ReplicaId(peer), self.now_ms))
            hosted.tell(hosted.core.alive_changed(self.session.view.alive, self.now_ms))
        if hosted is not None:
            hosted.tell(hosted.core.record_changed(record, revision, self.now_ms))

    def alive_changed(self, alive: frozenset[ReplicaId]) -> None:
        for hosted in self.replicas.values():
            hosted.tell(hosted.core.alive_changed(alive, self.now_ms))

    def distrusts(self, error: RevisionWentBack) -> None:
        self.world.problems.append(f"{self.name}: {error}")

    def save_promise(self, hosted: Hosted, promise: KeptPromise) -> None:
        """Make a promise durable, with a delay; then tell the replica."""

        def save() -> None:
            self.promises.save({hosted.log_id: promise})
            hosted.promise_saved(promise.epoch)

        self.soon(self.flush_delay_ms(), save)

    def _fire(self) -> None:
        self.soon(TIMER_MS, self._fire)
        for hosted in self.replicas.values():
            hosted.fire_due()

    def _place(self) -> None:
        self.soon(PLACING_MS, self._place)
        self.caretaker.look()

    def _clean(self) -> None:
        self.soon(self.world.shape.clean_ms, self._clean)
        if self.replicas:
            self.machine.rng.choice(list(self.replicas.values())).clean()

    # Links

    def send(self, to: ReplicaId, message: Message) -> None:
        """Send to a replica, if its node is linked and has its disk."""
        node = to.rpartition(":")[0]
        if self._peers.get(node) == to:
            sender = f"{self.name}:{self.disk_id}"
            self.world.network.send(self, node, (sender, b"".join(encode(message))))

    @property
    def linked(self) -> frozenset[ReplicaId]:
        """The replicas with whose nodes there is a connection."""
        return frozenset(map(ReplicaId, self._peers.values()))

    def link_up(self, peer: End) -> None:
        assert isinstance(peer, Process)
        self._peers[peer.name] = f"{peer.name}:{peer.disk_id}"
        self._tell_all(lambda hosted: hosted.core.link_up, peer)

    def link_down(self, peer: End, silent_ms: int) -> None:
        assert isinstance(peer, Process)
        if self._peers.pop(peer.name, None) is not None:
            down = partial(partial, silent_ms=silent_ms)
            self._tell_all(lambda hosted: down(hosted.core.link_down), peer)

    def refused(self, peer: str) -> None:
        """A node's process is not there: all its replicas are gone."""

        def tell() -> None:
            for hosted in self.replicas.values():
                gone = f"{peer}:{self.world.machines[peer].disk_id}"
                hosted.tell(hosted.core.gone(ReplicaId(gone), self.now_ms))

        self.handle(tell)

    def _tell_all(self, event: Callable[[Hosted], Callable[..., list]], peer: "Process") -> None:  # type: ignore[type-arg]
        replica = ReplicaId(f"{peer.name}:{peer.disk_id}")

        def tell() -> None:
            for hosted in self.replicas.values():
                hosted.tell(event(hosted)(replica, self.now_ms))

        self.handle(tell)

    def arrived(self, peer: End, message: object) -> None:
        assert isinstance(message, tuple)
        sender, data = message
        decoded = decode(data)
        hosted = self.replicas.get(decoded.log_id)
        if hosted is not None:
            self.handle(partial(hosted.received, ReplicaId(sender), decoded))

    # Clients

    def publish(
        self,
        log_id: bytes,
        message: str,
        due_ms: int | None,
        answered: Answered,
        *,
        acks: Acks = "quorum",
    ) -> None:
        hosted = self.replicas.get(log_id)
        if hosted is None:
            answered("refused", None)
        else:
            hosted.publish(message, due_ms, answered, acks=acks)

    def change(self, log_id: bytes, offset: int, due_ms: int | None, answered: Answered) -> None:
        hosted = self.replicas.get(log_id)
        if hosted is None:
            answered("refused", None)
        else:
            hosted.change(offset, due_ms, answered)
