"""What a member says and what it gets, on real logs."""

import asyncio
from dataclasses import replace

import pytest

from tests.node.consuming import DELIVERY, consuming, places_of
from waterclock.model.errors import BadInput, LimitExceeded
from waterclock.model.message import Message
from waterclock.node.groups.delivery import RANGES_MAX
from waterclock.node.groups.outbound import Assigned, Delivery, Refused
from waterclock.node.groups.session import REFUSALS_MAX, AnswerKind

ACK, NACK, GIVE_BACK, REJECT, EXTEND = AnswerKind


def spans(delivery: Delivery) -> tuple[tuple[int, int], ...]:
    return delivery.messages.ranges


def values(count: int, size: int = 8) -> list[bytes]:
    return [b"%d" % number + b"." * size for number in range(count)]


# Getting messages


async def test_a_member_is_told_what_it_owns_before_it_gets_any_of_it(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(b"one", b"two")
        member = await c.join()

        first, second = member.take()

        assert first == Assigned(0, 1, 0)
        assert isinstance(second, Delivery)
        assert (second.attempt, second.generation, second.messages.bounds) == (1, 1, [0, 2])
        assert second.deadline_ms == c.clock.now_ms() + 1_000
        assert member.values == [b"one", b"two"]


async def test_a_whole_data_frame_goes_out_as_it_lies_in_the_log(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(*values(1_000, 128))
        member = await c.join()

        member.take()

        frame = c.hosts.topics.get("t").partition(0).store.read(0)[0]
        body = member.deliveries[0].messages.arrow
        assert body.obj is frame.body.obj, "the body was copied"
        assert body == frame.body


async def test_small_frames_go_out_together_and_large_ones_alone(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        for number in range(5):
            await c.publish(b"%d" % number)
        await c.publish(b"x" * 100_000)
        await c.publish(b"last")
        member = await c.join()

        member.take()

        assert [spans(d) for d in member.deliveries] == [((0, 5),), ((5, 6),), ((6, 7),)]
        assert member.values[:5] == [b"0", b"1", b"2", b"3", b"4"]


async def test_messages_for_later_are_passed_over(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(b"now")
        await c.publish(b"later", b"later still", due_ms=c.clock.now_ms() + 60_000)
        await c.publish(b"now again")
        member = await c.join()

        member.take()
        member.ack(0, 3)

        assert member.offsets == [(0, 0), (0, 3)]
        assert c.groups.get("t", "g").partitions[0].committed == 4


async def test_a_fired_message_goes_out_without_the_column_of_its_scheduled_message(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(b"a", b"b", due_ms=c.clock.now_ms() + 1_000)
        c.clock.advance(1_000)
        await c.fire(0, 1)
        member = await c.join()

        member.take()

        assert member.values == [b"a", b"b"]
        assert member.deliveries[0].messages.rows().schema.names[-1] == "due_ms"
        assert member.offsets == [(0, 2), (0, 3)]


async def test_a_member_waits_for_messages_that_come_later(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        member = await c.join()
        member.take()

        async with asyncio.timeout(10):
            waiting = asyncio.ensure_future(anext(member.session))
            await c.publish(b"late")
            delivery = await waiting

        assert isinstance(delivery, Delivery)
        assert places_of(delivery) == [(0, 0)]


# Credit


async def test_no_more_goes_out_than_there_is_credit_for(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(*values(10))
        member = await c.join(credit=4)

        member.take()
        assert member.offsets == [(0, n) for n in range(4)]
        member.ack(0, 2)
        await c.settle()
        member.take()
        assert member.offsets[4:] == [(0, 4), (0, 5)]
        member.session.set_credit(0, 0)
        member.ack(1, 3, 4, 5)
        await c.settle()
        assert member.take() == []
        member.session.set_credit(100, 1 << 20)
        await c.settle()
        member.take()
        assert member.offsets[6:] == [(0, 6), (0, 7), (0, 8), (0, 9)]


async def test_bytes_of_credit_count_each_large_message_by_itself(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        sizes = [100, 100, 50_000, 100, 100]
        await c.publish(*[b"x" * size for size in sizes])
        member = await c.join(credit=10, credit_bytes=20_000)

        member.take()
        assert member.offsets == [(0, 0), (0, 1)]
        member.ack(0, 1)
        await c.settle()
        member.take()
        # Larger than all the credit: it comes alone, once the member holds nothing.
        assert member.offsets[2:] == [(0, 2)]
        member.ack(2)
        await c.settle()
        member.take()
        assert member.offsets[3:] == [(0, 3), (0, 4)]


async def test_a_member_of_several_partitions_is_served_by_all_of_them(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t", partitions=3)
        for partition in range(3):
            await c.publish(*values(50), partition=partition)
        member = await c.join(credit=10)

        for _ in range(30):
            for delivery in [d for d in member.take() if isinstance(d, Delivery)]:
                member.session.answer(ACK, delivery.partition, delivery.generation, spans(delivery))
            await c.settle()
            if len({partition for partition, _ in member.offsets}) == 3:
                break

        assert len(member.offsets) <= 40, "one partition was served out before the others"


async def test_a_slow_member_holds_ranges_and_no_messages(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        for _ in range(50):
            await c.publish(*values(20))
        member = await c.join(credit=1_000)

        assert len(member.session._queue) == 2, "a notice and one delivery"
        (queued,) = member.session.queued(c.host().partitions[0])
        assert list(queued.ranges) == [(0, 1_000)]


# Answers


async def test_what_fails_comes_again_after_its_delay_and_then_goes_to_the_dead(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(b"a", b"b")
        member = await c.join()
        member.take()

        member.answer(NACK, 0)
        await c.settle()
        assert member.take() == []
        await c.pass_time(100)
        (again,) = member.take()
        assert isinstance(again, Delivery)
        assert (again.attempt, places_of(again)) == (2, [(0, 0)])
        member.answer(NACK, 0)
        await c.pass_time(1)

        page = await c.dead_letters.list("t")
        assert [(d.reason, d.attempts, d.origin_offset) for d in page.dead_letters] == [
            ("nacked", 2, 0)
        ]


async def test_a_member_may_name_when_to_try_again(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(b"a")
        member = await c.join()
        member.take()

        member.answer(NACK, 0, at_ms=c.clock.now_ms() + 2_500)
        member.session.heartbeat()
        await c.pass_time(2_499)
        member.session.heartbeat()
        assert member.take() == []
        await c.pass_time(1)

        assert len(member.take()) == 1


async def test_what_is_given_back_comes_again_uncounted(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(b"a")
        member = await c.join()
        member.take()

        for _ in range(4):
            member.answer(GIVE_BACK, 0)
            await c.pass_time(100)
            (again,) = member.take()
            assert isinstance(again, Delivery)
            assert again.attempt == 1


async def test_a_lease_that_runs_out_is_a_failure_unless_it_was_extended(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(b"a", b"b")
        member = await c.join()
        member.take()

        member.answer(EXTEND, 1, at_ms=c.clock.now_ms() + 2_000)
        await c.pass_time(1_000)
        await c.pass_time(100)

        (again,) = member.take()
        assert isinstance(again, Delivery)
        assert (again.attempt, places_of(again)) == (2, [(0, 0)])
        assert c.host().counters.timed_out == 1


async def test_what_is_queued_does_not_time_out(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(b"a")
        member = await c.join()

        for _ in range(5):
            member.session.heartbeat()
            await c.pass_time(1_000)
        member.take()

        (delivery,) = member.deliveries
        assert delivery.attempt == 1
        assert delivery.deadline_ms == c.clock.now_ms() + 1_000
        await c.pass_time(999)
        member.ack(0)
        assert member.take() == []
        assert c.groups.get("t", "g").partitions[0].lag == 0


async def test_a_lease_begins_when_messages_go_out(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(b"a")
        member = await c.join()
        c.clock.advance(900)
        member.take()

        assert member.deliveries[0].deadline_ms == c.clock.now_ms() + 1_000
        await c.pass_time(999)
        member.ack(0)
        assert member.take() == []


async def test_a_lower_offset_that_comes_again_later_goes_out_behind_a_higher_one(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(*values(6))
        member = await c.join()
        member.take()
        member.answer(NACK, 5)
        await c.pass_time(50)
        member.answer(NACK, 3)
        await c.pass_time(50)
        await c.pass_time(50)

        again = member.take()

        assert [places_of(d) for d in again if isinstance(d, Delivery)] == [[(0, 5)], [(0, 3)]]


async def test_answers_about_what_is_not_held_are_refused(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t", partitions=2)
        await c.publish(b"a", b"b")
        one = await c.join("one", credit=1)
        two = await c.join("two")
        await c.settle()
        one.take()
        two.take()
        owned = {w.partition: w.generation for w in two.notices if isinstance(w, Assigned)}
        other = 1 - next(iter(owned))

        one.answer(ACK, 0, 1, partition=0)
        two.session.answer(ACK, other, 1, [(0, 1)])
        two.answer(ACK, 7, partition=1 - other)

        assert one.take() == [Refused(0, 1, ((1, 2),), is_stale=False)]
        assert two.take() == [
            Refused(other, 1, (), is_stale=True),
            Refused(1 - other, owned[1 - other], ((7, 8),), is_stale=False),
        ]


async def test_a_member_cannot_answer_for_another_even_in_its_generation(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(b"a")
        one = await c.join("one")
        two = await c.join("two")
        one.take()
        two.take()

        two.session.answer(ACK, 0, 1, [(0, 1)])

        assert two.take() == [Refused(0, 1, (), is_stale=True)]
        assert c.groups.get("t", "g").partitions[0].unacked == 1


@pytest.mark.parametrize(
    ("partition", "ranges"), [(1, [(0, 1)]), (-1, [(0, 1)]), (0, [(3, 3)]), (0, [(5, 2)])]
)
async def test_an_answer_that_makes_no_sense_is_an_error(tmp_path, partition, ranges):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        member = await c.join()

        with pytest.raises(BadInput):
            member.session.answer(ACK, partition, 1, ranges)


async def test_an_answer_has_a_limit_of_ranges(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        member = await c.join()

        with pytest.raises(LimitExceeded, match="ranges of an answer"):
            member.session.answer(ACK, 0, 1, [(n, n + 1) for n in range(RANGES_MAX + 1)])


async def test_a_member_that_reads_no_refusals_is_told_of_some(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        member = await c.join()
        member.take()

        for _ in range(REFUSALS_MAX + 5):
            member.answer(ACK, 7)
        taken = len(member.take())
        member.answer(ACK, 7)

        assert taken == REFUSALS_MAX
        assert len(member.take()) == 1
        assert c.host().counters.refused == REFUSALS_MAX + 6


# What disappears


async def test_messages_of_a_sparse_frame_go_out_under_their_own_offsets(tmp_path):
    async with consuming(tmp_path) as c:
        topic = await c.hosts.topic("t")
        keys = [b"a", b"b", b"a", b"c"]
        await c.send([Message(b"%d" % n, key=key) for n, key in enumerate(keys)])
        c.compact(topic.partition(0))
        member = await c.join()

        member.take()

        assert member.offsets == [(0, 1), (0, 2), (0, 3)]
        assert member.values == [b"1", b"2", b"3"]
        member.ack(1, 2, 3)
        assert c.groups.get("t", "g").partitions[0].lag == 0


async def test_what_compaction_takes_from_under_a_queued_lease_is_passed_over(tmp_path):
    async with consuming(tmp_path) as c:
        topic = await c.hosts.topic("t")
        await c.send([Message(b"%d" % n, key=b"k") for n in range(3)])
        member = await c.join()
        c.compact(topic.partition(0))
        c.forget_frames()

        member.take()

        assert member.offsets == [(0, 2)]
        member.ack(2)
        assert c.groups.get("t", "g").partitions[0].lag == 0
        assert member.session.credit.held_messages == 0


async def test_messages_that_are_too_late_are_not_handed_out(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        now_ms = c.clock.now_ms()
        ends = {1: now_ms + 500, 2: now_ms + 5_000, 3: now_ms - 1}
        for number in range(4):
            headers = {"wc-expires-ms": b"%d" % ends[number]} if number in ends else None
            await c.send([Message(b"%d" % number, headers=headers)])
        member = await c.join()
        c.clock.advance(500)

        member.take()

        assert member.offsets == [(0, 0), (0, 2)]
        assert c.host().counters.expired == 1, "the other was too late to be announced"
        member.ack(0, 2)
        assert c.groups.get("t", "g").partitions[0].lag == 0


async def test_the_log_is_read_on_when_all_that_was_queued_was_too_late(tmp_path):
    async with consuming(tmp_path, delivery=replace(DELIVERY, unacked_max=2)) as c:
        await c.hosts.topic("t")
        headers = {"wc-expires-ms": b"%d" % (c.clock.now_ms() + 500)}
        await c.send([Message(b"late", headers=headers)] * 2)
        await c.publish(b"a")
        member = await c.join()
        c.clock.advance(500)
        member.take()
        await c.settle()

        member.take()

        assert member.offsets == [(0, 2)]


async def test_the_log_is_read_on_when_the_dead_are_written(tmp_path):
    async with consuming(tmp_path, delivery=replace(DELIVERY, runs_max=2)) as c:
        await c.hosts.topic("t")
        await c.publish(b"a", b"b", b"c")
        member = await c.join()
        member.take()
        member.answer(REJECT, 0, 1)
        await c.settle()

        member.take()

        assert member.offsets == [(0, 0), (0, 1), (0, 2)]
