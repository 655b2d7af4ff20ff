"""Subscribe over real sockets, against a real node."""

import asyncio

import pytest
from grpc import StatusCode
from grpc.aio import AioRpcError

from tests.server.http_client import until
from tests.server.members import Member, opening, values_of
from tests.server.served import running_server
from waterclock.log.schema import from_messages
from waterclock.model.message import Message
from waterclock.model.sections import DeliveryConfig, GroupConfig
from waterclock.node.dead_letters import writer
from waterclock.node.groups.outbound import DeliveryBatch
from waterclock.server.rows import in_slices
from waterclock.v1 import admin_pb2 as admin
from waterclock.v1 import broker_pb2 as pb

ACK, NACK = pb.Answer.ACK, pb.Answer.NACK
QUICK = DeliveryConfig(retry_delay_ms=100, retry_delay_ms_max=100, retry_jitter_percent=0)


async def group_of(it, group="g"):
    return await it.admin.GetGroup(admin.GetGroupRequest(topic="orders", group=group))


async def test_a_member_gets_what_was_published_as_it_lies_in_the_log(tmp_path):
    async with running_server(tmp_path) as it:
        member = Member(it, member="me")
        opened = await member.open()
        assigned = (await member.hear("assigned")).assigned
        await it.publish(b"a", b"b")
        delivery = await member.delivery()

        assert (opened.member, opened.credit.messages) == ("me", 1_000)
        assert opened.heartbeat_ms == 3_333
        assert (assigned.partition, assigned.committed) == (0, 0)
        assert values_of(delivery) == [b"a", b"b"]
        assert (delivery.attempt, list(delivery.bounds)) == (1, [0, 2])
        assert delivery.generation == assigned.generation
        assert delivery.messages.append_ms <= it.node.clock.now_ms() < delivery.deadline_ms


async def test_an_ack_moves_progress_and_a_leave_ends_well(tmp_path):
    async with running_server(tmp_path) as it:
        await it.publish(b"a", b"b", b"c")
        member = Member(it)
        await member.open()
        delivery = await member.delivery()
        await member.answer(ACK, delivery, bounds=[0, 2])
        await member.say(leave=True)

        assert await member.ended() == (StatusCode.OK, "")
        await until(lambda: not it.node.groups.get("orders", "g").partitions[0].member)
        place = (await group_of(it)).partitions[0]
        assert (place.committed, place.end_offset, place.lag, place.member) == (2, 3, 1, "")
        other = Member(it)
        await other.open()
        assert values_of(await other.delivery()) == [b"c"]


async def test_a_nacked_message_comes_again(tmp_path):
    async with running_server(tmp_path, delivery=QUICK) as it:
        await it.publish(b"a")
        member = Member(it)
        await member.open()
        first = await member.delivery()
        await member.answer(NACK, first)
        second = await member.delivery()

        assert (first.attempt, second.attempt) == (1, 2)
        assert values_of(second) == [b"a"]


async def test_a_rejected_message_goes_to_the_dead_letters(tmp_path):
    async with running_server(tmp_path) as it:
        await it.publish(b"poison")
        member = Member(it)
        await member.open()
        await member.answer(pb.Answer.REJECT, await member.delivery())
        dead = Member(it, topic="orders.dlq", group="morgue")
        await dead.open()
        delivery = await dead.delivery()
        assert values_of(delivery) == [b"poison"]

        request = admin.ListDeadLettersRequest(topic="orders")
        page = await it.admin.ListDeadLetters(request)
        (letter,) = page.dead_letters
        assert (letter.reason, letter.attempts, letter.group) == ("rejected", 1, "g")
        assert (letter.message.value, letter.origin.offset, page.total) == (b"poison", 0, 1)


class Undertaker:
    """Writes no dead letter before it is told to."""

    def __init__(self, node):
        self.may_write = asyncio.Event()
        self.is_asked = asyncio.Event()
        self._write_dead_letters = node.dead_letters.write_dead_letters
        node.dead_letters.write_dead_letters = self

    async def __call__(self, *args):
        self.is_asked.set()
        await self.may_write.wait()
        await self._write_dead_letters(*args)


