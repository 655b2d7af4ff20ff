"""Publish, PublishBatch and Fetch over real sockets, against a real node."""

import asyncio

import pytest
from grpc import StatusCode

from tests.node.gated_publishes import GatedPublishes
from tests.server.http_client import until
from tests.server.members import Member
from tests.server.served import Gate, arrow_of, failure, running_server
from waterclock.log.frame import Frame, FrameType, read_frame
from waterclock.log.schema import decode
from waterclock.model.limits import Limits
from waterclock.model.message import ACKS, Message
from waterclock.model.sections import ServerConfig, TopicsConfig
from waterclock.model.units import KIB
from waterclock.node.publish import batcher
from waterclock.v1 import admin_pb2 as admin
from waterclock.v1 import broker_pb2 as pb
from waterclock.v1 import scheduler_pb2 as scheduler


def frames_in(data: bytes) -> list[Frame]:
    frames: list[Frame] = []
    at = 0
    while at < len(data):
        frames.append(read_frame(data, at))
        at += frames[-1].header.size
    return frames


def values_in(data: bytes) -> list[bytes]:
    batches = [decode(frame.header, frame.body) for frame in frames_in(data)]
    return [value for batch in batches for value in batch.column("value").to_pylist()]


async def test_a_batch_is_stored_and_read_back_as_it_was_sent(tmp_path):
    async with running_server(tmp_path) as it:
        arrow = arrow_of(Message(b"a", message_id=b"1"), Message(b"b", message_id=b"2"))
        request = pb.PublishBatchRequest(topic="orders", arrow=arrow)
        answer = await it.broker.PublishBatch(request)
        fetched = await it.broker.Fetch(pb.FetchRequest(topic="orders"))

        assert answer == pb.PublishBatchResponse(count=2, made_partitions=1)
        (frame,) = frames_in(fetched.frames)
        assert bytes(frame.body) == arrow
        assert (fetched.next_offset, fetched.start_offset, fetched.end_offset) == (2, 0, 2)


async def test_what_was_published_before_is_answered_with_its_first_offset(tmp_path):
    async with running_server(tmp_path) as it:
        await it.publish(b"a", b"b")
        again = await it.publish(b"c", b"a")
        twice = await it.publish(b"a", allow_duplicate=True)

        assert list(again.offsets) == [2, 0]
        assert list(again.duplicates) == [1]
        assert (twice.first_offset, list(twice.duplicates)) == (3, [])


async def test_a_batch_falls_apart_by_key(tmp_path):
    async with running_server(tmp_path, topics=TopicsConfig(partitions=4)) as it:
        messages = [Message(b"v", key=b"k%d" % i, message_id=b"%d" % i) for i in range(50)]
        request = pb.PublishBatchRequest(topic="orders", arrow=arrow_of(*messages))
        answer = await it.broker.PublishBatch(request)

        assert answer.count == len(answer.partitions) == len(answer.offsets) == 50
        assert set(answer.partitions) == {0, 1, 2, 3}
        ends = [0, 0, 0, 0]
        for partition, offset in zip(answer.partitions, answer.offsets, strict=True):
            assert offset == ends[partition]
            ends[partition] += 1


async def test_singles_share_a_batch_and_are_answered_each(tmp_path, monkeypatch):
    monkeypatch.setattr(batcher, "BATCH_MESSAGES_MAX", 100)
    async with running_server(tmp_path) as it:
        it.node.batcher._linger_s = 3_600  # while one is being stored, only a full batch is sent
        publishes = GatedPublishes(monkeypatch)
        requests = [
            pb.PublishRequest(topic="orders", message=pb.Message(value=b"%d" % i))
            for i in range(101)
        ]
        first = asyncio.ensure_future(it.broker.Publish(requests[0]))
        await publishes.came(1)
        others = [asyncio.ensure_future(it.broker.Publish(request)) for request in requests[1:]]
        await publishes.came(1, 100)
        publishes.gate.set()
        answers = [await first, *await asyncio.gather(*others)]

        assert sorted(answer.offset for answer in answers) == list(range(101))
        assert all(answer.is_new and len(answer.message_id) == 16 for answer in answers)
        fetched = await it.broker.Fetch(pb.FetchRequest(topic="orders"))
        assert len(frames_in(fetched.frames)) == 2


async def test_singles_share_a_batch_only_with_those_that_wait_for_the_same(tmp_path, monkeypatch):
    async with running_server(tmp_path) as it:
        await it.publish(b"first")
        publishes = GatedPublishes(monkeypatch)
        async with asyncio.TaskGroup() as tasks:
            for acks in ACKS * 2:
                tasks.create_task(it.node.batcher.publish("orders", Message(b""), acks=acks))
            await publishes.came(2, 2, 2)
            publishes.gate.set()


