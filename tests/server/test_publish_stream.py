"""PublishStream over real sockets, against a real node."""

import asyncio
from typing import Any

import pytest
from grpc import StatusCode
from grpc.aio import EOF, AioRpcError

from tests.server.http_client import until
from tests.server.served import Gate, arrow_of, running_server
from waterclock.model.message import Message
from waterclock.model.sections import ServerConfig, TopicsConfig
from waterclock.model.units import KIB
from waterclock.server.calls import BytesInFlight
from waterclock.server.grpc import publish as publish_stream
from waterclock.v1 import broker_pb2 as pb


def batch(
    sequence: int, *values: bytes, topic: str = "orders", **fields
) -> pb.PublishStreamRequest:
    arrow = arrow_of(*(Message(v, message_id=b"id-%s" % v[:50]) for v in values))
    request = pb.PublishBatchRequest(topic=topic, arrow=arrow, **fields)
    return pb.PublishStreamRequest(sequence=sequence, batch=request)


async def answers(call) -> list[pb.PublishStreamResponse]:
    found = []
    while (answer := await call.read()) is not EOF:
        found.append(answer)
    return found


async def test_batches_are_stored_in_the_order_they_came_and_answered_by_number(tmp_path):
    async with running_server(tmp_path) as it:
        call = it.broker.PublishStream()
        for i in range(100):
            await call.write(batch(i + 1_000, b"%d" % i, b"%d again" % i))
        await call.done_writing()
        got = await answers(call)

        assert await call.code() == StatusCode.OK
        offsets = {answer.sequence: answer.published.first_offset for answer in got}
        assert offsets == {i + 1_000: i * 2 for i in range(100)}
        assert all(answer.published.count == 2 for answer in got)


async def test_a_problem_with_one_batch_is_its_answer_and_the_stream_goes_on(tmp_path):
    async with running_server(tmp_path, topics=TopicsConfig(partitions=2)) as it:
        call = it.broker.PublishStream()
        await call.write(batch(1, b"a", partition=0))
        await call.write(
            pb.PublishStreamRequest(
                sequence=2, batch=pb.PublishBatchRequest(topic="orders", arrow=b"x" * 8)
            )
        )
        await call.write(batch(3, b"b", partition=9))
        await call.write(pb.PublishStreamRequest(sequence=4))
        await call.write(batch(5, b"a", b"c", partition=0))
        await call.done_writing()
        by_number = {answer.sequence: answer for answer in await answers(call)}

        assert by_number[1].published == pb.PublishBatchResponse(count=1, made_partitions=2)
        problem = by_number[2].problem
        assert (problem.code, problem.error) == (
            StatusCode.INVALID_ARGUMENT.value[0],
            "BadBatch",
        )
        problem = by_number[3].problem
        assert (problem.code, problem.error) == (StatusCode.NOT_FOUND.value[0], "NotFound")
        assert by_number[4].problem.message == "batch: the request has none"
        assert list(by_number[5].published.offsets) == [0, 1]
        assert list(by_number[5].published.duplicates) == [0]


async def test_a_limit_is_named_in_the_answer(tmp_path):
    async with running_server(tmp_path) as it:
        call = it.broker.PublishStream()
        late = Message(b"x", message_id=b"1", due_ms=1 << 60)  # type: ignore[arg-type]
        request = pb.PublishBatchRequest(topic="orders", arrow=arrow_of(late))
        await call.write(pb.PublishStreamRequest(sequence=1, batch=request))
        problem = (await call.read()).problem

        assert (problem.error, problem.field) == ("LimitExceeded", "due_ms")
        assert problem.limit > 0


async def test_what_is_too_much_waits_and_is_not_refused(tmp_path):
    async with running_server(tmp_path, server=ServerConfig(publish_bytes_max=64 * KIB)) as it:
        gate = Gate(it.node)
        call = it.broker.PublishStream()

        async def write() -> None:
            for i in range(8):
                await call.write(batch(i, bytes([65 + i]) * 30_000))
            await call.done_writing()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(write())
            await until(lambda: gate.held == 2)
            for _ in range(20):
                await asyncio.sleep(0)
            assert gate.held == 2
            gate.is_open.set()

        got = await answers(call)
        assert [answer.published.first_offset for answer in got] == list(range(8))


async def test_a_stream_is_not_read_beyond_its_batches_in_flight(tmp_path, monkeypatch):
    monkeypatch.setattr(publish_stream, "BATCHES_MAX", 3)

    async with running_server(tmp_path) as it:
        gate = Gate(it.node)
        call = it.broker.PublishStream()
        for i in range(10):
            await call.write(batch(i, b"%d" % i))
        await until(lambda: gate.held == 3)
        for _ in range(20):
            await asyncio.sleep(0)
        assert gate.held == 3
        gate.is_open.set()
        await call.done_writing()

        assert len(await answers(call)) == 10


async def test_a_producer_that_vanishes_leaves_nothing_behind(tmp_path):
    async with running_server(tmp_path) as it:
        gate = Gate(it.node)
        call = it.broker.PublishStream()
        for i in range(5):
            await call.write(batch(i, b"%d" % i))
        await until(lambda: gate.held == 5)
        call.cancel()
        await until(lambda: not it.server.calls.in_flight)
        gate.is_open.set()

        assert (await it.publish(b"next")).count == 1


async def test_a_stopping_node_answers_what_it_has_read_and_ends_the_stream(tmp_path):
    async with running_server(tmp_path) as it:
        gate = Gate(it.node)
        call = it.broker.PublishStream()
        await call.write(batch(1, b"a"))
        await until(lambda: gate.held)
        stopping = asyncio.ensure_future(it.server.stop())
        await until(lambda: it.server.calls.is_stopping)
        gate.is_open.set()
        answer = await call.read()
        with pytest.raises(AioRpcError, match="the node is stopping"):
            await call.read()
        await stopping

        assert (answer.sequence, answer.published.count) == (1, 1)
        assert await call.code() == StatusCode.UNAVAILABLE


class BrokenStream:
    """Brings a second batch in the very turn in which the first one's answer cannot be written."""

    def __init__(self) -> None:
        self._requests = [batch(1, b"a"), batch(2, b"b")]
        self._is_broken = asyncio.Event()

    async def read(self) -> pb.PublishStreamRequest:
        if len(self._requests) == 1:
            await self._is_broken.wait()
        return self._requests.pop(0)

    async def write(self, message: bytes) -> None:
        await asyncio.sleep(0)
        self._is_broken.set()
        raise ConnectionResetError


async def test_a_batch_that_was_never_begun_gives_its_bytes_back(tmp_path):
    async with running_server(tmp_path) as it:
        publishing = BytesInFlight("bytes", 1_000_000)
        stream: Any = BrokenStream()

        async def produce() -> None:
            async with asyncio.TaskGroup() as tasks:
                await publish_stream.Producer(it.node, publishing, stream, tasks).read()

        with pytest.raises(ExceptionGroup):
            await produce()
        assert publishing.held == 0
