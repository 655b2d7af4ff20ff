"""The stream matches answers to batches; one that breaks is everyone's news and nobody's loss."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from tests.client.fake_node import FakeNode, fake_node
from waterclock.client.connection import Connection
from waterclock.client.producer.columns import Columns
from waterclock.client.producer.publish_stream import PublishStream
from waterclock.client.settings import ClientSettings
from waterclock.model.errors import BadInput, TimedOut, Unreachable
from waterclock.model.ids import Millis
from waterclock.v1.broker_pb2 import PublishBatchRequest

LONG_MS = 20_000


@contextlib.asynccontextmanager
async def streamed(call_timeout_ms: int = 15_000) -> AsyncIterator[tuple[FakeNode, PublishStream]]:
    async with fake_node() as node:
        connection = Connection(node.address, ClientSettings(call_timeout_ms=call_timeout_ms))
        await connection.open()
        async with asyncio.TaskGroup() as tasks:
            stream = PublishStream(connection, tasks)
            try:
                yield node, stream
            finally:
                stream.close()
        await connection.close()


def batch(value: bytes) -> PublishBatchRequest:
    rows = Columns()
    rows.ids, rows.keys, rows.values, rows.headers, rows.dues = (
        [None],
        [None],
        [value],
        [None],
        [None],
    )
    rows.name_all(Millis(1))
    return PublishBatchRequest(topic="orders", arrow=rows.encode(0, 1))


async def test_each_batch_gets_its_own_answer():
    async with streamed() as (node, stream):
        node.fails_before.extend([None, BadInput("no"), None])
        answers = await asyncio.gather(
            *(stream.publish(batch(b"%d" % n), LONG_MS) for n in range(3)),
            return_exceptions=True,
        )

        first, second, third = answers
        assert isinstance(second, BadInput)
        assert not isinstance(first, BaseException)
        assert not isinstance(third, BaseException)
        assert [first.first_offset, third.first_offset] == [0, 1]


async def test_batches_arrive_in_the_order_they_were_sent():
    async with streamed() as (node, stream):
        values = [b"%d" % n for n in range(50)]
        await asyncio.gather(*(stream.publish(batch(value), LONG_MS) for value in values))

        assert [value for (value,) in node.batches] == values


async def test_when_the_stream_breaks_all_that_wait_hear_of_it_and_the_next_opens_another():
    async with streamed() as (node, stream):
        node.is_open.clear()
        async with asyncio.TaskGroup() as tasks:
            waiting = [
                tasks.create_task(failure_of(stream.publish(batch(b"%d" % n), LONG_MS)))
                for n in range(5)
            ]
            await node.until(lambda: len(node.batches) == 5)
            node.fails_before.append(ConnectionError())
            node.is_open.set()
        assert {type(task.result()) for task in waiting[1:]} <= {Unreachable, type(None)}
        assert type(waiting[0].result()) is Unreachable

        answer = await stream.publish(batch(b"next"), LONG_MS)
        assert answer.count == 1


async def test_a_batch_that_ran_out_of_time_does_not_take_others_along():
    async with streamed() as (node, stream), asyncio.TaskGroup() as tasks:
        node.is_open.clear()
        waiting = tasks.create_task(stream.publish(batch(b"waiting"), LONG_MS))
        with pytest.raises(TimedOut):
            await stream.publish(batch(b"impatient"), 10)
        assert not waiting.done()
        node.is_open.set()
        assert (await waiting).count == 1


async def test_a_stream_that_hangs_is_given_up():
    async with streamed(call_timeout_ms=30) as (node, stream):
        node.is_open.clear()
        failures = await asyncio.gather(
            *(failure_of(stream.publish(batch(b"x"), LONG_MS)) for _ in range(3))
        )
        assert {type(failure) for failure in failures} == {TimedOut}
        assert repr(stream) == "<PublishStream closed, 0 batches wait for their answers>"
        node.is_open.set()
        assert (await stream.publish(batch(b"next"), LONG_MS)).count == 1


async def failure_of(publishing):
    try:
        await publishing
    except Exception as error:
        return error
    return None