async def test_a_single_keeps_all_it_has(tmp_path):
    async with running_server(tmp_path) as it:
        message = pb.Message(
            message_id=b"me", key=b"k", headers={"a": b"1"}, due_ms=4_000_000_000_000
        )
        request = pb.PublishRequest(topic="orders", message=message, expires_ms=4_000_000_000_001)
        answer = await it.broker.Publish(request)
        again = await it.broker.Publish(request)
        fetched = await it.broker.Fetch(pb.FetchRequest(topic="orders"))

        assert (answer.message_id, answer.offset, answer.is_new) == (b"me", 0, True)
        assert (again.offset, again.is_new) == (0, False)
        (frame,) = frames_in(fetched.frames)
        assert frame.header.type is FrameType.SCHEDULED
        (row,) = decode(frame.header, frame.body).to_pylist()
        assert row == {
            "message_id": b"me",
            "key": b"k",
            "value": None,
            "headers": [("a", b"1"), ("wc-expires-ms", b"4000000000001")],
            "due_ms": 4_000_000_000_000,
        }


async def test_bad_publishes_are_refused_by_name(tmp_path):
    limits = Limits(batch_messages_max=2, message_bytes_max=100, batch_bytes_max=64 * KIB)
    async with running_server(tmp_path, limits=limits) as it:
        await it.publish(b"a")
        publish, single = it.broker.PublishBatch, it.broker.Publish

        code, details, facts = await failure(
            publish(pb.PublishBatchRequest(topic="orders", arrow=b"nonsense"))
        )
        assert (code, facts["error"]) == (StatusCode.INVALID_ARGUMENT, "BadBatch")
        code, details, facts = await failure(it.publish(b"1", b"2", b"3"))
        assert code == StatusCode.INVALID_ARGUMENT
        assert details == "batch messages exceeds its limit of 2 (got 3)"
        assert facts == {
            "error": "LimitExceeded", "field": "batch messages", "limit": "2", "got": "3"
        }  # fmt: skip
        too_large = pb.Message(value=bytes(200))
        code, _, facts = await failure(single(pb.PublishRequest(topic="orders", message=too_large)))
        assert (code, facts["field"]) == (StatusCode.INVALID_ARGUMENT, "message bytes")
        code, details, _ = await failure(it.publish(b"x", topic="no/such\nname"))
        assert code == StatusCode.INVALID_ARGUMENT
        assert "only letters, digits" in details
        code, _, facts = await failure(it.publish(b"x", partition=7))
        assert (code, facts["what"]) == (StatusCode.NOT_FOUND, "partition")
        due = pb.Message(value=b"x", due_ms=1 << 62)
        code, _, facts = await failure(single(pb.PublishRequest(topic="orders", message=due)))
        assert (code, facts["field"]) == (StatusCode.INVALID_ARGUMENT, "due_ms")
        one = pb.PublishRequest(topic="orders", message=pb.Message(value=b"x"), acks=9)  # type: ignore[arg-type]
        for refused in (single(one), it.publish(b"x", acks=9)):
            code, details, _ = await failure(refused)
            assert code == StatusCode.INVALID_ARGUMENT
            assert details == "acks: 9 is not one of 0 (quorum), 1 (leader), 2 (all)"

        assert (await it.publish(b"b")).first_offset == 1


async def test_a_publish_that_is_refused_makes_no_topic(tmp_path):
    async with running_server(tmp_path) as it:
        headers = {f"h{number}": b"" for number in range(65)}
        for message in (pb.Message(due_ms=1 << 62), pb.Message(headers=headers)):
            request = pb.PublishRequest(topic="orders", message=message)
            code, _, _ = await failure(it.broker.Publish(request))
            assert code == StatusCode.INVALID_ARGUMENT
        code, _, _ = await failure(it.publish(b"x", partition=7))
        assert code == StatusCode.NOT_FOUND
        garbage = pb.PublishBatchRequest(topic="orders", arrow=b"x" * 8)
        code, _, _ = await failure(it.broker.PublishBatch(garbage))
        assert code == StatusCode.INVALID_ARGUMENT
        call = it.broker.PublishStream()
        await call.write(pb.PublishStreamRequest(sequence=1, batch=garbage))
        assert (await call.read()).problem.error == "BadBatch"
        unclear = pb.PublishBatchRequest(topic="orders", arrow=arrow_of(Message(b"")), acks=9)  # type: ignore[arg-type]
        await call.write(pb.PublishStreamRequest(sequence=2, batch=unclear))
        assert "acks: 9 is not one of" in (await call.read()).problem.message
        await call.done_writing()
        assert it.node.topics.all() == []


