"""A session extends what waits, gives back what it must, and believes no lease that is over."""

import pytest

from tests.client.deliveries import LEASE_MS, NOW_MS, assigned, delivery_of, opened, revoked
from waterclock.client.consumer.delivery import ReceivedMessage
from waterclock.client.consumer.session import Session
from waterclock.model.errors import NodeFailed
from waterclock.v1.broker_pb2 import Answer, SubscribeResponse

WALL_MS = 1_800_000_000_000
"""The node's clock: no lease goes by it."""


def session(*, keep_alive: bool = False, offsets: tuple[list[int], ...] = ([0, 1, 2],)) -> Session:
    made = Session(
        "orders",
        keep_alive=keep_alive,
        wake=lambda _: None,
        now_ms=lambda: WALL_MS,
        monotonic_ms=lambda: NOW_MS,
    )
    made.handle(opened())
    made.handle(assigned())
    for each in offsets:
        made.handle(SubscribeResponse(delivery=delivery_of(each)))
    return made


def said(at: Session, now_ms: int = NOW_MS) -> list[tuple[int, list[int], int]]:
    answers = at.request(now_ms).answers
    return [(answer.kind, list(answer.bounds), answer.after_ms) for answer in answers]


def handed(at: Session, count: int) -> list[ReceivedMessage]:
    delivery = at.next_delivery()
    assert delivery is not None
    messages = delivery.messages()
    return [next(messages) for _ in range(count)]


HALF = NOW_MS + LEASE_MS // 2


def test_what_waits_here_is_extended_before_its_lease_runs_out():
    at = session()

    assert at.next_deadline() == HALF
    assert said(at, HALF - 1) == []
    assert said(at, HALF) == [(Answer.EXTEND, [0, 3], LEASE_MS)]
    assert at.next_deadline() == HALF + LEASE_MS // 2


def test_what_the_program_has_is_the_programs_to_extend():
    at = session()
    first, _ = handed(at, 2)

    assert said(at, HALF) == [(Answer.EXTEND, [2, 3], LEASE_MS)]
    assert first.deadline_ms == NOW_MS + LEASE_MS


def test_with_keep_alive_what_the_program_works_on_is_extended_too():
    at = session(keep_alive=True)
    first, second, _ = handed(at, 3)
    second.ack()
    said(at)

    assert said(at, HALF) == [(Answer.EXTEND, [0, 1, 2, 3], LEASE_MS)]
    first.ack()
    assert said(at, HALF) == [(Answer.ACK, [0, 1], 0)]


def test_what_ran_out_is_not_handed_out():
    at = session()
    messages = at.next_delivery()
    assert messages is not None
    at.tick(NOW_MS + LEASE_MS)

    assert list(messages.messages()) == []
    assert at.next_deadline() is None


def test_a_program_that_never_answers_costs_no_memory():
    at = session()
    handed(at, 3)
    for now_ms in (HALF, NOW_MS + LEASE_MS):
        at.tick(now_ms)

    assert repr(at) == "<Session m: 1 leases, 0 deliveries>"


def test_what_is_answered_is_forgotten():
    at = session(offsets=([0, 1], [2]))
    for message in [*handed(at, 2), *handed(at, 1)]:
        message.ack()
    said(at)

    assert repr(at) == "<Session m: 1 leases, 0 deliveries>"


def test_a_revoked_partition_gives_back_what_nobody_saw():
    at = session(offsets=([0, 1, 2], [3, 4]))
    delivery = at.next_delivery()
    assert delivery is not None
    messages = delivery.messages()
    first = next(messages)
    at.handle(revoked())

    assert list(messages) == []
    assert at.next_delivery() is None
    assert said(at) == [(Answer.GIVE_BACK, [1, 5], 0)]
    assert first.ack()
    assert said(at) == [(Answer.ACK, [0, 1], 0)]


def test_a_partition_that_stays_after_all_gives_nothing_back():
    at = session()
    at.handle(revoked(is_cancelled=True))

    assert said(at) == []
    assert len(handed(at, 3)) == 3


def test_a_lost_partition_answers_nothing_and_hands_out_nothing():
    at = session()
    first = handed(at, 1)[0]
    at.handle(SubscribeResponse(delivery=delivery_of([3])))
    at.handle(SubscribeResponse(lost=SubscribeResponse.Lost(partition=0, generation=1)))

    assert not first.ack()
    assert at.next_delivery() is None
    assert said(at, HALF) == []
    assert at.partitions == []


def test_a_stale_generation_is_lost_too():
    at = session()
    first = handed(at, 1)[0]
    at.handle(
        SubscribeResponse(
            refused=SubscribeResponse.Refused(partition=0, generation=1, is_stale=True)
        )
    )

    assert not first.ack()


def test_answers_refused_for_their_messages_alone_leave_the_partition():
    at = session()
    refused = SubscribeResponse.Refused(partition=0, generation=1, bounds=[0, 2, 5, 6])
    at.handle(SubscribeResponse(refused=refused))

    assert at.partitions == [0]


def test_after_the_end_no_answer_counts():
    at = session()
    first = handed(at, 1)[0]
    at.void()

    assert not first.ack()
    assert at.next_delivery() is None
    assert said(at, HALF) == []


def test_messages_of_a_partition_nobody_assigned_are_refused():
    at = session()
    with pytest.raises(NodeFailed, match="never assigned"):
        at.handle(SubscribeResponse(delivery=delivery_of([0], generation=9)))


def test_a_delivery_that_contradicts_itself_is_refused():
    at = session()
    wrong = delivery_of([0, 1])
    wrong.bounds[:] = [0, 3]
    with pytest.raises(NodeFailed, match="2 messages came for 3 offsets"):
        at.handle(SubscribeResponse(delivery=wrong))
    wrong.messages.arrow = b"not arrow"
    with pytest.raises(NodeFailed, match="cannot be read"):
        at.handle(SubscribeResponse(delivery=wrong))


def test_a_program_that_holds_most_of_its_credit_starves():
    at = session(offsets=())
    at.handle(opened(credit=4))
    at.handle(SubscribeResponse(delivery=delivery_of([0, 1])))
    assert not at.is_starving
    at.handle(SubscribeResponse(delivery=delivery_of([2])))
    assert at.is_starving
