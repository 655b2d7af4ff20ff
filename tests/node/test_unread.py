"""A member that does not read what goes out to it: it holds little of the node, and no answer of
its own changes what is queued."""

import pytest

from tests.node.consuming import DELIVERY, consuming
from waterclock.node.groups.outbound import Refused
from waterclock.node.groups.session import REFUSED_RANGES_MAX, AnswerKind

ACK, NACK, GIVE_BACK, REJECT, EXTEND = AnswerKind


@pytest.mark.parametrize("kind", AnswerKind)
async def test_answers_about_what_is_queued_are_refused(tmp_path, kind):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(b"a", b"b", b"c")
        member = await c.join()
        assigned = member.session.take()
        assert assigned is not None
        generation = c.host().partitions[0].cursor.generation
        assert generation is not None

        for _ in range(100):
            member.session.answer(kind, 0, generation, [(1, 2), (0, 9), (0, 2)], at_ms=1)
        await c.pass_time(DELIVERY.ack_timeout_ms - 1)
        member.take()

        assert member.offsets == [(0, 0), (0, 1), (0, 2)]
        assert [d.attempt for d in member.deliveries] == [1]
        assert c.host().counters.timed_out == 0
        assert set(member.notices) == {
            Refused(0, generation, ((0, 3),), is_stale=False),
            Refused(0, generation, ((3, 9),), is_stale=False),
        }


async def test_what_has_gone_out_is_answered_for_while_the_rest_is_queued(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(b"a", b"b", b"c")
        member = await c.join()
        member.take()
        member.answer(GIVE_BACK, 1, at_ms=1)
        await c.settle()  # it is queued again, between two that are held

        member.session.answer(ACK, 0, 1, [(0, 3)])

        assert member.take()[1:] == [Refused(0, 1, ((1, 2),), is_stale=False)]
        assert member.offsets == [(0, 0), (0, 1), (0, 2), (0, 1)]
        assert c.host().counters.acked == 2
        member.ack(1)
        assert c.host().partitions[0].cursor.committed == 3


async def test_what_was_withdrawn_or_is_gone_is_not_queued_any_more(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        expires = b"%d" % (c.clock.now_ms() + 10)
        await c.publish(b"a", headers={"wc-expires-ms": expires})
        await c.publish(b"b")
        slow = await c.join("slow")
        slow.session.leave()
        member = await c.join("next")
        await c.pass_time(10)
        member.take()

        assert not c.host().partitions[0].unsent
        member.ack(1)
        assert c.host().partitions[0].cursor.committed == 2


async def test_queued_refusals_name_only_so_many_ranges(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        member = await c.join()
        member.take()
        named = [(2 * n, 2 * n + 1) for n in range(REFUSED_RANGES_MAX // 2)]

        for _ in range(4):
            member.session.answer(ACK, 0, 1, named)
        refusals = [notice for notice in member.take() if isinstance(notice, Refused)]
        member.session.answer(ACK, 0, 1, named)

        assert [len(notice.ranges) for notice in refusals] == [len(named), len(named), 0, 0]
        assert not any(notice.is_stale for notice in refusals)
        assert member.take() == [Refused(0, 1, tuple(named), is_stale=False)]
