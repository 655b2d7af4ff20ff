"""Progress in a partition: the frontier stops at what is not finished, and passes what is not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.burrow.core.offset_map import OffsetMaps
from waterclock.burrow.core.partition import PartitionState
from waterclock.burrow.core.records import Assignment, Commit, Record, TopicPartition
from waterclock.burrow.core.work import Work
from waterclock.model.errors import BadInput

NAME = TopicPartition("t", 0)
MAPS = OffsetMaps(units_max=4_095, text="base32768")


def state_at(committed, metadata="", *, epoch=1, log_end=1 << 40):
    return PartitionState(Assignment(NAME, epoch, committed, metadata, log_end), Work("none"), MAPS)


def read(state, *offsets, epoch=1):
    """Let the state read records, and return the offsets that are to be worked on."""
    records = [Record("t", 0, offset, None, None, (), 0, epoch) for offset in offsets]
    fresh = state.admit(records) if records else []
    state.work.offer(fresh)
    return [record.offset for record in fresh]


def finish(state, *offsets):
    state.work.take(1 << 30)
    done = [record for record in state.work.in_flight if record.offset in offsets]
    state.finish(state.work.release(done))


def test_the_frontier_stops_at_the_first_gap():
    state = state_at(0)
    read(state, *range(7))
    finish(state, 0, 1, 2, 4, 5, 6)

    commit = state.committable(MAPS)

    assert commit.offset == 3
    assert commit.runs == ((4, 7),)
    assert MAPS.decode(commit.metadata, base=3, log_end=100) == [(4, 7)]


def test_what_is_read_and_not_finished_is_never_committed():
    state = state_at(10)
    read(state, 10, 11, 12)

    assert state.frontier == 10
    assert state.committable(MAPS) is None


def test_offsets_that_do_not_exist_are_passed_over():
    state = state_at(10)
    read(state, 15, 16, 20)
    finish(state, 15, 16)

    assert state.frontier == 20
    assert state.committable(MAPS) == Commit(20)


def test_without_a_committed_offset_the_first_record_is_the_beginning():
    state = state_at(None)
    assert state.committable(MAPS) is None

    read(state, 70, 71)
    finish(state, 70)

    assert state.committable(MAPS) == Commit(71)


def test_a_restored_map_leaves_the_gaps_to_be_done_and_nothing_else():
    before = state_at(0)
    read(before, *range(100))
    finish(before, *(set(range(100)) - {7, 50}))
    commit = before.committable(MAPS)

    after = state_at(commit.offset, commit.metadata)

    assert read(after, *range(commit.offset, 103)) == [7, 50, 100, 101, 102]
    assert after.skipped == 91


def test_a_map_beyond_the_end_of_the_log_hides_no_new_record():
    text = MAPS.encode(5, [(6, 1 << 50)]).text
    state = state_at(5, text, log_end=8)

    assert read(state, *range(5, 12)) == [5, 8, 9, 10, 11]


def test_a_record_that_was_read_before_is_dropped():
    state = state_at(0)
    read(state, 0, 1, 2)

    assert read(state, 1, 2, 3) == [3]
    assert state.repeated == 2


def test_a_record_of_an_earlier_assignment_is_dropped():
    state = state_at(5, epoch=2)

    assert read(state, 8, 9, epoch=1) == []
    assert read(state, 5, 6, epoch=2) == [5, 6]
    assert state.frontier == 5


def test_a_log_that_was_reset_is_read_from_its_new_beginning():
    text = MAPS.encode(1_000, [(1_001, 1_005)]).text
    state = state_at(1_000, text)

    assert read(state, 0, 1, 2) == [0, 1, 2]
    finish(state, 0)
    assert state.committable(MAPS) == Commit(1)


def test_the_same_is_not_committed_twice():
    state = state_at(0)
    read(state, 0)
    finish(state, 0)

    assert state.committable(MAPS) == Commit(1)
    assert state.committable(MAPS) is None


def test_since_when_a_partition_is_stuck():
    state = state_at(0)
    read(state, 0, 1, 2)
    state.note(100)
    finish(state, 1)
    state.note(200)
    assert state.stuck_since_ms == 100

    finish(state, 0)
    state.note(300)
    assert state.stuck_since_ms == 300

    finish(state, 2)
    state.note(400)
    assert state.stuck_since_ms is None


def test_one_stuck_message_below_many_is_one_run():
    state = state_at(0)
    for start in range(0, 20_000, 500):
        read(state, *range(start, start + 500))
        finish(state, *(set(range(start, start + 500)) - {3}))

    assert state.view().run_count == 1
    assert state.view().waiting + state.view().in_flight == 1
    assert len(state.committable(MAPS).metadata) < 20


def test_a_negative_committed_offset_is_refused_in_words():
    with pytest.raises(BadInput, match=r"t\[0\]: -1001 is no committed offset"):
        Assignment(NAME, 1, -1001)


@given(
    st.integers(0, 50),
    st.lists(st.integers(1, 4), max_size=60),
    st.data(),
)
def test_a_commit_says_exactly_what_is_finished(start, steps, data):
    """Whatever is read and finished in whatever order, in pieces, and restored in between."""
    offsets, at = [], start
    for step in steps:
        offsets.append(at)
        at += step
    state, position = state_at(start), 0
    finished: set[int] = set()
    while position < len(offsets):
        count = data.draw(st.integers(1, 20))
        fresh = read(state, *offsets[position : position + count])
        assert finished.isdisjoint(fresh)
        position += count
        outstanding = sorted(set(offsets[:position]) - finished)
        done = set(data.draw(st.lists(st.sampled_from(outstanding)))) if outstanding else set()
        finish(state, *done)
        finished |= done
        state.check_invariants()
        is_new = state.is_dirty
        commit = state.committable(MAPS)
        assert (commit is not None) == is_new
        if commit is not None:
            read_so_far = offsets[:position]
            runs = MAPS.decode(commit.metadata, base=commit.offset, log_end=at)
            said = {
                each
                for each in read_so_far
                if each < commit.offset or any(low <= each < high for low, high in runs)
            }
            assert said == finished
            if data.draw(st.booleans()):
                state = state_at(commit.offset, commit.metadata, log_end=at)
                again = read(state, *(each for each in read_so_far if each >= commit.offset))
                assert again == sorted(set(read_so_far) - finished)