async def test_whoever_left_finds_what_it_rejected_in_the_dead_letters(tmp_path):
    async with running_server(tmp_path) as it:
        await it.publish(b"poison")
        undertaker = Undertaker(it.node)
        member = Member(it)
        await member.open()
        await member.answer(pb.Answer.REJECT, await member.delivery())
        await member.say(leave=True)
        ending = asyncio.ensure_future(member.ended())
        await undertaker.is_asked.wait()
        await until(lambda: not it.node.groups.get("orders", "g").members)
        await group_of(it)  # another call's whole way, and this one has still not ended
        assert not ending.done()

        undertaker.may_write.set()

        assert await ending == (StatusCode.OK, "")
        assert (await group_of(it)).partitions[0].lag == 0
        page = await it.admin.ListDeadLetters(admin.ListDeadLettersRequest(topic="orders"))
        assert page.total == 1


async def test_whoever_left_waits_for_no_dead_letters_of_others(tmp_path):
    async with running_server(tmp_path) as it:
        await it.publish(b"poison")
        undertaker = Undertaker(it.node)
        member, other = Member(it), Member(it, member="other")
        await member.open()
        await member.answer(pb.Answer.REJECT, await member.delivery())
        await undertaker.is_asked.wait()
        await other.open()

        await other.say(leave=True)

        assert await other.ended() == (StatusCode.OK, "")
        undertaker.may_write.set()


