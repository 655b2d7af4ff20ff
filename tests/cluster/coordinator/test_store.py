"""The store beneath the fake coordinator, against a model that keeps every state there was."""

from typing import Any, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.kit.examples import examples
from waterclock.cluster.coordinator.errors import Compacted, LeaseNotFound, RevisionWentBack
from waterclock.cluster.coordinator.requests import (
    NO_LEASE,
    Delete,
    Get,
    KeyRange,
    LeaseId,
    Put,
    Revision,
    Txn,
    Unchanged,
    all_below,
    one_key,
)
from waterclock.cluster.coordinator.revision_guard import RevisionGuard
from waterclock.cluster.coordinator.store import Store

KEYS = st.sampled_from([b"n/1", b"n/2", b"p/1", b"p/2"])
RANGES = KEYS.map(one_key) | st.sampled_from([all_below(b"n/"), all_below(b"p/"), all_below(b"n")])
EVERYTHING = KeyRange(b"\0", b"\xff")


class Entry(NamedTuple):
    value: bytes
    revision: int
    lease: int


State = dict[bytes, Entry]


class StoreAgainstStates(RuleBasedStateMachine):
    """The model is the list of all states, by revision: no history, no index, no events."""

    def __init__(self) -> None:
        super().__init__()
        self.store = Store()
        self.states: list[State] = [{}, {}]
        self.leases: dict[int, tuple[int, int]] = {}
        self.now_ms = 0
        self.compacted = 0

    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        conditions = data.draw(st.lists(st.tuples(KEYS, st.booleans()), max_size=2))
        txn = Txn(
            tuple(self.condition(key, holds=holds) for key, holds in conditions),
            data.draw(operations(sorted(self.leases))),
            data.draw(operations(sorted(self.leases))),
        )
        expected = all(holds for _, holds in conditions)
        state, reads = self.performed(txn.success if expected else txn.failure)

        result = self.store.write(txn)

        assert result.succeeded == expected
        assert [tuple(item.key for item in read) for read in result.reads] == reads
        self.became(state)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def name_a_lease_that_ended(self, data: st.DataObject) -> None:
        with pytest.raises(LeaseNotFound):
            self.store.write(Txn(success=(Put(b"n/1", b""), Put(b"n/2", b"", LeaseId(10_000)))))

    @rule(ttl_s=st.integers(1, 9))
    def grant(self, ttl_s: int) -> None:
        lease = self.store.grant(ttl_s, now_ms=self.now_ms)
        assert lease.ttl_s == max(ttl_s, 2)
        assert lease.lease not in self.leases
        self.leases[lease.lease] = (lease.ttl_s, self.now_ms + lease.ttl_s * 1000)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def keep_alive(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(sorted(self.leases)))
        ttl_s, _ = self.leases[lease]
        self.store.keep_alive(LeaseId(lease), now_ms=self.now_ms)
        self.leases[lease] = (ttl_s, self.now_ms + ttl_s * 1000)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def revoke(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(sorted(self.leases)))
        self.store.revoke(LeaseId(lease))
        self.lease_ended(lease)

    @rule(passed_ms=st.integers(0, 5_000))
    def pass_time(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        self.store.tick(self.now_ms)
        for lease, (_, deadline_ms) in sorted(self.leases.items()):
            if deadline_ms <= self.now_ms:
                self.lease_ended(lease)

    @precondition(lambda self: self.compacted < len(self.states) - 1)
    @rule(data=st.data())
    def compact(self, data: st.DataObject) -> None:
        self.compacted = data.draw(st.integers(self.compacted + 1, len(self.states) - 1))
        self.store.compact(Revision(self.compacted))

    @rule(keys=RANGES, data=st.data())
    def changes(self, keys: KeyRange, data: st.DataObject) -> None:
        first = data.draw(st.integers(1, len(self.states)))
        if first <= self.compacted:
            with pytest.raises(Compacted):
                self.store.changes(keys, from_revision=Revision(first))
            return
        found = self.store.changes(keys, from_revision=Revision(first))
        by_revision = [
            {each.key: each.item and each.item.value for each in found if each.revision == revision}
            for revision in range(first, len(self.states))
        ]
        assert by_revision == [
            self.changed(keys, revision) for revision in range(first, len(self.states))
        ]

    @invariant()
    def holds_the_last_state(self) -> None:
        self.store.check_invariants()
        revision, items = self.store.read(EVERYTHING)
        assert revision == len(self.states) - 1
        found = {each.key: Entry(each.value, each.mod_revision, each.lease) for each in items}
        assert found == self.states[-1]
        assert list(found) == sorted(found)
        for each in items:
            first, count = self.put_since(each.key)
            assert (each.create_revision, each.version) == (first, count)

    def condition(self, key: bytes, *, holds: bool) -> Unchanged:
        entry = self.states[-1].get(key)
        revision = entry.revision if entry else 0
        return Unchanged(key, Revision(revision if holds else revision + 1))

    def performed(self, operations: Any) -> tuple[State, list[tuple[bytes, ...]]]:
        state, reads = dict(self.states[-1]), []
        for each in operations:
            if isinstance(each, Put):
                state[each.key] = Entry(each.value, len(self.states), each.lease)
            elif isinstance(each, Delete):
                state = {key: entry for key, entry in state.items() if key not in each.keys}
            else:
                reads.append(tuple(key for key in sorted(state) if key in each.keys))
        return state, reads

    def became(self, state: State) -> None:
        if state != self.states[-1]:
            self.states.append(state)

    def lease_ended(self, lease: int) -> None:
        del self.leases[lease]
        kept = {key: entry for key, entry in self.states[-1].items() if entry.lease != lease}
        self.became(kept)

    def changed(self, keys: KeyRange, revision: int) -> dict[bytes, bytes | None]:
        before, after = self.states[revision - 1], self.states[revision]
        put = {key: each.value for key, each in after.items() if each.revision == revision}
        gone: dict[bytes, bytes | None] = dict.fromkeys(before.keys() - after.keys())
        return {key: value for key, value in (gone | put).items() if key in keys}

    def put_since(self, key: bytes) -> tuple[int, int]:
        revisions = []
        for state in reversed(self.states):
            if key not in state:
                break
            revisions.append(state[key].revision)
        return min(revisions), len(set(revisions))


@st.composite
def operations(draw: st.DrawFn, leases: list[int]) -> tuple[Put | Delete | Get, ...]:
    values = st.sampled_from([b"", b"x", b"y"])
    puts = st.builds(Put, KEYS, values, st.sampled_from([NO_LEASE, *map(LeaseId, leases)]))
    found: list[Put | Delete | Get] = draw(
        st.lists(puts | RANGES.map(Delete) | RANGES.map(Get), max_size=4)
    )
    written = [each.key for each in found if isinstance(each, Put)]
    deleted = [each.keys for each in found if isinstance(each, Delete)]
    is_once = len(set(written)) == len(written)
    if not is_once or any(key in keys for keys in deleted for key in written):
        return tuple(each for each in found if isinstance(each, Get))
    return tuple(found)


TestStoreAgainstStates = StoreAgainstStates.TestCase
TestStoreAgainstStates.settings = settings(max_examples=examples(40), stateful_step_count=30)


def test_a_copy_goes_its_own_way():
    store = Store()
    copy = store.snapshot()
    store.write(Txn(success=(Put(b"k", b"1"),)))

    assert (store.revision, copy.revision) == (2, 1)
    assert copy.read(EVERYTHING).items == ()


def test_a_new_leader_of_the_store_gives_leases_their_whole_time_again():
    store = Store()
    lease = store.grant(5, now_ms=0).lease
    store.extend_leases(4_000)

    assert store.next_deadline() == 9_000
    store.tick(9_000)
    with pytest.raises(LeaseNotFound):
        store.keep_alive(lease, now_ms=9_000)


def test_an_answer_older_than_the_question_is_refused_for_ever():
    guard = RevisionGuard()
    at_least = guard.asked()
    guard.answered(Revision(7), at_least=at_least)
    guard.answered(Revision(5), at_least=at_least)  # asked before the 7 was seen

    with pytest.raises(RevisionWentBack, match="is at revision 6 and was at 7"):
        guard.answered(Revision(6), at_least=guard.asked())
    with pytest.raises(RevisionWentBack, match="is at revision 6 and was at 7"):
        guard.asked()
