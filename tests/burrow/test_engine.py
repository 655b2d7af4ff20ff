"""The engine: what it answers to what happens, one sentence at a time."""

from random import Random

import pytest

from waterclock.burrow.core.config import EngineConfig
from waterclock.burrow.core.effects import CommitOffsets, Halt, Pause, Resume, WriteDeadLetters
from waterclock.burrow.core.engine import Engine
from waterclock.burrow.core.failures import PermanentError
from waterclock.burrow.core.offset_map import OffsetMaps
from waterclock.burrow.core.records import Assignment, Commit, Record, TopicPartition

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def engine_with(*names, committed=0, **settings):
    engine = Engine(EngineConfig(**{"retry_jitter_percent": 0, **settings}), Random(1))
    engine.assigned([Assignment(name, 1, committed, "", 1 << 40) for name in names or (P0,)], 0)
    return engine


def records(offsets, *, key=None, name=P0, epoch=1):
    topic, number = name
    return [Record(topic, number, offset, key, None, (), 0, epoch) for offset in offsets]


def offsets(taken):
    return [record.offset for record in taken]


# Handing out


def test_partitions_take_turns():
    engine = engine_with(P0, P1)
    engine.polled(records(range(10)) + records(range(10), name=P1), 0)

    taken = engine.take(6)

    assert sorted(record.partition for record in taken) == [0, 0, 0, 1, 1, 1]
    engine.check_invariants()


def test_what_one_partition_does_not_need_the_others_get():
    engine = engine_with(P0, P1)
    engine.polled(records(range(10)) + records(range(1), name=P1), 0)

    assert len(engine.take(8)) == 8


def test_lists_are_cut_to_size_and_in_partition_order_belong_to_one_partition():
    engine = engine_with(P0, P1)
    engine.polled(records(range(5)), 0)
    assert [offsets(batch) for batch in engine.take_batches(2, size=3)] == [[0, 1, 2], [3, 4]]

    serial = engine_with(P0, P1, order="partition")
    serial.polled(records(range(5)) + records(range(5), name=P1), 0)
    batches = serial.take_batches(9, size=3)
    assert [offsets(batch) for batch in batches] == [[0, 1, 2], [0, 1, 2]]
    assert serial.take_batches(9, size=3) == []
    assert not serial.has_ready

    serial.finished(batches[1], 0)
    assert [offsets(batch) for batch in serial.take_batches(9, size=3)] == [[3, 4]]


def test_a_record_nobody_assigned_is_dropped():
    engine = engine_with(P0)
    engine.polled(records(range(5), name=P1), 0)

    assert not engine.has_ready


# Commits


def test_a_commit_comes_with_the_count():
    engine = engine_with(commit_count=3)
    engine.polled(records(range(5)), 0)
    taken = engine.take(5)

    assert engine.finished(taken[:2], 1) == []
    assert engine.finished(taken[3:], 1) == [CommitOffsets(1, {P0: engine_commit(2, [(3, 5)])})]


def engine_commit(offset, runs):
    encoded = OffsetMaps(units_max=4_095, text="base32768").encode(offset, runs)
    return Commit(offset, encoded.text, tuple(runs))


def test_a_commit_comes_with_the_time():
    engine = engine_with(commit_ms=500)
    engine.polled(records(range(5)), 0)
    engine.finished(engine.take(2), 100)

    assert engine.next_deadline() == 600
    assert engine.tick(599) == []
    assert engine.tick(600) == [CommitOffsets(1, {P0: Commit(2)})]


def test_one_commit_at_a_time():
    engine = engine_with(commit_count=1)
    engine.polled(records(range(5)), 0)
    assert len(engine.finished(engine.take(1), 0)) == 1
    assert engine.finished(engine.take(1), 0) == []

    engine.committed(1, 0)
    assert engine.next_deadline() == 0
    assert engine.tick(0) == [CommitOffsets(2, {P0: Commit(2)})]


def test_a_commit_that_failed_is_made_again_later():
    engine = engine_with(commit_count=1, commit_retry_ms=50)
    engine.polled(records(range(2)), 0)
    engine.finished(engine.take(1), 0)

    assert engine.committed(1, 10, code=27) == []
    assert engine.next_deadline() == 60
    assert engine.finished(engine.take(1), 20) == []
    assert engine.tick(60) == [CommitOffsets(2, {P0: Commit(2)})]
    assert engine.views(0)[0].committed == 0