async def test_whoever_left_is_answered_though_its_dead_letters_cannot_be_written(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(writer, "WRITTEN_S", 0.0)

    async with running_server(tmp_path) as it:
        await it.publish(b"poison")
        undertaker = Undertaker(it.node)
        member = Member(it)
        await member.open()
        await member.answer(pb.Answer.REJECT, await member.delivery())
        await member.say(leave=True)

        assert await member.ended() == (StatusCode.OK, "")
        assert "left_before_dead_letters group=g" in caplog.text
        undertaker.may_write.set()


async def test_a_stopping_node_does_not_wait_for_dead_letters_it_cannot_write(tmp_path):
    async with running_server(tmp_path) as it:
        await it.publish(b"poison")
        undertaker = Undertaker(it.node)
        member = Member(it)
        await member.open()
        await member.answer(pb.Answer.REJECT, await member.delivery())
        await member.say(leave=True)
        await undertaker.is_asked.wait()
        await until(lambda: not it.node.groups.get("orders", "g").members)

        it.server.calls.stop()

        assert (await member.ended())[0] == StatusCode.UNAVAILABLE


async def test_credit_is_the_brake(tmp_path):
    async with running_server(tmp_path) as it:
        for i in range(4):
            await it.publish(b"%d" % i)
        member = Member(it)
        await member.open(credit=pb.Credit(messages=1, bytes=1_000))
        got = []
        for _ in range(3):
            delivery = await member.delivery()
            got += values_of(delivery)
            assert (await group_of(it)).partitions[0].unacked == 1
            await member.answer(ACK, delivery)
        last = await member.delivery()
        await member.say(credit=pb.Credit(messages=0))
        await member.answer(ACK, last)
        await until(lambda: it.node.groups.get("orders", "g").partitions[0].committed == 4)
        await it.publish(b"4")
        assert (await group_of(it)).partitions[0].unacked == 0
        await member.say(credit=pb.Credit(messages=1, bytes=1_000))
        got += values_of(last) + values_of(await member.delivery())

        assert got == [b"0", b"1", b"2", b"3", b"4"]


async def test_clients_without_arrow_get_messages(tmp_path):
    async with running_server(tmp_path) as it:
        message = pb.Message(message_id=b"1", key=b"k", value=b"v", headers={"h": b"x"})
        tombstone = pb.Message(message_id=b"2", key=b"k")
        for one in (message, tombstone):
            await it.broker.Publish(pb.PublishRequest(topic="orders", message=one))
        member = Member(it, format=pb.FORMAT_MESSAGES)
        await member.open()
        rows: list[pb.Message] = []
        while len(rows) < 2:
            delivery = await member.delivery()
            assert not delivery.messages.arrow
            rows += delivery.messages.rows

        assert rows == [message, tombstone]


def test_rows_go_out_in_slices_with_their_own_bounds():
    messages = [Message(b"%d" % i, message_id=b"%d" % i) for i in range(1_200)]
    ranges = ((0, 300), (400, 1_000), (2_000, 2_300))
    rows = from_messages(messages)
    batch = DeliveryBatch(ranges, rows=rows, append_ms=1, size_bytes=12_000)

    slices = list(in_slices(batch))

    assert [each.bounds for each in slices] == [
        [0, 300, 400, 600],
        [600, 1_000, 2_000, 2_100],
        [2_100, 2_300],
    ]
    assert [each.rows.num_rows for each in slices] == [500, 500, 200]
    large = DeliveryBatch(((0, 1_200),), rows=rows, append_ms=1, size_bytes=1_200 << 20)
    assert [each.bounds for each in in_slices(large)][:2] == [[0, 1], [1, 2]]


async def test_two_members_share_the_partitions(tmp_path):
    async with running_server(tmp_path) as it:
        settings = admin.TopicSettings(partitions=2)
        await it.admin.CreateTopic(admin.CreateTopicRequest(topic="orders", settings=settings))
        first, second = Member(it, member="a"), Member(it, member="b")
        await first.open()
        await first.hear("assigned")
        await first.hear("assigned")
        await second.open()
        revoked = (await first.hear("revoked")).revoked
        lost = (await first.hear("lost")).lost
        assigned = (await second.hear("assigned")).assigned

        assert revoked.partition == lost.partition == assigned.partition
        group = await group_of(it)
        assert sorted(place.member for place in group.partitions) == ["a", "b"]


async def test_an_answer_of_another_generation_is_refused(tmp_path):
    async with running_server(tmp_path) as it:
        await it.publish(b"a")
        member = Member(it)
        await member.open()
        delivery = await member.delivery()
        await member.answer(ACK, delivery, bounds=[5, 6])
        unknown = (await member.hear("refused")).refused
        delivery.generation += 7
        await member.answer(ACK, delivery)
        stale = (await member.hear("refused")).refused

        assert (list(unknown.bounds), unknown.is_stale) == ([5, 6], False)
        assert (list(stale.bounds), stale.is_stale) == ([], True)


BAD_ANSWERS = {
    "a range that is empty": {"bounds": [1, 1]},
    "ranges that descend": {"bounds": [5, 6, 1, 2]},
    "half a range": {"bounds": [1]},
    "a negative offset": {"bounds": [-1, 2]},
    "a partition that is none": {"bounds": [0, 1], "partition": 9},
    "a negative partition": {"bounds": [0, 1], "partition": -1},
    "a kind that is none": {"bounds": [0, 1], "kind": 17},
    "a negative time": {"bounds": [0, 1], "at_ms": -1},
}


@pytest.mark.parametrize("fields", BAD_ANSWERS.values(), ids=BAD_ANSWERS.keys())
async def test_a_bad_answer_ends_the_call_by_name(tmp_path, fields):
    async with running_server(tmp_path) as it:
        member = Member(it)
        await member.open()
        await member.say(answers=[pb.Answer(**fields)])
        code, details = await member.ended()

        assert code == StatusCode.INVALID_ARGUMENT, details
        assert any(word in details for word in ("bounds", "partition", "kind", "at_ms")), details
        assert not (await group_of(it)).members


@pytest.mark.parametrize(
    ("answers", "field"),
    [
        ([pb.Answer(bounds=range(20_000))] * 11, "bounds of a request"),
        ([pb.Answer()] * 10_001, "answers of a request"),
    ],
)
async def test_too_much_in_one_request_is_refused(tmp_path, answers, field):
    async with running_server(tmp_path) as it:
        member = Member(it)
        await member.open()
        await member.say(answers=answers)
        code, details = await member.ended()

        assert code == StatusCode.INVALID_ARGUMENT
        assert details.startswith(f"{field} exceeds its limit of ")


@pytest.mark.parametrize(
    ("first", "details"),
    [
        (pb.SubscribeRequest(), "open: the first request must have it"),
        (opening(topic="orders"), "group has no name"),
        (opening(topic="o/", group="g"), "topic name 'o/': only letters"),
        (
            opening(topic="o", group="g", member="é"),
            r"member name '\xe9': only letters",
        ),
        (opening(topic="o", group="g", format=9), "format: 9 is not"),
        (opening(topic="o", group="g", start=9), "start: 9 is not"),
        (
            opening(topic="o", group="g", start_ms=-1),
            "start_ms must not be negative",
        ),
        (
            pb.SubscribeRequest(
                open=pb.SubscribeRequest.Open(topic="o", group="g"), credit=pb.Credit(messages=-1)
            ),
            "messages must not be negative",
        ),
    ],
)
async def test_a_bad_opening_is_refused(tmp_path, first, details):
    async with running_server(tmp_path) as it:
        member = Member(it)
        await member.call.write(first)
        code, said = await member.ended()

        assert code == StatusCode.INVALID_ARGUMENT
        assert said.startswith(details)


async def test_a_second_opening_is_refused(tmp_path):
    async with running_server(tmp_path) as it:
        member = Member(it)
        await member.open()
        await member.say(open=pb.SubscribeRequest.Open(topic="orders", group="g"))

        assert await member.ended() == (
            StatusCode.INVALID_ARGUMENT,
            "open: only the first request may have it",
        )


async def test_half_closing_without_a_leave_is_a_broken_connection(tmp_path):
    async with running_server(tmp_path, delivery=QUICK) as it:
        await it.publish(b"a")
        member = Member(it)
        await member.open()
        await member.delivery()
        await member.call.done_writing()
        ended = await member.ended()
        other = Member(it)
        await other.open()

        assert ended[0] == StatusCode.INVALID_ARGUMENT
        assert (await other.delivery()).attempt == 1  # who is lost costs it none


async def test_a_client_that_vanishes_gives_its_place_to_others(tmp_path):
    async with running_server(tmp_path, delivery=QUICK) as it:
        await it.publish(b"a")
        member = Member(it, member="a")
        await member.open()
        await member.delivery()
        member.call.cancel()
        await until(lambda: not it.node.groups.get("orders", "g").members)
        other = Member(it, member="b")
        await other.open()

        assert values_of(await other.delivery()) == [b"a"]
        assert it.server.calls.in_flight == 1


async def test_a_client_that_vanishes_while_it_opens_leaves_nothing_behind(tmp_path):
    async with running_server(tmp_path) as it:
        await it.publish(b"a")
        for _ in range(20):
            member = Member(it)
            await member.call.write(opening(topic="orders", group="g"))
            member.call.cancel()
        await until(lambda: not it.server.calls.in_flight)
        other = Member(it)
        await other.open()

        await other.delivery()
        assert len(it.node.groups.get("orders", "g").members) == 1


async def test_a_silent_member_is_told_to_come_again(tmp_path):
    groups = GroupConfig(session_timeout_ms=100)
    async with running_server(tmp_path, groups=groups) as it:
        member = Member(it)
        await member.open()
        code, details = await member.ended()

        assert code == StatusCode.UNAVAILABLE
        assert details == "nothing was heard of the member for too long"


async def test_a_member_that_opens_again_replaces_its_old_session(tmp_path):
    async with running_server(tmp_path) as it:
        old, new = Member(it, member="me"), Member(it, member="me")
        await old.open()
        await new.open()

        assert await old.ended() == (
            StatusCode.FAILED_PRECONDITION,
            "the member opened another session",
        )
        await new.hear("assigned")


async def test_a_deleted_topic_ends_its_members(tmp_path):
    async with running_server(tmp_path) as it:
        member = Member(it)
        await member.open()
        await it.admin.DeleteTopic(admin.DeleteTopicRequest(topic="orders"))

        assert await member.ended() == (
            StatusCode.NOT_FOUND,
            "there is no topic 'orders'",
        )


async def test_too_many_members_are_refused(tmp_path):
    async with running_server(tmp_path, groups=GroupConfig(members_max=1)) as it:
        first, second = Member(it), Member(it)
        await first.open()
        with pytest.raises(AioRpcError):
            await second.open()

        code, details = await second.ended()
        assert code == StatusCode.RESOURCE_EXHAUSTED
        assert details.startswith("members of a group exceeds its limit of 1")


async def test_a_member_that_does_not_read_holds_no_messages_in_memory(tmp_path):
    async with running_server(tmp_path) as it:
        member = Member(it)
        await member.open(credit=pb.Credit(messages=10_000, bytes=1 << 40))
        for i in range(64):
            await it.publish(b"%d" % i + bytes(1 << 20))
        counters = next(iter(it.node.groups.hosts())).counters
        for _ in range(100):
            await asyncio.sleep(0)

        # What HTTP/2's window and gRPC's buffers take, not all of it.
        assert counters.delivered < 32


async def test_the_call_of_a_cancelled_member_raises_nothing_in_the_node(tmp_path, caplog):
    async with running_server(tmp_path) as it:
        member = Member(it)
        await member.open()
        member.call.cancel()
        await until(lambda: not it.server.calls.in_flight)
    assert "unforeseen" not in caplog.text