async def test_who_makes_a_topic_is_told_and_nobody_else(tmp_path):
    topics = TopicsConfig(partitions=3)
    async with running_server(tmp_path, topics=topics) as it:
        one = pb.PublishRequest(topic="odrers", message=pb.Message(value=b"x"))
        assert (await it.broker.Publish(one)).made_partitions == 3
        assert (await it.broker.Publish(one)).made_partitions == 0
        assert (await it.publish(b"x", topic="bills")).made_partitions == 3
        assert (await it.publish(b"y", topic="bills")).made_partitions == 0
        member = Member(it, topic="nope")
        assert (await member.open()).made_partitions == 3
        assert (await it.publish(b"x", topic="nope")).made_partitions == 0
        recurrence = scheduler.Recurrence(name="tidy", topic="tides", every_ms=3_600_000)
        put = scheduler.PutRecurrenceRequest(recurrence=recurrence)
        assert (await it.scheduler.PutRecurrence(put)).made_partitions == 3
        assert (await it.scheduler.PutRecurrence(put)).made_partitions == 0
        assert (await it.publish(b"x", topic="tides")).made_partitions == 0
        await it.admin.CreateTopic(admin.CreateTopicRequest(topic="meant"))
        assert (await it.publish(b"x", topic="meant")).made_partitions == 0
        response = await it.admin.GetNode(admin.GetNodeRequest())
        assert response.auto_create


async def test_an_unknown_topic_is_made_only_if_configured(tmp_path):
    async with running_server(tmp_path, topics=TopicsConfig(auto_create=False)) as it:
        code, details, facts = await failure(it.publish(b"x", topic="odrers"))

        assert (code, details) == (StatusCode.NOT_FOUND, "there is no topic 'odrers'")
        assert facts == {"error": "UnknownTopic", "what": "topic", "name": "odrers"}


async def test_a_request_larger_than_any_batch_is_refused_by_grpc(tmp_path):
    async with running_server(
        tmp_path, limits=Limits(batch_bytes_max=64 * KIB, message_bytes_max=1000)
    ) as it:
        request = pb.PublishBatchRequest(topic="orders", arrow=bytes(2 << 20))
        code, _, _ = await failure(it.broker.PublishBatch(request))

        assert code == StatusCode.RESOURCE_EXHAUSTED
        assert (await it.publish(b"a")).count == 1


async def test_publishes_beyond_the_bytes_in_flight_are_refused_until_some_are_answered(tmp_path):
    async with running_server(tmp_path, server=ServerConfig(publish_bytes_max=64 * KIB)) as it:
        gate = Gate(it.node)
        large = asyncio.ensure_future(it.publish(bytes(100_000)))  # alone it may be larger
        await until(lambda: gate.held)
        code, details, facts = await failure(it.publish(b"small"))
        gate.is_open.set()

        assert code == StatusCode.RESOURCE_EXHAUSTED
        assert details.startswith("too many bytes of publishes at once (at most 65536)")
        assert (facts["error"], facts["limit"]) == ("Overloaded", "65536")
        assert (await large).count == 1
        assert (await it.publish(b"small")).count == 1


async def test_a_publish_whose_caller_went_away_is_stored(tmp_path):
    async def never():
        await asyncio.get_running_loop().create_future()

    async with running_server(tmp_path) as it:
        await it.publish(b"a")
        gate = Gate(it.node)
        gate.is_open.set()
        held = it.node.topics.get("orders").partition(0)
        wait_flushed = held.flush_queue.wait_flushed
        held.flush_queue.wait_flushed = lambda _: never()  # type: ignore[method-assign, assignment]
        call = asyncio.ensure_future(it.publish(b"b"))
        await until(lambda: held.store.end == 2)
        call.cancel()
        await until(lambda: not it.server.calls.in_flight)
        await wait_flushed(2)
        fetched = await it.broker.Fetch(pb.FetchRequest(topic="orders", offset=1))

        assert values_in(fetched.frames) == [b"b"]