def test_a_commit_that_failed_is_made_again_also_if_nothing_is_new():
    engine = engine_with(commit_count=1, commit_retry_ms=50)
    engine.polled(records(range(2)), 0)
    engine.finished(engine.take(1), 0)
    engine.committed(1, 10, code=7)

    assert engine.tick(60) == [CommitOffsets(2, {P0: Commit(1)})]


def test_a_commit_under_way_when_its_partition_goes_is_made_again_for_it_may_fail():
    engine = engine_with(commit_count=1)
    engine.polled(records(range(2)), 0)
    (under_way,) = engine.finished(engine.take(2), 0)

    (last,) = engine.revoked([P0], 0)

    assert last.is_final
    assert last.commits == under_way.commits


def test_a_refused_map_of_a_partition_that_went_is_not_committed_over_its_last_commit():
    engine = engine_with(commit_count=1)
    engine.polled(records(range(3)), 0)
    taken = engine.take(3)
    (asked,) = engine.finished(taken[1:], 0)
    engine.finished(taken[:1], 0)
    assert engine.revoked([P0], 0) == [CommitOffsets(2, {P0: Commit(3)}, is_final=True)]

    assert engine.committed(asked.number, 0, code=12) == []


def test_a_map_the_broker_refuses_is_left_out_at_once_and_smaller_next_time():
    engine = engine_with(commit_count=1)
    engine.polled(records(range(9)), 0)
    taken = engine.take(9)
    (asked,) = engine.finished(taken[1:], 0)
    assert asked.commits[P0].metadata

    again = engine.committed(asked.number, 0, code=12)

    assert again == [CommitOffsets(2, {P0: Commit(0, "", ((1, 9),), is_whole=False)})]
    assert engine._maps.units_max == 2_047


def test_a_commit_no_retry_can_mend_halts():
    engine = engine_with(commit_count=1)
    engine.polled(records(range(2)), 0)
    engine.finished(engine.take(1), 0)

    (halt,) = engine.committed(1, 0, by_partition={P0: 30})

    assert halt == Halt("t[0]: the commit was refused with code 30")
    assert engine.take(1) == []


def test_an_answer_to_no_question_is_ignored():
    assert engine_with().committed(77, 0, code=30) == []


# Rebalances


def test_a_partition_that_goes_is_committed_as_far_as_it_is_finished():
    engine = engine_with()
    engine.polled(records(range(9)), 0)
    taken = engine.take(4)
    engine.revoking([P0], 0)
    assert engine.take(9) == []
    assert engine.in_flight([P0]) == 4

    engine.finished(taken[:3], 0)
    assert engine.revoked([P0], 0) == [CommitOffsets(1, {P0: Commit(3)}, is_final=True)]
    assert engine.names() == []


def test_a_partition_that_is_lost_is_not_committed():
    engine = engine_with()
    engine.polled(records(range(9)), 0)
    engine.finished(engine.take(4), 0)

    assert engine.lost([P0], 0) == []
    assert engine.tick(10**6) == []


def test_late_results_change_nothing():
    engine = engine_with(commit_count=1)
    engine.polled(records(range(3)), 0)
    late = engine.take(3)
    engine.lost([P0], 0)
    engine.assigned([Assignment(P0, 2, 0, "", 99)], 0)

    assert engine.finished(late[:2], 0) == []
    assert engine.failed(late[2:], PermanentError(), 0) == []
    assert engine.views(0)[0].frontier == 0
    assert engine.views(0)[0].given_up == 0
    engine.check_invariants()


def test_a_key_that_still_runs_is_waited_for_after_a_rebalance():
    engine = engine_with()
    engine.polled(records([0], key=b"k"), 0)
    late = engine.take(1)
    engine.lost([P0], 0)
    engine.assigned([Assignment(P0, 2, 0, "", 99)], 0)
    engine.polled(records([0], key=b"k", epoch=2), 0)
    assert engine.take(9) == []

    engine.finished(late, 0)
    assert offsets(engine.take(9)) == [0]


