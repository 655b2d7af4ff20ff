"""The plan hands out, takes back, and settles: one sentence each."""

import pytest

from tests.dispatch.plans import DEADLINE_MS, load, new_plan, uuids
from waterclock.dispatch.core.batches import HandOut, Load, Settle, WriteDeadLetters


def who(outs: list[HandOut]) -> list[tuple[int, int]]:
    return [(out.worker, len(out.uuids)) for out in outs]


def test_messages_are_shared_out_in_turn():
    plan = new_plan(workers=3)
    plan.add(load(0, 10))

    outs = plan.hand_out(0)

    assert who(outs) == [(0, 4), (1, 4), (2, 2)]
    assert [uuid for out in outs for uuid in out.uuids] == uuids(0, 10)
    assert outs[0].births_ms == [5] * 4
    assert outs[0].deliveries == 1


def test_nobody_gets_more_than_its_credit():
    plan = new_plan(workers=2, credit=3)
    plan.add(load(0, 10))

    assert who(plan.hand_out(0)) == [(0, 3), (1, 3)]
    assert plan.waiting == 4

    plan.acked(uuids(0, 2), 0)
    plan.credited(1, 5)
    assert who(plan.hand_out(0)) == [(0, 2), (1, 2)]


def test_a_worker_without_credit_is_drained():
    plan = new_plan(workers=2)
    plan.credited(0, 0)
    plan.add(load(0, 10))

    assert who(plan.hand_out(0)) == [(1, 10)]


def test_a_stored_batch_is_settled_when_all_its_messages_are_acknowledged():
    plan = new_plan(workers=1)
    plan.add(load(0, 10))
    plan.hand_out(0)

    assert plan.acked(uuids(0, 4), 0) == []
    assert plan.acked(uuids(5, 5), 0) == []
    assert plan.acked(uuids(4, 1), 0) == [Settle(stored_batches=[uuids(0, 1)[0]])]
    assert plan.held == 0


def test_entries_are_settled_one_by_one():
    plan = new_plan(workers=1)
    plan.add(load(0, 3, is_stored_batch=False))
    plan.hand_out(0)

    assert plan.acked(uuids(1, 1), 0) == [Settle(entries=[b"1-0"])]
    assert plan.acked([*uuids(0, 1), *uuids(2, 1)], 0) == [Settle(entries=[b"0-0", b"2-0"])]


def test_what_is_not_answered_in_time_goes_to_another():
    plan = new_plan(workers=2)
    plan.add(load(0, 1))
    assert who(plan.hand_out(0)) == [(0, 1)]

    assert plan.tick(DEADLINE_MS - 1) == []
    assert plan.hand_out(DEADLINE_MS - 1) == []
    plan.tick(DEADLINE_MS)

    outs = plan.hand_out(DEADLINE_MS)
    assert who(outs) == [(1, 1)]
    assert outs[0].deliveries == 2


def test_progress_of_some_extends_only_those():
    plan = new_plan(workers=2)
    plan.credited(1, 0)
    plan.add(load(0, 4))
    plan.hand_out(0)
    plan.credited(1, 10)

    plan.progressed(uuids(1, 2), 0, 1_500)
    plan.tick(DEADLINE_MS)
    outs = plan.hand_out(DEADLINE_MS)

    assert [uuid for out in outs for uuid in out.uuids] == [*uuids(0, 1), *uuids(3, 1)]
    plan.check_invariants()
    plan.tick(1_500 + DEADLINE_MS)
    assert plan.waiting == 2


def test_progress_of_what_another_has_changes_nothing():
    plan = new_plan(workers=2)
    plan.add(load(0, 1))
    plan.hand_out(0)

    plan.progressed(uuids(0, 1), 1, 1_500)
    plan.tick(DEADLINE_MS)

    assert plan.waiting == 1


def test_a_late_acknowledgement_counts_wherever_the_message_is():
    plan = new_plan(workers=2)
    plan.add(load(0, 2))
    plan.hand_out(0)
    plan.tick(DEADLINE_MS)

    assert plan.acked(uuids(0, 1), 0) == []  # waiting again
    outs = plan.hand_out(DEADLINE_MS)
    assert [out.uuids for out in outs] == [uuids(1, 1)]
    assert len(plan.acked(uuids(1, 1), 1 - outs[0].worker)) == 1  # with another by now
    assert plan.in_flight == plan.held == 0
    assert plan.acked(uuids(1, 1), outs[0].worker) == []
    assert plan.counts.acked_unknown == 1


