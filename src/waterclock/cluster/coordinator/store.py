"""A store with revisions, as etcd's: what the fake coordinator answers from. Pure and in memory.

Every change is kept as an event until it is compacted, so that a watch can begin in the past. Time
is an argument, and only leases know of it: whoever drives the store calls `tick`.
"""

from bisect import bisect_left
from collections.abc import Iterable
from copy import deepcopy
from typing import Final

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
        self._items[put.key] = item
        if put.lease != NO_LEASE:
            self._leases[put.lease].keys.add(put.key)
        self._events.append(Event(revision, put.key, item))

    def _free(self, item: KeyValue) -> None:
        if item.lease != NO_LEASE:
            self._leases[item.lease].keys.discard(item.key)

    def _range(self, keys: KeyRange) -> tuple[KeyValue, ...]:
        return tuple(self._items[key] for key in sorted(self._items) if key in keys)

    def _mod_revision(self, key: bytes) -> Revision:
        item = self._items.get(key)
        return ABSENT if item is None else item.mod_revision

    def _lease(self, lease: LeaseId) -> _HeldLease:
        held = self._leases.get(lease)
        if held is None:
            raise LeaseNotFound(lease)
        return held
