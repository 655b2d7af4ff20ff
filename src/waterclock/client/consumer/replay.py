"""Replay: a stretch of the past, once, in order, without a group.

    async for message in client.replay("orders", since=timedelta(hours=1)):
        ...

A replay with a name can be broken off and taken up again, by this program or the next: what the
loop has gone past is reported as done, batch by batch, and once more when a stream broke: a batch
may take as long as it likes. What is at hand is not, so it comes again after a crash. A compacted
one begins with the newest snapshot of the topic, if there is one: the last message of each key. One
that exists goes on as it was begun, whatever bounds are given; delete it to begin anew.

A replay without a name ends with its stream, unless there is another node: there it goes on behind
what it has had, to what the log has by then if no end was given.
"""

import asyncio
from collections.abc import AsyncIterator

import grpc

from waterclock.client.connection import Connection
from waterclock.client.consumer.rows import LoggedMessage, MessageRows
from waterclock.client.errors import error_of
from waterclock.client.retry import is_transient
from waterclock.model.errors import AlreadyExists, Unreachable, WaterclockError
from waterclock.v1 import broker_pb2

Begin = broker_pb2.ReplayRequest.Begin
Position = broker_pb2.Position
_Stream = grpc.aio.StreamStreamCall[broker_pb2.ReplayRequest, broker_pb2.ReplayResponse]


class Replay:
    """A replay that begins when it is iterated over, message by message or batch by batch."""

    def __init__(self, connection: Connection, begin: Begin) -> None:
        self._connection = connection
        self._begin = begin
        self._done: dict[int, int] = {}
        """How far the loop has come in each partition; told again on a new stream."""

    def __repr__(self) -> str:
        name = f" {self._begin.name}" if self._begin.name else ""
        return f"<Replay{name} of {self._begin.topic}>"

    async def __aiter__(self) -> AsyncIterator[LoggedMessage]:
        async for batch in self.batches():
            for row in range(batch.count):
                yield LoggedMessage(batch, row)

    async def batches(self) -> AsyncIterator[MessageRows]:
        """Yield the messages as batches; asking for the next says that the last is done.

        A replay with a name survives a broken connection; any does where there are several nodes.
        """
        loop, connection = asyncio.get_running_loop(), self._connection
        backoff, wait = connection.backoff(), connection.wait()
        retry_s = connection.settings.delivery_timeout_ms / 1_000
        begin, heard_at, began_ms = self._begin, loop.time(), connection.now_ms()
        if not begin.name:
            self._done.clear()
        while True:
            await connection.settle_link()
            address = connection.address
            try:
                async for batch in self._read(begin):
                    wait.here()
                    yield batch
                    backoff.reset()
                    heard_at = loop.time()
                return
            except AlreadyExists:
                if begin is not self._begin:
                    raise
                # It was begun by another program, with other bounds: go on with it.
                begin = Begin(name=begin.name, topic=begin.topic, format=begin.format)
            except WaterclockError as error:
                pause_ms = backoff.next_ms(error)
                is_left = connection.failed(address, error, backoff.failures)
                goes_on = begin.name or not connection.nodes.is_alone
                is_over = loop.time() >= heard_at + retry_s
                if is_over or not goes_on or not (is_left or is_transient(error)):
                    raise
                if begin.HasField("times") and not (begin.name or begin.times.end_ms):
                    begin = _until(begin, began_ms)  # as it was meant at first
                wait.away(error)
                await asyncio.sleep(pause_ms / 1_000)

    async def _read(self, begin: Begin) -> AsyncIterator[MessageRows]:
        """Yield what one stream brings; raise why it ended, unless there is no more."""
        address = self._connection.address
        stream = self._connection.broker.Replay()
        try:
            done = [Position(partition=n, offset=offset) for n, offset in self._done.items()]
            await stream.write(broker_pb2.ReplayRequest(begin=begin, done=done))
            while isinstance(response := await stream.read(), broker_pb2.ReplayResponse):
                if response.WhichOneof("event") == "finished":
                    # The node waits for the last reports, and ends when it has heard them.
                    await stream.done_writing()
                    await stream.read()
                    return
                yield self._rows(response.batch)
                position = Position(
                    partition=response.batch.partition, offset=response.batch.next_offset
                )
                self._done[position.partition] = position.offset
                if begin.name:
                    await stream.write(broker_pb2.ReplayRequest(done=[position]))
            raise Unreachable(f"{address} ended the replay early")
        except grpc.aio.AioRpcError as rpc:
            raise error_of(rpc, address) from rpc
        except asyncio.InvalidStateError as error:
            raise Unreachable(f"{address} ended the replay early") from error
        finally:
            stream.cancel()

    def _rows(self, response: broker_pb2.ReplayResponse.Batch) -> MessageRows:
        return MessageRows(
            self._begin.topic,
            response.partition,
            response.bounds,
            response.messages,
            offsets=response.offsets,
            append_times=response.append_ms,
            crypto_keys=self._connection.keys,
        )


def _until(begin: Begin, end_ms: int) -> Begin:
    """Return the same replay, with an end."""
    ended = Begin()
    ended.CopyFrom(begin)
    ended.times.end_ms = end_ms
    return ended