def test_a_worker_that_stands_still_is_tried_with_one_message_then_rests_longer():
    plan = new_plan(workers=1)
    plan.add(load(0, 10))
    assert who(plan.hand_out(0)) == [(0, 10)]

    plan.tick(2_000)
    assert plan.hand_out(2_000) == []
    assert plan.next_deadline(2_000) == 4_000
    assert who(plan.hand_out(4_000)) == [(0, 1)]
    plan.tick(6_000)
    assert plan.hand_out(6_000) == plan.hand_out(9_999) == []
    assert who(plan.hand_out(10_000)) == [(0, 1)]

    plan.acked(uuids(0, 1), 0)
    assert plan.hand_out(10_001)


def test_what_a_gone_worker_had_goes_to_others_at_once():
    plan = new_plan(workers=1)
    plan.add(load(0, 3))
    plan.hand_out(0)
    plan.joined(7, name="w7", credit=10)

    assert plan.left(0, 1) == []

    assert who(plan.hand_out(1)) == [(7, 3)]
    assert plan.left(0, 1) == []


def test_a_failed_message_is_tried_again_later_by_another():
    plan = new_plan(workers=2, retry_ms=100)
    plan.add(load(0, 1))
    plan.hand_out(0)

    assert plan.nacked(uuids(0, 1), 0, 0, reason="x", is_permanent=False) == []
    assert plan.hand_out(99) == []
    due_ms = plan.next_deadline(0)
    assert due_ms is not None
    assert 100 <= due_ms <= 120
    plan.tick(due_ms)
    assert who(plan.hand_out(due_ms)) == [(1, 1)]


def test_a_permanent_failure_is_dead_lettered_and_settled_only_then():
    plan = new_plan(workers=1)
    plan.add(load(0, 2))
    plan.hand_out(0)
    plan.acked(uuids(1, 1), 0)

    (write_dead_letters,) = plan.nacked(uuids(0, 1), 0, 0, reason="bad", is_permanent=True)
    assert isinstance(write_dead_letters, WriteDeadLetters)
    (dead_letter,) = write_dead_letters.dead_letters
    assert (dead_letter.uuid, dead_letter.reason, dead_letter.deliveries) == (
        uuids(0, 1)[0],
        "bad",
        1,
    )
    assert dead_letter.stored_id == uuids(0, 1)[0]
    assert plan.held == 1
    assert plan.dead_lettered(uuids(0, 1)) == [Settle(stored_batches=[uuids(0, 1)[0]])]
    assert plan.held == 0
    assert plan.dead_lettered(uuids(0, 1)) == []


def test_a_giant_is_dead_lettered_and_its_stored_batch_is_settled_only_then():
    plan = new_plan(workers=1, body_bytes_max=10)

    (write_dead_letters,) = plan.add(load(0, 1, size=11))
    plan.check_invariants()

    assert isinstance(write_dead_letters, WriteDeadLetters)
    (dead_letter,) = write_dead_letters.dead_letters
    assert (dead_letter.uuid, dead_letter.reason) == (uuids(0, 1)[0], "larger than 10 bytes")
    assert plan.hand_out(0) == []
    assert plan.dead_lettered(uuids(0, 1)) == [Settle(stored_batches=[uuids(0, 1)[0]])]


def test_neighbours_of_a_giant_are_handed_out_and_settled_together_with_it():
    plan = new_plan(workers=1, body_bytes_max=10)
    mixed = Load(uuids(0, 3), [5] * 3, [b"x", b"x" * 11, b"x"], stored_id=uuids(0, 1)[0])

    (write_dead_letters,) = plan.add(mixed)
    plan.check_invariants()

    assert isinstance(write_dead_letters, WriteDeadLetters)
    assert [each.uuid for each in write_dead_letters.dead_letters] == uuids(1, 1)
    assert [out.uuids for out in plan.hand_out(0)] == [[*uuids(0, 1), *uuids(2, 1)]]
    assert plan.acked([*uuids(0, 1), *uuids(2, 1)], 0) == []
    assert plan.dead_lettered(uuids(1, 1)) == [Settle(stored_batches=[uuids(0, 1)[0]])]
    assert plan.held == 0


def test_a_giant_that_is_brought_again_before_it_is_written_is_no_second_dead_letter():
    plan = new_plan(workers=1, body_bytes_max=10)
    plan.add(load(0, 1, size=11, is_stored_batch=False))

    assert plan.add(load(0, 1, size=11, is_stored_batch=False)) == []
    assert plan.counts.repeated == 1


def test_what_was_handed_out_too_often_is_dead_lettered():
    plan = new_plan(workers=1, deliveries_max=2)
    plan.add(load(0, 1, is_stored_batch=False))
    plan.hand_out(0)
    assert plan.tick(2_000) == []
    plan.hand_out(4_000)

    (write_dead_letters,) = plan.tick(6_000)

    assert isinstance(write_dead_letters, WriteDeadLetters)
    assert write_dead_letters.dead_letters[0].entry == b"0-0"
    assert (
        write_dead_letters.dead_letters[0].reason
        == "handed out 2 times, at last not answered in time"
    )


