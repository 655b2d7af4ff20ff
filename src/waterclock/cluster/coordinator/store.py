"""A store with revisions, as etcd's: what coordinators of our own answer from. Pure and in memory.

Every change is kept as an event until it is compacted, so that a watch can begin in the past. Time
is an argument, and only leases know of it: whoever drives the store calls `tick`. Whoever keeps it
on disk writes a `Checkpoint` once and then what `changes_since` one look and the next.
"""

from bisect import bisect_left
from collections.abc import Iterable
from copy import deepcopy
from typing import Final, NamedTuple

from waterclock.cluster.coordinator.errors import Compacted, LeaseNotFound
from waterclock.cluster.coordinator.requests import (
    ABSENT,
    NO_LEASE,
    Delete,
    Event,
    Get,
    KeyRange,
    KeyValue,
    Lease,
    LeaseId,
    Operation,
    Put,
    RangeResult,
    Revision,
    Txn,
    TxnResult,
    one_key,
)

LEASE_S_MIN: Final = 2
"""What etcd gives at least: one and a half of its election timeout of a second."""


class Checkpoint(NamedTuple):
    """All that a store holds, without its history."""

    revision: Revision
    last_lease: int
    items: tuple[KeyValue, ...]
    leases: tuple[Lease, ...]


class Changes(NamedTuple):
    """What happened to a store after some moment, to be done again in this order."""

    granted: tuple[Lease, ...]
    events: tuple[Event, ...]
    ended: tuple[LeaseId, ...]
    last_lease: int


class Moment(NamedTuple):
    """What a store had when it was looked at."""

    revision: Revision
    leases: frozenset[LeaseId]


class _HeldLease:
    """A lease that has not ended, and the keys that go with it."""

    def __init__(self, ttl_s: int, deadline_ms: int) -> None:
        self.ttl_s = ttl_s
        self.deadline_ms = deadline_ms
        self.keys: set[bytes] = set()


