"""Work: order is kept, nothing is handed out twice, nothing is forgotten."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.kit.examples import examples
from waterclock.burrow.core.records import Record
from waterclock.burrow.core.work import Work


def records(*keys, start=0):
    return [Record("t", 0, start + at, key, None) for at, key in enumerate(keys)]


def test_without_order_everything_is_ready():
    work = Work("none")
    work.offer(records(b"a", b"a", b"a"))

    assert [record.offset for record in work.take(9)] == [0, 1, 2]


def test_of_a_key_one_record_at_a_time():
    work = Work("key")
    work.offer(records(b"a", b"b", b"a", b"b", b"a"))

    first = work.take(9)
    assert [record.offset for record in first] == [0, 1]
    assert not work.is_ready

    work.release(first[:1])
    assert [record.offset for record in work.take(9)] == [2]


def test_records_without_a_key_are_not_ordered():
    work = Work("key")
    work.offer(records(None, None, b"a", None))

    assert len(work.take(9)) == 4


def test_of_a_partition_one_take_at_a_time():
    work = Work("partition")
    work.offer(records(b"a", b"b", b"c"))

    first = work.take(2)
    assert [record.offset for record in first] == [0, 1]
    assert work.take(2) == []

    work.release(first)
    assert [record.offset for record in work.take(2)] == [2]


@pytest.mark.parametrize("order", ["key", "partition"])
def test_a_record_to_be_retried_keeps_its_lane(order):
    work = Work(order)
    work.offer(records(b"a", b"a"))
    failed = work.take(1)
    work.hold(failed)

    assert work.take(9) == []

    work.again(failed)
    assert work.take(1) == failed
    work.release(failed)
    assert [record.offset for record in work.take(9)] == [1]


@pytest.mark.parametrize("first", [0, 1])
def test_a_list_that_failed_comes_back_in_order_also_if_apart(first):
    work = Work("partition")
    work.offer(records(b"a", b"b", b"c"))
    failed = work.take(2)
    work.hold(failed[:1])
    work.hold(failed[1:])

    work.again([failed[first]])
    assert work.take(9) == []

    work.again([failed[1 - first]])
    assert [record.offset for record in work.take(9)] == [0, 1, 2]


def test_what_runs_keeps_its_key_when_all_else_is_forgotten():
    work = Work("key")
    work.offer(records(b"a", b"a", b"b"))
    (old,) = work.take(1)
    work.clear()

    work.offer(records(b"a", b"b"))
    assert [record.key for record in work.take(9)] == [b"b"]

    work.release([old])
    assert [record.key for record in work.take(9)] == [b"a"]


def test_what_is_not_in_flight_is_not_released():
    work = Work("key")
    work.offer(records(b"a", b"a"))
    (first,) = work.take(9)

    assert work.release([first, first, first]) == [first]
    assert work.release([first]) == []
    assert work.held == 1


class WorkHistories(RuleBasedStateMachine):
    """Any sequence of calls, against the plainest model: who is where."""

    @initialize(order=st.sampled_from(["none", "key", "partition"]))
    def begin(self, order):
        self.order, self.work, self.offset = order, Work(order), 0
        self.waiting, self.running, self.kept = [], [], []

    @rule(keys=st.lists(st.sampled_from([None, b"a", b"b", b"c"]), max_size=6))
    def offer(self, keys):
        new = records(*keys, start=self.offset)
        self.offset += len(new)
        self.waiting += new
        self.work.offer(new)

    @rule(count=st.integers(1, 4))
    def take(self, count):
        taken = self.work.take(count)
        lanes = [lane for lane in map(self.lane, self.running + self.kept) if lane is not None]
        for record in taken:
            lane = self.lane(record)
            if lane is not None:
                assert lane not in lanes
                before = [each for each in self.waiting if self.lane(each) == lane]
                assert record.offset == min(each.offset for each in before)
                if self.order == "key":
                    lanes.append(lane)
            self.waiting.remove(record)
        self.running += taken
        if not taken:
            free = {self.lane(each) for each in self.waiting} - set(lanes)
            assert not free, "something could have been handed out"

    def lane(self, record):
        return {"none": None, "key": record.key, "partition": b""}[self.order]

    @rule(data=st.data())
    def release(self, data):
        gone = self.some(data, self.running)
        assert self.work.release(gone) == gone
        self.running = [each for each in self.running if each not in gone]

    @rule(data=st.data())
    def hold(self, data):
        failed = self.some(data, self.running)
        self.work.hold(failed)
        self.running = [each for each in self.running if each not in failed]
        self.kept += failed

    @rule(data=st.data())
    def again(self, data):
        due = self.some(data, self.kept)
        self.work.again(due)
        self.kept = [each for each in self.kept if each not in due]
        self.waiting += due

    def some(self, data, among):
        picks = data.draw(st.lists(st.booleans(), min_size=len(among), max_size=len(among)))
        return [each for each, is_picked in zip(among, picks, strict=True) if is_picked]

    @rule()
    def clear(self):
        self.work.clear()
        self.waiting, self.kept = [], []

    @invariant()
    def counts_agree(self):
        self.work.check_invariants()
        assert self.work.held == len(self.waiting) + len(self.running) + len(self.kept)
        assert self.work.in_flight == set(self.running)


TestWorkHistories = WorkHistories.TestCase
TestWorkHistories.settings = settings(max_examples=examples(60), stateful_step_count=30)
