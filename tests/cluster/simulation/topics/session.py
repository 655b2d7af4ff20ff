"""What a simulated node has to do with the coordinator: its lease, its record, what it watches.

Everything is asked of the real `FakeCoordinator`, which loses answers, is late and goes away. The
session asks again until it has a lease and a watch, and never takes silence for an answer.
"""

from collections.abc import Callable
from random import Random
from typing import Protocol

from tests.cluster.simulation.topics.timeline import Timeline
from waterclock.cluster.coordinator.errors import (
    Compacted,
    CoordinatorUnavailable,
    LeaseNotFound,
    RevisionWentBack,
)
from waterclock.cluster.coordinator.fake import FakeCoordinator
from waterclock.cluster.coordinator.questions import (
    Grant,
    KeepAlive,
    Outcome,
    Question,
    Read,
    Watch,
)
from waterclock.cluster.coordinator.records import (
    Keys,
    NodeRecord,
    PartitionRecord,
    encode_record,
)
from waterclock.cluster.coordinator.requests import (
    Lease,
    LeaseId,
    Put,
    RangeResult,
    Revision,
    Txn,
    WatchBatch,
)
from waterclock.cluster.replication.cluster_view import Changed, ClusterView
from waterclock.cluster.replication.log_view import ReplicaId

KEYS = Keys("sim")
LEASE_S = 3
KEEP_ALIVE_MS = 1_000
AGAIN_MS = 300
Heard = Callable[[Outcome], None]


class Store:
    """The coordinator on the world's time; answers go to whoever asked."""

    def __init__(self, timeline: Timeline, rng: Random) -> None:
        self.fake = FakeCoordinator(rng)
        self._timeline = timeline
        self._heard: dict[tuple[str, int], Heard] = {}
        self._number = 0
        self._woken_ms: int | None = None

    def ask(self, client: str, question: Question, heard: Heard) -> int:
        """Ask something; a watch is answered many times."""
        self._number += 1
        self._heard[client, self._number] = heard
        self.pass_time()
        self.fake.ask(client, self._number, question)
        self.wake()
        return self._number

    def end_watch(self, client: str, number: int) -> None:
        self.fake.end_watch(client, number)
        self._heard.pop((client, number), None)

    def forget(self, client: str) -> None:
        """A client is no more."""
        self.fake.forget(client)
        self._heard = {key: heard for key, heard in self._heard.items() if key[0] != client}

    def wake(self) -> None:
        """Come back when something happens next; call it after doing anything to the fake."""
        due_ms = self.fake.next_deadline()
        if due_ms is None or (self._woken_ms is not None and self._woken_ms <= due_ms):
            return
        self._woken_ms = max(due_ms, self._timeline.now_ms)
        self._timeline.after(self._woken_ms - self._timeline.now_ms, self._tick)

    def _tick(self) -> None:
        self._woken_ms = None
        self.pass_time()
        self.wake()

    def pass_time(self) -> None:
        """Let everything happen that is due; call it before doing anything to the fake."""
        for client, number, outcome in self.fake.tick(self._timeline.now_ms):
            heard = self._heard.get((client, number))
            if heard is not None:
                if not isinstance(outcome, WatchBatch):
                    del self._heard[client, number]
                heard(outcome)


class Owner(Protocol):
    """The process whose session it is."""

    name: str
    disk_id: str

    def soon(self, delay_ms: int, act: Callable[[], None]) -> None:
        """Have something done while the process is there; later, if it is stopped."""
        ...

    def record_changed(
        self, log_id: bytes, record: PartitionRecord | None, revision: Revision
    ) -> None: ...

    def alive_changed(self, alive: frozenset[ReplicaId]) -> None: ...

    def distrusts(self, error: RevisionWentBack) -> None: ...


class Session:
    """One process's dealings with the coordinator, from its start to its end."""

    def __init__(self, store: Store, owner: Owner, client: str) -> None:
        self.lease: LeaseId | None = None
        self.view = ClusterView(KEYS)
        self.problem = ""
        """Why the coordinator cannot be asked, empty if it can."""
        self._store = store
        self._owner = owner
        self.client = client
        """By this name the coordinator knows it."""
        self._grant()
        self._read()

    def ask(self, question: Question, heard: Heard) -> int:
        """Ask; the answer comes when the process runs, and never once it is gone."""
        owner = self._owner
        return self._store.ask(
            self.client, question, lambda outcome: owner.soon(0, lambda: heard(outcome))
        )

    def end(self) -> None:
        self._store.forget(self.client)

    # The lease and the node's own record

    def _grant(self) -> None:
        def heard(outcome: Outcome) -> None:
            if isinstance(outcome, Lease):
                self.lease = outcome.lease
                self._register(outcome.lease)
            else:
                self._again(outcome, self._grant)

        self.lease = None
        self.ask(Grant(LEASE_S), heard)

    def _register(self, lease: LeaseId) -> None:
        owner = self._owner
        record = NodeRecord(peer=f"{owner.name}:1", level=1, disk=owner.disk_id)
        put = Put(KEYS.node(owner.name), encode_record(record), lease)

        def heard(outcome: Outcome) -> None:
            if isinstance(outcome, LeaseNotFound):
                self._lost(lease)
            elif isinstance(outcome, Exception):
                self._again(outcome, lambda: self._register(lease))
            else:
                self._kept(lease)

        self.ask(Txn(success=(put,)), heard)

    def _keep_alive(self, lease: LeaseId) -> None:
        def heard(outcome: Outcome) -> None:
            if isinstance(outcome, LeaseNotFound):
                self._lost(lease)
            elif isinstance(outcome, Exception):
                self._again(outcome, lambda: self._keep_alive(lease))
            else:
                self._kept(lease)

        if lease == self.lease:
            self.ask(KeepAlive(lease), heard)

    def _kept(self, lease: LeaseId) -> None:
        self.problem = ""
        self._owner.soon(KEEP_ALIVE_MS, lambda: self._keep_alive(lease))

    def _lost(self, lease: LeaseId) -> None:
        if lease == self.lease:
            self._grant()

    def _again(self, outcome: Outcome, ask: Callable[[], None]) -> None:
        self.problem = str(outcome)
        if isinstance(outcome, RevisionWentBack):
            self._owner.distrusts(outcome)
            return
        assert isinstance(outcome, CoordinatorUnavailable), outcome
        self._owner.soon(AGAIN_MS, ask)

    # What all nodes keep there

    def _read(self) -> None:
        def heard(outcome: Outcome) -> None:
            if isinstance(outcome, RangeResult):
                self._take(outcome)
            else:
                self._again(outcome, self._read)

        self.ask(Read(KEYS.everything), heard)

    def _take(self, found: RangeResult) -> None:
        self._tell(self.view.read(found))
        self.ask(Watch(KEYS.everything, Revision(found.revision + 1)), self._heard_of_changes)

    def _heard_of_changes(self, outcome: Outcome) -> None:
        match outcome:
            case WatchBatch():
                self._tell(self.view.watched(outcome))
            case Compacted():
                self._read()
            case _:
                self._again(outcome, self._read)

    def _tell(self, changed: Changed) -> None:
        """Tell the process what is another now."""
        assert not changed.problems, changed
        owner, view = self._owner, self.view
        for log_id in sorted(changed.logs):
            placed = view.partitions.get(log_id)
            found = (None, view.revision) if placed is None else placed
            owner.record_changed(log_id, *found)
        if changed.nodes:
            owner.alive_changed(view.alive)
        if owner.name in changed.nodes and owner.name not in view.nodes and self.lease is not None:
            # Its lease ended while it lives; the next sign of life would say so, too.
            self._grant()