class Store:
    """All keys, their history above what is compacted, and the leases."""

    def __init__(self) -> None:
        self.revision = Revision(1)
        """Of the last change; a store begins with 1, as etcd's does."""
        self.compacted = Revision(0)
        self._items: dict[bytes, KeyValue] = {}
        self._events: list[Event] = []
        self._leases: dict[LeaseId, _HeldLease] = {}
        self.last_lease = 0
        """The last id given; one that replaces an older store goes on from here."""

    def __repr__(self) -> str:
        return f"<Store {len(self._items)} keys, {len(self._leases)} leases, at {self.revision}>"

    def read(self, keys: KeyRange) -> RangeResult:
        """Return what a range holds now."""
        return RangeResult(self.revision, self._range(keys))

    def write(self, txn: Txn) -> TxnResult:
        """Do a transaction, all of it or, if it names a lease that ended, nothing."""
        succeeded = all(self._mod_revision(key) == wanted for key, wanted in txn.conditions)
        operations = txn.success if succeeded else txn.failure
        for each in operations:
            if isinstance(each, Put) and each.lease != NO_LEASE:
                self._lease(each.lease)
        reads = self._perform(operations)
        return TxnResult(self.revision, succeeded, tuple(reads))

    def grant(self, ttl_s: int, *, now_ms: int) -> Lease:
        """Return a lease that ends when nobody keeps it alive."""
        self.last_lease += 1
        lease = LeaseId(self.last_lease)
        ttl_s = max(ttl_s, LEASE_S_MIN)
        self._leases[lease] = _HeldLease(ttl_s, now_ms + ttl_s * 1000)
        return Lease(lease, ttl_s)

    def keep_alive(self, lease: LeaseId, *, now_ms: int) -> Lease:
        """Begin the time of a lease anew."""
        held = self._lease(lease)
        held.deadline_ms = now_ms + held.ttl_s * 1000
        return Lease(lease, held.ttl_s)

    def revoke(self, lease: LeaseId) -> None:
        """End a lease; its keys are deleted in one revision."""
        keys = sorted(self._lease(lease).keys)
        self._perform([Delete(one_key(key)) for key in keys])
        del self._leases[lease]

    def tick(self, now_ms: int) -> None:
        """End the leases whose time is over."""
        for lease, held in sorted(self._leases.items()):
            if held.deadline_ms <= now_ms:
                self.revoke(lease)

    def next_deadline(self) -> int | None:
        """Return when the next lease ends."""
        return min((held.deadline_ms for held in self._leases.values()), default=None)

    def extend_leases(self, now_ms: int) -> None:
        """Give every lease its whole time again, as a new leader of etcd does."""
        for held in self._leases.values():
            held.deadline_ms = max(held.deadline_ms, now_ms + held.ttl_s * 1000)

    def changes(self, keys: KeyRange, *, from_revision: Revision) -> tuple[Event, ...]:
        """Return all changes of a range from a revision on."""
        if from_revision <= self.compacted:
            raise Compacted(wanted=from_revision, compacted=self.compacted)
        first = bisect_left(self._events, from_revision, key=lambda each: each.revision)
        return tuple(each for each in self._events[first:] if each.key in keys)

    def compact(self, revision: Revision) -> None:
        """Forget the changes up to a revision; what keys hold now stays."""
        assert self.compacted < revision <= self.revision, revision
        self.compacted = revision
        self._events = [each for each in self._events if each.revision > revision]

    # To keep it on disk

    def checkpoint(self) -> Checkpoint:
        """Return all that it holds."""
        items = tuple(self._items[key] for key in sorted(self._items))
        leases = tuple(Lease(lease, held.ttl_s) for lease, held in sorted(self._leases.items()))
        return Checkpoint(self.revision, self.last_lease, items, leases)

    @classmethod
    def restored(cls, checkpoint: Checkpoint, *, now_ms: int) -> "Store":
        """Return a store that holds this; every lease has its whole time from now on."""
        store = cls()
        store.revision = store.compacted = checkpoint.revision
        for lease in checkpoint.leases:
            store._hold(lease, now_ms)
        store.last_lease = checkpoint.last_lease
        for item in checkpoint.items:
            store._keep(item)
        return store

    @property
    def moment(self) -> Moment:
        """How it is now, for `changes_since`."""
        return Moment(self.revision, frozenset(self._leases))

    def changes_since(self, moment: Moment) -> Changes:
        """Return what happened since; of a lease that came and went meanwhile, only its id."""
        first = bisect_left(self._events, moment.revision + 1, key=lambda each: each.revision)
        now = self._leases.keys()
        events = tuple(map(self._without_ended, self._events[first:]))
        granted = tuple(Lease(each, self._leases[each].ttl_s) for each in now - moment.leases)
        ended = tuple(sorted(moment.leases - now))
        return Changes(tuple(sorted(granted)), events, ended, self.last_lease)

    def _without_ended(self, event: Event) -> Event:
        """Return a change as it is to be done again: the lease it names may be over by now, and
        then its key was put anew or deleted."""
        item = event.item
        if item is None or item.lease == NO_LEASE or item.lease in self._leases:
            return event
        return event._replace(item=item._replace(lease=NO_LEASE))

    def apply(self, changes: Changes, *, now_ms: int) -> None:
        """Do again what happened. Raises LeaseNotFound if it did not happen to this store."""
        for lease in changes.granted:
            self._hold(lease, now_ms)
        for event in changes.events:
            old = self._items.pop(event.key, None)
            if old is not None:
                self._free(old)
            if event.item is not None:
                self._keep(event.item)
            self._events.append(event)
            self.revision = event.revision
        for ended in changes.ended:
            del self._leases[self._known(ended)]
        self.last_lease = max(self.last_lease, changes.last_lease)

    def _hold(self, lease: Lease, now_ms: int) -> None:
        self._leases[lease.lease] = _HeldLease(lease.ttl_s, now_ms + lease.ttl_s * 1000)

    def _keep(self, item: KeyValue) -> None:
        self._items[item.key] = item
        if item.lease != NO_LEASE:
            self._lease(item.lease).keys.add(item.key)

    def _known(self, lease: LeaseId) -> LeaseId:
        self._lease(lease)
        return lease

    def snapshot(self) -> "Store":
        """Return a copy, to be put in the place of this one later: a store restored from it."""
        return deepcopy(self)

    def check_invariants(self) -> None:
        """Check that keys, leases and history say the same."""
        for key, item in self._items.items():
            assert key == item.key
            assert 1 < item.create_revision <= item.mod_revision <= self.revision, item
            assert item.lease == NO_LEASE or key in self._leases[item.lease].keys, item
        for lease, held in self._leases.items():
            assert all(self._items[key].lease == lease for key in held.keys), lease
        revisions = [each.revision for each in self._events]
        assert revisions == sorted(revisions)
        assert all(self.compacted < each <= self.revision for each in revisions)

    def _perform(self, operations: Iterable[Operation]) -> list[tuple[KeyValue, ...]]:
        reads: list[tuple[KeyValue, ...]] = []
        after = Revision(self.revision + 1)
        known = len(self._events)
        for each in operations:
            match each:
                case Put():
                    self._put(each, after)
                case Delete(keys):
                    for item in self._range(keys):
                        self._free(self._items.pop(item.key))
                        self._events.append(Event(after, item.key, None))
                case Get(keys):
                    reads.append(self._range(keys))
        if len(self._events) > known:
            self.revision = after
        return reads

    def _put(self, put: Put, revision: Revision) -> None:
        old = self._items.get(put.key)
        if old is not None:
            self._free(old)
        created, version = (old.create_revision, old.version) if old else (revision, 0)
        item = KeyValue(put.key, put.value, created, revision, version + 1, put.lease)
        self._keep(item)
        self._events.append(Event(revision, put.key, item))

    def _free(self, item: KeyValue) -> None:
        if item.lease != NO_LEASE:
            self._leases[item.lease].keys.discard(item.key)

    def _range(self, keys: KeyRange) -> tuple[KeyValue, ...]:
        if keys.end == keys.start + b"\0":
            item = self._items.get(keys.start)
            return () if item is None else (item,)
        return tuple(self._items[key] for key in sorted(self._items) if key in keys)

    def _mod_revision(self, key: bytes) -> Revision:
        item = self._items.get(key)
        return ABSENT if item is None else item.mod_revision

    def _lease(self, lease: LeaseId) -> _HeldLease:
        held = self._leases.get(lease)
        if held is None:
            raise LeaseNotFound(lease)
        return held
