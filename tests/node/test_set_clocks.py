"""Leases and waits of groups when somebody sets the wall clock or pauses the node: they last."""

import pytest

from tests.node.consuming import DELIVERY, GROUPS, consuming
from waterclock.model.clock import SETTLE_MS
from waterclock.node.groups.session import AnswerKind

HOUR_MS = 3_600_000
steps = pytest.mark.parametrize("step_ms", [-HOUR_MS, HOUR_MS])


@steps
async def test_a_lease_ends_after_its_time(tmp_path, step_ms):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(b"a")
        member = await c.join()
        member.take()

        c.clock.step(step_ms)
        await c.pass_time(DELIVERY.ack_timeout_ms - 1)
        assert c.host().counters.timed_out == 0
        await c.pass_time(1)
        assert c.host().counters.timed_out == 1
        await c.pass_time(DELIVERY.retry_delay_ms)
        member.take()
        assert [d.attempt for d in member.deliveries] == [1, 2]


@steps
async def test_deadlines_are_told_and_taken_in_the_time_of_the_wall(tmp_path, step_ms):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        member = await c.join()
        c.clock.step(step_ms)
        await c.publish(b"a")
        await c.settle()
        member.take()

        now_ms = c.clock.now_ms()
        assert member.deliveries[0].deadline_ms == now_ms + DELIVERY.ack_timeout_ms

        member.answer(AnswerKind.NACK, 0, at_ms=now_ms + 700)
        await c.pass_time(699)
        assert member.take() == []
        await c.pass_time(1)
        assert len(member.take()) == 1


@steps
async def test_a_wait_goes_on_after_a_restart(tmp_path, step_ms):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(b"a")
        member = await c.join()
        member.take()
        member.answer(AnswerKind.NACK, 0, at_ms=c.clock.now_ms() + 700)
        c.clock.step(step_ms)
    async with consuming(tmp_path, clock=c.clock) as c:
        member = await c.join()
        await c.pass_time(699)
        member.take()
        assert member.deliveries == []
        await c.pass_time(1)
        member.take()
        assert len(member.deliveries) == 1


@steps
async def test_a_wait_goes_on_after_a_crash(tmp_path, step_ms):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(b"a")
        member = await c.join()
        member.take()
        member.answer(AnswerKind.NACK, 0, at_ms=c.clock.now_ms() + 700)
        await c.groups.save_all()
        c.clock.step(step_ms)
        await c.groups.save_all()
        c.has_crashed = True
    async with consuming(tmp_path, clock=c.clock) as c:
        member = await c.join()
        await c.pass_time(699)
        member.take()
        assert member.deliveries == []
        await c.pass_time(1)
        member.take()
        assert len(member.deliveries) == 1


async def test_a_wait_that_was_over_does_not_begin_again(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(b"a")
        member = await c.join()
        member.take()
        member.answer(AnswerKind.NACK, 0, at_ms=c.clock.now_ms() + 700)
        await c.groups.save_all()
        await c.pass_time(700)
        member.take()
        c.clock.step(-HOUR_MS)
    async with consuming(tmp_path, clock=c.clock) as c:
        member = await c.join()
        await c.pass_time(DELIVERY.retry_delay_ms)
        member.take()
        assert len(member.deliveries) == 1


@steps
async def test_a_member_has_its_whole_time_to_be_heard(tmp_path, step_ms):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.join()

        c.clock.step(step_ms)
        await c.pass_time(GROUPS.session_timeout_ms - 1)
        assert c.host().members == ("m",)
        await c.pass_time(1)
        assert c.host().members == ()


async def test_a_node_that_was_paused_takes_nobody_for_dead_and_hears_what_was_sent(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(b"a")
        member = await c.join()
        member.take()

        for _ in range(4):
            c.groups.clock.pulse(0)
            await c.pass_time(10 * GROUPS.session_timeout_ms)
            assert c.host().members == ("m",)
        member.ack(0)
        assert member.take() == [], "nothing was refused, nothing came again"
        assert (c.host().counters.acked, c.host().counters.timed_out) == (1, 0)


async def test_who_was_silent_before_a_pause_and_after_it_is_dead(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.join()
        await c.pass_time(2_000)
        c.groups.clock.pulse(0)
        await c.pass_time(HOUR_MS)
        c.groups.clock.pulse(0)

        for _ in range(4):
            await c.pass_time(SETTLE_MS)
            c.groups.clock.pulse(0)
        assert c.host().members == ("m",)
        await c.pass_time(249)
        assert c.host().members == ("m",)
        await c.pass_time(1)
        assert c.host().members == ()