async def test_a_deadline_ends_the_call_and_not_the_node(tmp_path):
    async with running_server(tmp_path) as it:
        await it.publish(b"a")
        request = pb.FetchRequest(topic="orders", offset=1, wait_ms=60_000)
        code, _, _ = await failure(it.broker.Fetch(request, timeout=0.01))
        await until(lambda: not it.server.calls.in_flight)

        assert code == StatusCode.DEADLINE_EXCEEDED
        assert not it.server.calls._waits
        assert (await it.publish(b"b")).count == 1


async def test_fetch_pages_through_the_log(tmp_path):
    async with running_server(tmp_path) as it:
        for i in range(10):
            await it.publish(b"%d" % i)
        seen, offset = [], 0
        while offset < 10:
            request = pb.FetchRequest(topic="orders", offset=offset, bytes_max=1)
            fetched = await it.broker.Fetch(request)
            assert len(frames_in(fetched.frames)) == 1  # one is returned whatever its size
            seen += values_in(fetched.frames)
            offset = fetched.next_offset
        some = await it.broker.Fetch(pb.FetchRequest(topic="orders", offset=3, end_offset=5))

        assert seen == [b"%d" % i for i in range(10)]
        assert values_in(some.frames) == [b"3", b"4"]
        nothing = await it.broker.Fetch(pb.FetchRequest(topic="orders", offset=10))
        assert (nothing.frames, nothing.next_offset) == (b"", 10)


async def test_fetch_can_leave_out_what_nobody_is_delivered(tmp_path):
    async with running_server(tmp_path) as it:
        later = pb.Message(value=b"later", due_ms=4_000_000_000_000)
        await it.broker.Publish(pb.PublishRequest(topic="orders", message=later))
        await it.publish(b"now")
        request = pb.FetchRequest(topic="orders", deliverable_only=True)
        fetched = await it.broker.Fetch(request)

        assert values_in(fetched.frames) == [b"now"]


async def test_fetch_waits_for_what_comes(tmp_path):
    async with running_server(tmp_path) as it:
        await it.publish(b"a")
        request = pb.FetchRequest(topic="orders", offset=1, wait_ms=60_000)
        waiting = asyncio.ensure_future(it.broker.Fetch(request))
        await until(lambda: it.server.calls._waits)
        await it.publish(b"b")

        assert values_in((await waiting).frames) == [b"b"]


async def test_fetch_gives_what_is_in_front_of_damage(tmp_path):
    async with running_server(tmp_path) as it:
        for value in (b"sound", b"rotten", b"behind"):
            await it.publish(value)
        [segment] = tmp_path.glob("topics/*/0/log/*.seg")
        log = segment.read_bytes()
        with segment.open("r+b") as file:
            file.seek(log.index(b"rotten"))
            file.write(b"r0tten")

        request = pb.FetchRequest(topic="orders")
        fetched = await it.broker.Fetch(request)
        assert values_in(fetched.frames) == [b"sound"]
        request.offset = fetched.next_offset
        assert (await failure(it.broker.Fetch(request)))[0] == StatusCode.DATA_LOSS


async def test_fetch_answers_empty_when_nothing_came_in_time(tmp_path):
    async with running_server(tmp_path) as it:
        await it.publish(b"a")
        fetched = await it.broker.Fetch(pb.FetchRequest(topic="orders", offset=1, wait_ms=1))

        assert (fetched.frames, fetched.next_offset, fetched.end_offset) == (b"", 1, 1)


@pytest.mark.parametrize(
    ("fields", "code", "error", "field"),
    [
        ({"offset": 2}, StatusCode.OUT_OF_RANGE, "OffsetOutOfRange", None),
        ({"offset": -1}, StatusCode.INVALID_ARGUMENT, "BadInput", None),
        ({"bytes_max": 1 << 40}, StatusCode.INVALID_ARGUMENT, "LimitExceeded", "bytes_max"),
        ({"wait_ms": 60_001}, StatusCode.INVALID_ARGUMENT, "LimitExceeded", "wait_ms"),
        ({"wait_ms": -1}, StatusCode.INVALID_ARGUMENT, "BadInput", None),
        ({"end_offset": -1}, StatusCode.INVALID_ARGUMENT, "BadInput", None),
        ({"partition": 1}, StatusCode.NOT_FOUND, "NotFound", None),
        ({"topic": "nowhere"}, StatusCode.NOT_FOUND, "UnknownTopic", None),
    ],
)
async def test_a_bad_fetch_is_refused(tmp_path, fields, code, error, field):
    async with running_server(tmp_path) as it:
        await it.publish(b"a")
        request = pb.FetchRequest(**{"topic": "orders", **fields})
        got, _, facts = await failure(it.broker.Fetch(request))

        assert (got, facts["error"], facts.get("field")) == (code, error, field)
