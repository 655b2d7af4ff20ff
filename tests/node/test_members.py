"""Who is a member, for how long, and where a group begins."""

from dataclasses import replace

import pytest

from tests.node.consuming import DELIVERY, GROUPS, consuming, places_of
from waterclock.model.errors import BadInput, LimitExceeded, Stopping, UnknownTopic
from waterclock.model.sections import TopicsConfig
from waterclock.model.units import HOUR_MS
from waterclock.node.groups.outbound import Assigned, Delivery, Lost, Refused, Revoked
from waterclock.node.groups.positions import Start
from waterclock.node.groups.session import AnswerKind, Ending

ACK, NACK, GIVE_BACK, REJECT, EXTEND = AnswerKind


def spans(delivery: Delivery) -> tuple[tuple[int, int], ...]:
    return delivery.messages.ranges


def values(count: int, size: int = 8) -> list[bytes]:
    return [b"%d" % number + b"." * size for number in range(count)]


# Joining and leaving


async def test_a_partition_moves_to_a_new_member_once_its_owner_has_finished(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t", partitions=2)
        await c.publish(b"a", b"b", partition=1)
        one = await c.join("one")
        one.take()
        two = await c.join("two")

        one.take()
        assert Revoked(1, 1, c.clock.now_ms() + 500) in one.notices
        assert two.take() == []
        one.ack(0, 1, partition=1)
        await c.settle()
        one.take()

        assert one.notices[-1] == Lost(1, 1)
        assert two.take() == [Assigned(1, 2, 2)]


async def test_a_partition_whose_owner_does_not_finish_moves_when_the_grace_is_over(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t", partitions=2)
        await c.publish(b"a", partition=1)
        one = await c.join("one")
        one.take()
        two = await c.join("two")
        await c.pass_time(500)

        two.take()
        one.ack(0, partition=1)

        assert [d.attempt for d in two.deliveries] == [1], "moving is nobody's failure"
        assert Refused(1, 1, (), is_stale=True) in one.take()


async def test_a_member_that_loses_a_partition_goes_on_with_the_credit_it_gets_back(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t", partitions=2)
        one = await c.join("one", credit=5)
        await c.publish(*values(5), partition=1)
        await c.settle()
        one.take()
        await c.publish(*values(5), partition=0)
        await c.join("two")
        await c.pass_time(500)
        one.take()

        assert one.notices[-1] == Lost(1, 1)
        assert one.offsets[5:] == [(0, n) for n in range(5)]


async def test_what_was_queued_goes_to_the_next_owner_and_not_to_the_former(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t", partitions=2)
        await c.publish(b"a", partition=1)
        one = await c.join("one")
        two = await c.join("two")
        await c.pass_time(500)

        one.take()
        two.take()

        assert one.deliveries == []
        assert [(d.attempt, places_of(d)) for d in two.deliveries] == [(1, [(1, 0)])]


async def test_a_member_that_leaves_hands_over_at_once_and_uncounted(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(b"a")
        one = await c.join("one")
        one.take()
        two = await c.join("two")

        one.session.leave()
        await c.settle()
        two.take()

        assert one.session.ending is Ending.LEFT
        assert list(c.host()._sessions) == ["two"], "nothing is kept of who is gone"
        assert [(d.attempt, places_of(d)) for d in two.deliveries] == [(1, [(0, 0)])]


async def test_a_broken_connection_may_count_the_first_that_was_held_and_no_other(tmp_path):
    counting = replace(DELIVERY, count_lost_owners=True)
    async with consuming(tmp_path, delivery=counting) as c:
        await c.hosts.topic("t")
        await c.publish(*values(3_000, 100))
        await c.publish(b"queued")
        one = await c.join("one", credit=10_000)
        two = await c.join("two", credit=10_000)
        while not isinstance(one.session.take(), Delivery):
            pass

        one.session.close(clean=False)
        await c.settle()
        two.take()
        assert [(d.attempt, spans(d)) for d in two.deliveries] == [
            (1, ((1, 3_000),)),
            (1, ((3_000, 3_001),)),
        ]
        await c.pass_time(100)
        two.take()

        assert [(d.attempt, spans(d)) for d in two.deliveries[2:]] == [(2, ((0, 1),))]


@pytest.mark.parametrize("ends", ["broken", "silent", "replaced"])
async def test_no_number_of_lost_members_makes_a_dead_letter(tmp_path, ends):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(b"a")
        for _ in range(3 * DELIVERY.max_retries + 2):
            member = await c.join("one")
            member.take()
            assert [(d.attempt, places_of(d)) for d in member.deliveries] == [(1, [(0, 0)])]
            if ends == "broken":
                member.session.close(clean=False)
            elif ends == "silent":
                member.answer(EXTEND, 0, at_ms=c.clock.now_ms() + HOUR_MS)
                await c.pass_time(GROUPS.session_timeout_ms)
                assert member.session.ending is Ending.SILENT
            await c.settle()
        assert c.host().counters.dead_lettered == 0


async def test_a_member_that_is_silent_is_taken_to_be_dead(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        one = await c.join("one")
        two = await c.join("two")
        await c.pass_time(2_000)
        two.session.heartbeat()
        await c.pass_time(1_000)

        two.take()

        assert one.session.ending is Ending.SILENT
        assert [type(notice) for notice in two.notices] == [Assigned]
        with pytest.raises(StopAsyncIteration):
            await anext(one.session)


async def test_a_member_that_joins_again_replaces_itself(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(b"a")
        old = await c.join("one")
        old.take()
        new = await c.join("one")
        old.session.close(clean=False)
        await c.pass_time(100)

        new.take()

        assert old.session.ending is Ending.REPLACED
        assert [(d.attempt, d.generation) for d in new.deliveries] == [(1, 2)]
        assert c.groups.get("t", "g").members == ("one",)


async def test_a_group_has_room_for_so_many_members(tmp_path):
    async with consuming(tmp_path, groups=replace(GROUPS, members_max=1)) as c:
        await c.hosts.topic("t")
        one = await c.join("one")

        with pytest.raises(LimitExceeded, match="members"):
            await c.join("two")
        one.session.leave()
        await c.settle()
        await c.join("two")


async def test_names_are_checked_and_given_where_there_is_none(tmp_path):
    async with consuming(tmp_path, topics=TopicsConfig(auto_create=False)) as c:
        await c.hosts.topic("t")
        named = await c.join("")

        assert named.session.member.startswith("g-")
        for group, member in [("", "m"), ("a/b", "m"), ("__g", "m"), ("g", "a b")]:
            with pytest.raises(BadInput):
                await c.groups.open_session("t", group, member=member)
        with pytest.raises(UnknownTopic):
            await c.groups.open_session("nowhere", "g")


async def test_a_session_that_is_over_hears_and_says_nothing(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(b"a")
        member = await c.join()
        member.take()
        await c.groups.close()

        member.ack(0)
        member.session.set_credit(5, 5)
        member.session.heartbeat()
        member.session.leave()

        assert member.session.ending is Ending.STOPPING
        assert c.groups.get("t", "g").partitions[0].unacked == 1
        with pytest.raises(Stopping):
            await c.join("late")


# Beginning


@pytest.mark.parametrize(
    ("start", "expected"),
    [(Start.EARLIEST, [0, 1, 2, 3]), (Start.LATEST, [3]), (Start.TIME, [2, 3])],
)
async def test_a_new_group_begins_where_it_is_told_and_goes_on_where_it_was(
    tmp_path, start, expected
):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(b"a", b"b")
        c.clock.advance(1_000)
        noon_ms = c.clock.now_ms()
        await c.publish(b"c")
        first = await c.join(start=start, start_ms=noon_ms)
        first.session.leave()
        await c.publish(b"d")
        second = await c.join(start=Start.LATEST)

        second.take()

        assert [offset for _, offset in second.offsets] == expected


async def test_partitions_that_are_added_are_read_from_their_first_message(tmp_path):
    async with consuming(tmp_path) as c:
        topic = await c.hosts.topic("t")
        member = await c.join(start=Start.LATEST)
        settings = replace_partitions(topic.settings, 3)
        await c.hosts.topics.update("t", settings)
        await c.publish(b"a", partition=2)
        await c.settle()

        member.take()

        assert member.offsets == [(2, 0)]
        assert {w.partition for w in member.notices if isinstance(w, Assigned)} == {0, 1, 2}


def replace_partitions(settings, partitions):
    return type(settings)(partitions=partitions)


async def test_deleting_a_topic_ends_its_sessions_and_forgets_its_groups(tmp_path):
    async with consuming(tmp_path) as c:
        await c.hosts.topic("t")
        await c.publish(b"a")
        member = await c.join()
        await c.hosts.topics.delete("t")

        assert member.session.ending is Ending.TOPIC_GONE
        assert c.hosts.metadata.items("group/") == []
        assert c.hosts.metadata.items("progress/") == []
        await c.hosts.topic("t")
        await c.publish(b"new")
        again = await c.join()
        again.take()
        assert again.values == [b"new"]
