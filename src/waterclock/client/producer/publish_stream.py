"""The way that batches are published: over a link of their own to the current node
(`client/native/`), or if there is none over a stream of gRPC, which ends when there is one. Either
way responses are matched to batches by number.

A call of gRPC for each batch would cost twice as much, here and there. The node appends the batches
of a link or stream in the order they come, and what is wrong with one is its answer. If it breaks,
or an answer does not come in time, all that wait hear so, and the next batch opens another, at the
node that is current by then.
"""

import asyncio
from collections import deque

import grpc

from waterclock.client.connection import Connection
from waterclock.client.errors import error_of, error_of_problem
from waterclock.client.native.link import NodeLink, fits
from waterclock.model.errors import TimedOut, Unreachable, WaterclockError
from waterclock.v1 import broker_pb2

Answer = broker_pb2.PublishBatchResponse
_Stream = grpc.aio.StreamStreamCall[
    broker_pb2.PublishStreamRequest, broker_pb2.PublishStreamResponse
]


class PublishStream:
    """Carries batches. Its tasks belong to the client's group."""

    def __init__(self, connection: Connection, tasks: asyncio.TaskGroup) -> None:
        self._connection = connection
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._stream: _Stream | None = None
        self._is_stopgap = False
        """The stream was opened as there was no link."""
        self._address = ""
        self._sequence = 0
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._unsent: deque[broker_pb2.PublishStreamRequest] = deque()
        self._has_unsent = asyncio.Event()
        self._owners: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        state = "closed" if self._stream is None else "open"
        return f"<PublishStream {state}, {len(self._waiting)} batches wait for their answers>"

    @property
    def address(self) -> str:
        """Where the next batch goes."""
        if self._stream is None or self._link() is not None:
            return self._connection.address
        return self._address

    def leave(self, address: str) -> None:
        """Open the next stream elsewhere, and send there what a node has not answered: it failed
        at something."""
        self._connection.publish_links.drop(address)
        if self._stream is not None and self._address == address:
            stream = self._stream
            self._break(Unreachable(f"{address} was left for another node"))
            stream.cancel()

    async def publish(self, batch: broker_pb2.PublishBatchRequest, timeout_ms: float) -> Answer:
        """Send a batch and return its answer, or raise what is wrong with it or with the way.

        It waits for `timeout_ms` at most. If a whole `call_timeout` has passed, the stream is at
        fault.
        """
        link = self._link()
        if link is not None and fits(batch.ByteSize()):
            self._end_stopgap()
            return await self._publish_over(link, batch, timeout_ms)
        self._connection.want_link(self._connection.publish_links)
        stream = self._stream or self._open()
        self._sequence += 1
        sequence = self._sequence
        answer: asyncio.Future[Answer] = self._loop.create_future()
        self._waiting[sequence] = answer
        self._unsent.append(broker_pb2.PublishStreamRequest(sequence=sequence, batch=batch))
        self._has_unsent.set()
        hangs_ms = self._connection.settings.call_timeout_ms
        if timeout_ms < hangs_ms:
            late = self._too_late(self._address)
            alarm = self._loop.call_later(timeout_ms / 1_000, _run_out, answer, late)
        else:
            alarm = self._loop.call_later(hangs_ms / 1_000, self._give_up, stream)
        try:
            return await answer
        finally:
            alarm.cancel()
            self._waiting.pop(sequence, None)

    def _link(self) -> NodeLink | None:
        return self._connection.publish_links.find(self._connection.address)

    async def _publish_over(
        self, link: NodeLink, batch: broker_pb2.PublishBatchRequest, timeout_ms: float
    ) -> Answer:
        answer = link.publish(batch.SerializeToString())
        hangs_ms = self._connection.settings.call_timeout_ms
        if timeout_ms < hangs_ms:
            late = self._too_late(link.address)
            alarm = self._loop.call_later(timeout_ms / 1_000, _run_out, answer, late)
        else:
            alarm = self._loop.call_later(hangs_ms / 1_000, link.abort)
        try:
            return await answer
        finally:
            alarm.cancel()

    def close(self) -> None:
        """End the stream and its tasks."""
        for task in self._owners:
            task.cancel()

    def _open(self) -> _Stream:
        self._address = self._connection.address
        self._is_stopgap = self._link() is None
        self._stream = self._connection.broker.PublishStream()
        task = self._tasks.create_task(self._run(self._stream))
        self._owners.add(task)
        task.add_done_callback(self._owners.discard)
        return self._stream

    def _end_stopgap(self) -> None:
        """Batches go by a link by now: one more call that only waits is of no use."""
        stream = self._stream
        if stream is not None and self._is_stopgap and not self._waiting:
            self._break(Unreachable(f"{self._address} has a link"))
            stream.cancel()

    def _give_up(self, stream: _Stream) -> None:
        """Nothing has come of a batch for too long: end the stream it went by."""
        if stream is self._stream:
            self._break(self._too_late(self._address))
            stream.cancel()

    def _too_late(self, address: str) -> TimedOut:
        return TimedOut(f"{address} did not answer in time: it may have been published")

    async def _run(self, stream: _Stream) -> None:
        """Write and read until the stream ends; fail all that wait with the reason."""
        address = self._address
        error: WaterclockError = Unreachable(f"{address} ended the stream")
        try:
            async with asyncio.TaskGroup() as tasks:
                writer = tasks.create_task(self._write(stream))
                try:
                    while isinstance(
                        response := await stream.read(), broker_pb2.PublishStreamResponse
                    ):
                        self._answered(response)
                except grpc.aio.AioRpcError as rpc:
                    error = error_of(rpc, address)
                    error.__cause__ = rpc
                writer.cancel()
        finally:
            if stream is self._stream:
                self._break(error)
            stream.cancel()

    async def _write(self, stream: _Stream) -> None:
        try:
            while stream is self._stream:
                if self._unsent:
                    await stream.write(self._unsent.popleft())
                else:
                    self._has_unsent.clear()
                    await self._has_unsent.wait()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the reader hears why

    def _answered(self, response: broker_pb2.PublishStreamResponse) -> None:
        answer = self._waiting.pop(response.sequence, None)
        if answer is None or answer.done():
            return
        if response.HasField("problem"):
            answer.set_exception(error_of_problem(response.problem, self._address))
        else:
            answer.set_result(response.published)

    def _break(self, error: WaterclockError) -> None:
        self._stream = None
        self._unsent.clear()
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(error)


def _run_out(answer: asyncio.Future[Answer], late: TimedOut) -> None:
    if not answer.done():
        answer.set_exception(late)