def test_what_fails_while_a_partition_goes_is_not_retried():
    engine = engine_with()
    engine.polled(records(range(2)), 0)
    taken = engine.take(2)
    engine.revoking([P0], 0)
    engine.failed(taken, OSError(), 0)

    assert engine.in_flight() == 0
    assert engine.next_deadline() is None
    assert engine.revoked([P0], 0) == []


def test_a_partition_assigned_again_without_a_word_begins_anew():
    engine = engine_with()
    engine.polled(records(range(5)), 0)
    engine.take(1)
    engine.assigned([Assignment(P0, 2, 3, "", 99)], 0)
    engine.polled(records(range(3, 6), epoch=2), 0)

    assert [(each.offset, each.epoch) for each in engine.take(9)] == [(3, 2), (4, 2), (5, 2)]
    engine.check_invariants()


def test_what_is_read_while_a_partition_goes_is_dropped():
    engine = engine_with()
    engine.revoking([P0], 0)
    engine.polled(records(range(3, 9)), 0)

    assert not engine.has_ready
    assert engine.revoked([P0], 0) == []


# Failures


def test_a_failed_record_comes_again_after_its_delay():
    engine = engine_with()
    engine.polled(records([0]), 0)
    (record,) = engine.take(1)
    engine.failed([record], OSError(), 1_000)

    assert engine.next_deadline() == 1_100
    engine.tick(1_099)
    assert engine.take(1) == []
    engine.tick(1_100)
    assert engine.take(1) == [record]
    assert record.attempt == 2


@pytest.mark.parametrize("on_failure", ["leave", "park"])
def test_a_record_given_up_is_a_gap_and_frees_its_key(on_failure):
    engine = engine_with(on_failure=on_failure, commit_count=1)
    engine.polled(records([0, 1], key=b"k"), 0)

    assert engine.failed(engine.take(1), PermanentError(), 0) == []
    (asked,) = engine.finished(engine.take(1), 0)

    assert asked.commits[P0].offset == 0
    assert asked.commits[P0].runs == ((1, 2),)
    assert engine.views(0)[0].given_up == 1
    assert engine.in_flight() == 0


def test_too_many_left_in_a_row_halt():
    engine = engine_with(errors_max=2)
    engine.polled(records(range(9)), 0)
    first, second, third = engine.take(3)
    error = PermanentError("no")
    assert engine.failed([first], error, 0) == []

    (halt,) = engine.failed([second], error, 0)

    assert halt == Halt("2 records failed in a row, errors_max is 2", error)
    assert engine.failed([third], error, 0) == []
    assert engine.take(9) == []
    assert engine.room == 0


def test_parked_records_do_not_count_but_have_a_limit():
    engine = engine_with(errors_max=1, on_failure="park", given_up_max=2)
    engine.polled(records(range(3)), 0)
    taken = engine.take(3)
    assert engine.failed(taken[:2], PermanentError(), 0) == []

    (halt,) = engine.failed(taken[2:], PermanentError(), 0)

    assert halt.reason == "t[0]: more than given_up_max = 2 records"


def test_a_dead_letter_is_done_when_it_is_written_and_not_before():
    engine = engine_with(on_failure="dlq", commit_count=1, commit_retry_ms=50)
    engine.polled(records([0, 1], key=b"k"), 0)
    taken, error = engine.take(1), PermanentError()

    assert engine.failed(taken, error, 0) == [WriteDeadLetters(tuple(taken), error)]
    assert engine.take(1) == []
    assert engine.dead_letters_failed(taken, OSError(), 0) == []
    assert engine.next_deadline() == 50
    (again,) = engine.tick(50)
    assert again.records == tuple(taken)

    assert engine.dead_lettered(taken, 60) == [CommitOffsets(1, {P0: Commit(1)})]
    assert offsets(engine.take(1)) == [1]
    assert taken[0].attempt == 1


# Backpressure


def test_a_full_partition_is_paused_and_resumed_at_half():
    engine = engine_with(P0, P1, queue_max=10, prefetch_max=100)
    assert engine.polled(records(range(12)) + records(range(2), name=P1), 0) == [Pause((P0,))]
    taken = [record for record in engine.take(14) if record.partition == 0]

    assert engine.finished(taken[:6], 0) == []
    assert engine.finished(taken[6:7], 0) == [Resume((P0,))]


def test_there_is_room_again_when_half_is_free():
    engine = engine_with(prefetch_max=10)
    assert engine.room == 10
    engine.polled(records(range(10)), 0)
    assert engine.room == 0
    engine.take(4)
    assert engine.room == 0
    engine.take(1)
    assert engine.room == 5


