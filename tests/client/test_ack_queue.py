"""Answers go out as the fewest ranges, each once, whoever gives them and in whatever order."""

import threading
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.client.deliveries import NOW_MS, delivered
from waterclock.client.consumer.ack_queue import AckQueue, bounds_of
from waterclock.client.consumer.delivery import Delivery, Lease
from waterclock.model.errors import BadInput
from waterclock.v1.broker_pb2 import Answer

ranges = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 8)), max_size=30)


def ack_queue(woken: list[bool] | None = None) -> AckQueue:
    return AckQueue((woken if woken is not None else []).append, lambda: NOW_MS)


def said(acks: AckQueue) -> list[tuple[int, int, int, list[int], int]]:
    return [
        (each.partition, each.generation, each.kind, list(each.bounds), each.at_ms or each.after_ms)
        for each in acks.drain(set())
    ]


@given(ranges)
def test_ranges_are_merged_to_the_fewest_that_hold_the_same_offsets(pairs):
    given_ranges = [(start, start + size) for start, size in pairs]
    offsets = {offset for start, end in given_ranges for offset in range(start, end)}

    bounds = bounds_of(given_ranges)

    held = list(zip(bounds[::2], bounds[1::2], strict=True))
    assert {offset for start, end in held for offset in range(start, end)} == offsets
    # Ascending, not empty, and with a gap between each two.
    assert all(start < end for start, end in held)
    assert all(end < start for (_, end), (start, _) in pairwise(held))


@given(st.data())
def test_messages_acked_in_any_order_are_the_ranges_that_were_delivered(data):
    offsets = sorted(data.draw(st.sets(st.integers(0, 50), min_size=1)))
    acks = ack_queue()
    delivery = delivered(offsets, acks)
    messages = data.draw(st.permutations(list(delivery.messages())))
    cut = data.draw(st.integers(0, len(messages)))

    acked: set[int] = set()
    for part in (messages[:cut], messages[cut:]):
        for message in part:
            assert message.ack()
        for _, _, kind, bounds, _ in said(acks):
            assert kind == Answer.ACK
            for start, end in zip(bounds[::2], bounds[1::2], strict=True):
                assert not acked & set(range(start, end))
                acked |= set(range(start, end))

    assert acked == set(offsets)
    assert delivery.is_settled


def test_each_partition_and_generation_answers_for_itself():
    acks = ack_queue()
    leases = [Lease(0, 1), Lease(0, 2), Lease(1, 2)]
    for lease in leases:
        for message in delivered([5, 6, 7], acks, lease).messages():
            message.ack()

    assert said(acks) == [
        (0, 1, Answer.ACK, [5, 8], 0),
        (0, 2, Answer.ACK, [5, 8], 0),
        (1, 2, Answer.ACK, [5, 8], 0),
    ]
    assert said(acks) == []


def test_deliveries_that_touch_become_one_range():
    acks = ack_queue()
    lease = Lease(0, 1)
    for offsets in ([0, 1], [2, 3], [6]):
        for message in delivered(offsets, acks, lease).messages():
            message.ack()

    assert said(acks) == [(0, 1, Answer.ACK, [0, 4, 6, 7], 0)]


def test_each_kind_of_answer_says_its_own():
    acks = ack_queue()
    acked, failed, named, rejected, returned, extended = delivered([*range(6)], acks).messages()
    acked.ack()
    failed.nack()
    named.nack(retry_in="5s")
    rejected.reject()
    returned.give_back()
    extended.extend("1m")

    assert said(acks) == [
        (0, 1, Answer.EXTEND, [5, 6], 60_000),
        (0, 1, Answer.NACK, [1, 2], 0),
        (0, 1, Answer.NACK, [2, 3], 5_000),
        (0, 1, Answer.REJECT, [3, 4], 0),
        (0, 1, Answer.GIVE_BACK, [4, 5], 0),
        (0, 1, Answer.ACK, [0, 1], 0),
    ]


def test_the_time_of_a_retry_is_named_in_one_way():
    acks = ack_queue()
    (message,) = delivered([0], acks).messages()
    with pytest.raises(BadInput, match="either retry_in or retry_at"):
        message.nack(retry_in="5s", retry_at="+5s")
    moment = datetime(2026, 1, 1, tzinfo=UTC)

    assert message.nack(retry_at=moment)
    assert said(acks)[0][4] == moment.timestamp() * 1_000


def test_the_first_answer_counts():
    acks = ack_queue()
    (message,) = delivered([0], acks).messages()

    assert message.is_held
    assert message.ack()
    assert not message.is_held
    assert not message.nack()
    assert not message.ack()
    assert not message.extend()
    assert said(acks) == [(0, 1, Answer.ACK, [0, 1], 0)]


def test_an_answer_after_the_lease_is_void_says_so_and_is_not_sent():
    acks = ack_queue()
    lease = Lease(0, 1)
    early, late = delivered([0, 1], acks, lease).messages()
    early.ack()
    lease.is_void = True

    assert not late.ack()
    assert not late.reject()
    assert said(acks) == []


def test_an_answer_may_be_awaited():
    async def test() -> tuple[bool, bool]:
        (message,) = delivered([0], ack_queue()).messages()
        return await message.ack(), await message.ack()

    coroutine = test()
    with pytest.raises(StopIteration) as ended:
        coroutine.send(None)
    assert ended.value.value == (True, False)


def test_a_batch_answers_as_a_whole():
    acks = ack_queue()
    delivery = delivered([0, 1, 2, 7], acks)
    next(delivery.messages()).ack()
    batch = batch_of(delivery)

    assert batch.offsets.tolist() == [1, 2, 7]
    assert batch.rows.column("value").to_pylist() == [b"1", b"2", b"7"]
    assert batch.extend(timedelta(seconds=9))
    assert batch.ack()
    assert said(acks) == [
        (0, 1, Answer.EXTEND, [1, 3, 7, 8], 9_000),
        (0, 1, Answer.ACK, [0, 3, 7, 8], 0),
    ]
    assert delivery.is_settled


def batch_of(delivery: Delivery):
    from waterclock.client.consumer.delivery import ReceivedBatch

    return ReceivedBatch(delivery, delivery.take_rest())


def test_the_writer_is_woken_once_and_hurried_when_much_gathers():
    woken: list[bool] = []
    acks = ack_queue(woken)
    acks.urgent_count = 3
    messages = list(delivered([*range(8)], acks).messages())
    for message in messages[:6]:
        message.ack()

    assert woken == [False, True]
    said(acks)
    messages[6].ack()
    assert woken == [False, True, False]
    acks.flush()
    acks.flush()
    assert woken == [False, True, False, True]


def test_answers_of_other_threads_are_neither_lost_nor_doubled():
    acks = ack_queue()
    messages = list(delivered([*range(20_000)], acks).messages())
    threads = [
        threading.Thread(target=lambda part: [each.ack() for each in part], args=(messages[n::4],))
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    acked: list[int] = []
    while any(thread.is_alive() for thread in threads) or acks._acks:
        for _, _, _, bounds, _ in said(acks):
            for start, end in zip(bounds[::2], bounds[1::2], strict=True):
                acked.extend(range(start, end))

    assert sorted(acked) == [*range(20_000)]