def test_a_message_that_kills_workers_takes_few_others_with_it():
    """One of 400 brings down whoever gets it; with 5 deliveries only that one is dead-lettered."""
    plan = new_plan(workers=0, deliveries_max=5)
    plan.add(load(0, 400))
    killer = uuids(123, 1)[0]
    dead, worker = [], 0
    for now_ms in range(200):
        plan.joined(worker, name=f"w{worker}", credit=1_000)
        plan.joined(worker + 1, name=f"w{worker + 1}", credit=1_000)
        for out in plan.hand_out(now_ms):
            if killer in out.uuids:
                continue
            plan.acked(out.uuids, out.worker)
        actions = [*plan.left(worker, now_ms), *plan.left(worker + 1, now_ms)]
        dead += [
            dead_letter.uuid
            for each in actions
            if isinstance(each, WriteDeadLetters)
            for dead_letter in each.dead_letters
        ]
        worker += 2
        plan.check_invariants()

    assert dead == [killer]


def test_suspects_are_handed_out_one_by_one_and_one_to_a_worker():
    plan = new_plan(workers=0)
    plan.add(load(0, 8))
    for worker in (1, 2):
        plan.joined(worker, name="w", credit=100)
        plan.hand_out(0)
        plan.left(worker, 0)
    plan.joined(3, name="w", credit=100)
    plan.joined(4, name="w", credit=100)

    assert who(plan.hand_out(0)) == [(3, 1), (4, 1)]


def test_a_message_that_the_plan_has_is_not_taken_twice():
    plan = new_plan(workers=1)
    plan.add(load(0, 5, is_stored_batch=False))
    plan.hand_out(0)

    assert plan.add(load(3, 5, is_stored_batch=False)) == []

    assert (plan.held, plan.counts.repeated) == (8, 2)
    assert [out.uuids for out in plan.hand_out(0)] == [uuids(5, 3)]


def test_a_stored_batch_whose_messages_are_in_other_stored_batches_is_settled_at_once():
    plan = new_plan(workers=1)
    plan.add(load(0, 10))

    assert plan.add(load(3, 4)) == [Settle(stored_batches=[uuids(3, 1)[0]])]
    assert plan.add(load(0, 10)) == []  # the same stored batch once more
    assert plan.held == 10


def test_a_load_that_names_a_message_twice_has_it_once():
    plan = new_plan(workers=1)
    one = uuids(0, 1)[0]

    plan.add(Load([one, one], [5, 5], [b"a", b"b"], entries=[b"1-0", b"1-0"]))

    assert plan.held == 1
    plan.check_invariants()


def test_room_counts_messages_and_bytes():
    plan = new_plan(workers=0, messages_max=10, bytes_max=1_000)
    plan.add(load(0, 4))
    assert plan.room == 6
    plan.add(load(4, 1, size=1_000))
    assert plan.room == 0
    assert plan._table.bytes == 1_008


def test_a_frame_is_cut_by_bytes():
    plan = new_plan(workers=1, batch_bytes_max=100)
    plan.add(load(0, 5, size=40))
    plan.add(load(5, 1, size=500))

    assert who(plan.hand_out(0)) == [(0, 2), (0, 2), (0, 1), (0, 1)]


def test_finished_batches_do_not_pile_up_before_their_deadline():
    plan = new_plan(workers=1)
    for number in range(5_000):
        plan.add(load(number, 1))
        plan.hand_out(0)
        plan.acked(uuids(number, 1), 0)

    assert len(plan._out) <= 1_000


def test_a_redelivery_waits_for_another_worker_that_only_has_no_room():
    plan = new_plan(workers=2, credit=1)
    plan.add(load(0, 2))
    assert who(plan.hand_out(0)) == [(0, 1), (1, 1)]
    plan.nacked(uuids(0, 1), 0, 0, reason="x", is_permanent=False)
    plan.tick(200)

    assert plan.hand_out(200) == []
    plan.add(load(9, 1))
    assert [(out.worker, out.uuids) for out in plan.hand_out(200)] == [(0, uuids(9, 1))]
    plan.acked(uuids(1, 1), 1)
    assert [(out.worker, out.uuids) for out in plan.hand_out(200)] == [(1, uuids(0, 1))]


@pytest.mark.parametrize("is_stored_batch", [True, False])
def test_a_plan_that_is_done_holds_nothing(is_stored_batch):
    plan = new_plan(workers=2)
    plan.add(load(0, 50, is_stored_batch=is_stored_batch))
    for out in plan.hand_out(0):
        plan.acked(out.uuids, out.worker)

    assert (plan.held, plan._table.bytes, plan.in_flight, plan.waiting) == (0, 0, 0, 0)
    assert plan.next_deadline(0) in (None, DEADLINE_MS)
    plan.tick(DEADLINE_MS)
    assert plan.next_deadline(DEADLINE_MS) is None