def test_a_pool_without_room_for_long_is_paused_so_that_it_can_poll():
    engine = engine_with(P0, P1, prefetch_max=10, full_ms_max=1_000)
    engine.polled(records(range(10)), 0)

    assert engine.next_deadline() == 1_000
    assert engine.tick(999) == []
    assert engine.tick(1_000) == [Pause((P0, P1))]

    taken = engine.take(8)
    assert engine.finished(taken[:1], 1_500) == [Resume((P0, P1))]


def test_a_partition_that_comes_while_all_is_paused_is_paused_too():
    engine = engine_with(P0, prefetch_max=4, full_ms_max=100)
    engine.polled(records(range(9)), 0)
    engine.tick(100)

    assert engine.assigned([Assignment(P1, 1, 0)], 200) == [Pause((P1,))]


def test_a_partition_paused_for_what_still_runs_of_it_is_resumed_when_that_ends():
    engine = engine_with(queue_max=2)
    engine.polled(records(range(2)), 0)
    late = engine.take(2)
    engine.lost([P0], 0)
    assert engine.assigned([Assignment(P0, 2, 0, "", 99)], 0) == [Pause((P0,))]

    assert engine.finished(late, 0) == [Resume((P0,))]


def scattered(engine, count):
    """Finish half of the records by chance; return the others, and what is asked for."""
    engine.polled(records(range(count)), 0)
    taken = engine.take(count)
    done = set(Random(5).sample(taken[1:], count // 2))
    return [each for each in taken if each not in done], engine.finished(done, 0)


def test_a_partition_is_paused_while_its_map_is_nearly_full():
    settings = {"map_units_max": 20, "commit_count": 1, "queue_max": 10_000}
    engine = engine_with(**settings)
    rest, effects = scattered(engine, 600)
    assert effects[1:] == [Pause((P0,))]
    assert not effects[0].commits[P0].is_whole

    engine.committed(effects[0].number, 0)
    effects = engine.finished(rest, 10)

    assert effects[0].commits == {P0: Commit(600)}
    assert effects[1:] == [Resume((P0,))]


def test_a_map_full_of_records_given_up_halts_instead_of_standing_still():
    engine = engine_with(map_units_max=20, commit_count=1, on_failure="park", queue_max=10_000)
    rest, effects = scattered(engine, 600)
    engine.committed(effects[0].number, 0)
    engine.failed(rest, PermanentError(), 0)

    halts = [effect for effect in engine.tick(10**6) if isinstance(effect, Halt)]

    assert len(halts) == 1
    assert "300 records were given up" in halts[0].reason


def test_a_restored_map_that_is_nearly_full_stops_nobody_from_closing_its_gaps():
    engine = engine_with(map_units_max=20, commit_count=1, queue_max=10_000)
    _, effects = scattered(engine, 210)
    commit = effects[0].commits[P0]
    assert commit.is_whole
    assert Pause((P0,)) in effects

    after = Engine(EngineConfig(map_units_max=20, commit_count=1), Random(1))
    after.assigned([Assignment(P0, 1, commit.offset, commit.metadata, 10**6)], 0)
    after.polled(records(range(50)), 0)

    effects = after.finished(after.take(3), 0)
    assert [type(effect) for effect in effects] == [CommitOffsets]


def test_one_stuck_record_costs_a_restart_almost_nothing():
    engine = engine_with(order="none", commit_count=1_000)
    commit, done, stuck = Commit(0), 0, None
    for start in range(0, 20_000, 500):
        engine.polled(records(range(start, start + 500)), start)
        taken = engine.take(500)
        stuck = stuck or taken[7]
        done += 500
        for effect in engine.finished([each for each in taken if each is not stuck], start):
            commit = effect.commits[P0]
            engine.committed(effect.number, start)

    after = Engine(EngineConfig(order="none", queue_max=100_000), Random(1))
    after.assigned([Assignment(P0, 1, commit.offset, commit.metadata, done)], 0)
    after.polled(records(range(commit.offset, done)), 0)

    assert commit.offset == 7
    assert len(after.take(1 << 30)) <= done // 100 + 500
    assert engine.views(0)[0].run_count == 1
