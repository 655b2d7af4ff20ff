"""The producer: single publishes become batches, without anybody asking for it.

`publish` adds a row to the open batch of its destination and waits for its answer;
`accumulator.py` decides when a batch is sent, `_send` sends it. What the producer guarantees:

- A message is stored once, however often its batch had to be sent: ids are made before the first
  attempt. (`allow_duplicate` gives that up.)
- Messages of one key are stored in the order of the calls, retries included.
- A message the node refuses fails alone: the batch is halved until it is found.
- Memory is bounded: beyond `buffer_bytes_max`, `publish` waits.

A caller that is cancelled withdraws its message if it has not been sent. After that, nobody knows
whether it was stored; publishing again with the same `message_id` is safe.
"""

import asyncio
from collections.abc import Sequence

import pyarrow as pa

from waterclock.client.connection import Connection
from waterclock.client.errors import unreachable
from waterclock.client.producer.accumulator import Accumulator
from waterclock.client.producer.arrow import ArrowReceipt, messages_of, receipt_of, slices
from waterclock.client.producer.batch import ManyCall, Outcome, ProducerBatch, receipts_of
from waterclock.client.producer.checks import (
    MESSAGE_OVERHEAD_BYTES,
    HeaderPairs,
    as_bytes,
    checked_headers,
    checked_messages,
    message_bytes,
)
from waterclock.client.producer.encryption import encrypted, encrypted_rows
from waterclock.client.producer.publish_stream import PublishStream
from waterclock.client.producer.send_buffer import SendBuffer
from waterclock.client.results import Receipt
from waterclock.client.retry import is_transient
from waterclock.model.errors import (
    BadBatch,
    BadInput,
    Closed,
    LimitExceeded,
    NotEnoughReplicas,
    TimedOut,
    WaterclockError,
)
from waterclock.model.message import ACKS, Acks, Message, check_acks
from waterclock.model.names import check_topic_name
from waterclock.model.views import NodeInfo
from waterclock.v1 import broker_pb2

Destination = tuple[str, int | None, bool, Acks]
"""Topic, partition if one was named, whether repeats are allowed, and when the node answers."""

_MESSAGE_FIELDS = ("batch", "due", "header", "key", "message", "request")
"""How limits on messages and batches are called; others are limits on the node as a whole."""


class Route:
    """A destination, the accumulator of its batches, and the timer that ends their lingering."""

    __slots__ = ("accumulator", "acks", "allow_duplicate", "partition", "timer", "topic")

    def __init__(self, destination: Destination, in_flight_max: int) -> None:
        self.topic, self.partition, self.allow_duplicate, acks = destination
        self.acks = acks_number(acks)
        self.accumulator: Accumulator[ProducerBatch] = Accumulator(in_flight_max=in_flight_max)
        self.timer: asyncio.TimerHandle | None = None


class Producer:
    """Publishes on a connection. Its sends are tasks of the client's group."""

    def __init__(self, connection: Connection, node: NodeInfo, tasks: asyncio.TaskGroup) -> None:
        settings = connection.settings
        self._connection = connection
        self._keys = connection.keys
        self._wait = connection.wait()
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._publish_stream = PublishStream(connection, tasks)
        self._send_buffer = SendBuffer(settings.buffer_bytes_max)
        self._routes: dict[Destination, Route] = {}
        self._message_bytes_max = node.message_bytes_max
        self._batch_messages = min(settings.batch_messages, node.batch_messages_max)
        self._batch_bytes = min(settings.batch_bytes, node.batch_bytes_max)
        self._rows_max = node.batch_messages_max
        self._body_bytes_max = node.batch_bytes_max
        self._linger_ms = settings.linger_ms
        self._sends: set[asyncio.Task[None]] = set()
        self._arrow_calls = 0
        self._is_closed = False
        self._is_abandoned = False
        self._drained: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<Producer to {self._connection.address}, {len(self._routes)} destinations>"

    async def publish(
        self,
        destination: Destination,
        value: bytes | None,
        *,
        key: bytes | None,
        headers: HeaderPairs | None,
        due_ms: int | None,
        message_id: bytes | None,
    ) -> Receipt:
        """Publish one message; it is durable on return."""
        if value is not None and type(value) is not bytes:
            value = as_bytes("value", value)
        if key is not None and type(key) is not bytes:
            key = as_bytes("key", key)
        if self._keys is not None:
            value = self._keys.encrypt(destination[0], key, value)
        size = message_bytes(value, key, message_id, headers)
        if size > self._message_bytes_max:
            raise LimitExceeded("message bytes", self._message_bytes_max, got=size)
        size += MESSAGE_OVERHEAD_BYTES
        if not self._send_buffer.take_nowait(size):
            await self._send_buffer.take(size)
        batch = self._open_batch(destination, size)
        row = len(batch.values)
        batch.ids.append(message_id)
        batch.keys.append(key)
        batch.values.append(value)
        batch.headers.append(headers)
        batch.dues.append(due_ms)
        batch.size_bytes += size
        future: asyncio.Future[Receipt] = self._loop.create_future()
        batch.singles.append((row, future))
        try:
            return await future
        except asyncio.CancelledError:
            batch.withdrawn.add(row)
            raise

    async def publish_many(
        self, destination: Destination, messages: Sequence[Message]
    ) -> list[Receipt]:
        """Publish messages in order; return when all are durable."""
        if not messages:
            return []
        sizes = checked_messages(messages, bytes_max=self._message_bytes_max)
        if self._keys is not None:
            messages = encrypted(messages, destination[0], self._keys)
            sizes = checked_messages(messages, bytes_max=self._message_bytes_max)
        call = ManyCall(len(messages), self._loop.create_future())
        start = 0
        while start < len(messages):
            end, size = self._fitting(sizes, start)
            if not self._send_buffer.take_nowait(size):
                await self._send_buffer.take(size)
            batch = self._open_batch(destination, size, rows=end - start)
            self._extend(batch, messages[start:end])
            batch.groups.append((len(batch.values) - (end - start), len(batch.values), call, start))
            batch.size_bytes += size
            start = end
        return await call.future

    async def publish_arrow(self, destination: Destination, batch: pa.RecordBatch) -> ArrowReceipt:
        """Publish rows in order; return when all are durable."""
        topic, partition, allow_duplicate, acks = destination
        check_topic_name(topic)
        check_acks(acks)
        if self._is_closed:
            raise Closed("the client is closed")
        rows = messages_of(batch, self._connection.clock.now_ms())
        if self._keys is not None:
            rows = encrypted_rows(rows, topic, self._keys)
        ends_ms = self._loop.time() * 1_000 + self._connection.settings.delivery_timeout_ms
        answers = []
        limits = {"messages_max": self._rows_max, "bytes_max": self._body_bytes_max}
        self._arrow_calls += 1
        try:
            for body in slices(rows, **limits) if rows.num_rows else ():
                if not self._send_buffer.take_nowait(len(body)):
                    await self._send_buffer.take(len(body))
                try:
                    request = broker_pb2.PublishBatchRequest(
                        topic=topic,
                        arrow=body,
                        partition=partition,
                        allow_duplicate=allow_duplicate,
                        is_sticky="message_id" not in batch.schema.names,
                        acks=acks_number(acks),
                    )
                    answers.append(await self._attempt(request, ends_ms))
                finally:
                    self._send_buffer.give(len(body))
        finally:
            self._arrow_calls -= 1
            self._note_drained()
        return receipt_of(topic, rows.num_rows, answers)

    def _fitting(self, sizes: list[int], start: int) -> tuple[int, int]:
        """Return the end of the next batchful of messages, and its bytes."""
        end = min(start + self._batch_messages, len(sizes))
        size = sum(sizes[start:end]) + (end - start) * MESSAGE_OVERHEAD_BYTES
        while size > self._batch_bytes and end - start > 1:
            end -= 1
            size -= sizes[end] + MESSAGE_OVERHEAD_BYTES
        return end, size

    def _extend(self, batch: ProducerBatch, messages: Sequence[Message]) -> None:
        batch.ids += [message.message_id for message in messages]
        batch.keys += [message.key for message in messages]
        batch.values += [message.value for message in messages]
        batch.dues += [message.due_ms for message in messages]
        batch.headers += [
            None if message.headers is None else checked_headers(message.headers)
            for message in messages
        ]

    def _open_batch(self, destination: Destination, size: int, rows: int = 1) -> ProducerBatch:
        """Return the batch to add to. No wait may come between this and adding."""
        if self._is_closed:
            self._send_buffer.give(size)
            raise Closed("the client is closed")
        route = self._routes.get(destination)
        if route is None:
            route = self._new_route(destination, size)
        accumulator = route.accumulator
        batch = accumulator.open
        if batch is not None:
            if (
                len(batch.values) + rows <= self._batch_messages
                and batch.size_bytes + size <= self._batch_bytes
            ):
                return batch
            accumulator.fill()
            self._advance(route)
        now_ms = self._loop.time() * 1_000
        batch = ProducerBatch(now_ms + self._connection.settings.delivery_timeout_ms)
        accumulator.begin(batch, now_ms)
        if accumulator.is_idle:
            # After all that is about to run anyway: publishes of this turn join the batch.
            self._loop.call_soon(self._advance, route)
        elif route.timer is None:
            route.timer = self._loop.call_later(self._linger_ms / 1_000, self._rang, route)
        return batch

    def _new_route(self, destination: Destination, size: int) -> Route:
        try:
            check_topic_name(destination[0])
            check_acks(destination[-1])
        except BadInput:
            self._send_buffer.give(size)
            raise
        route = Route(destination, self._connection.settings.in_flight_max)
        self._routes[destination] = route
        return route

    def _rang(self, route: Route) -> None:
        route.timer = None
        self._advance(route)

    def _advance(self, route: Route) -> None:
        """Send what may be sent now, and see to it that what lingers is asked about again."""
        accumulator, now_ms = route.accumulator, self._loop.time() * 1_000
        while (batch := accumulator.next_batch(now_ms, linger_ms=self._linger_ms)) is not None:
            task = self._tasks.create_task(self._send(route, batch))
            self._sends.add(task)
            task.add_done_callback(self._sends.discard)
        if route.timer is None and accumulator.open is not None:
            deadline_ms = accumulator.opened_ms + self._linger_ms
            # A timer may ring a little early; a batch past its time waits for an answer anyway.
            if deadline_ms > now_ms:
                route.timer = self._loop.call_at(deadline_ms / 1_000, self._rang, route)

    async def _send(self, route: Route, batch: ProducerBatch) -> None:
        """Send a batch, answer its callers, and let the next one be sent."""
        size = batch.size_bytes
        outcomes: list[Outcome] = []
        try:
            batch.withdraw()
            ids = batch.name_all(self._connection.clock.now_ms())
            if ids:
                outcomes = await self._deliver(route, batch, ids)
        except asyncio.CancelledError:
            outcomes = [Closed("the client was closed before the node answered")] * len(batch)
            raise
        except Exception as bug:
            outcomes = [bug] * len(batch)
        finally:
            route.accumulator.answered(batch)
            self._send_buffer.give(size)
            batch.answer(outcomes)
            self._loop.call_soon(self._advance, route)
            self._note_drained()

    async def _deliver(
        self, route: Route, batch: ProducerBatch, ids: list[bytes], start: int = 0
    ) -> list[Outcome]:
        """Return the outcome of each row that has one of these ids, from `start` on."""
        request = broker_pb2.PublishBatchRequest(
            topic=route.topic,
            arrow=batch.encode(start, start + len(ids)),
            partition=route.partition,
            allow_duplicate=route.allow_duplicate,
            is_sticky=batch.is_sticky,
            acks=route.acks,
        )
        try:
            answer = await self._attempt(request, batch.ends_ms)
        except BadInput as error:
            if len(ids) == 1 or not _may_be_one(error):
                return [error] * len(ids)
            # One message is too much for the node, or all are together: halves tell.
            half = len(ids) // 2
            first = await self._deliver(route, batch, ids[:half], start)
            return first + await self._deliver(route, batch, ids[half:], start + half)
        except WaterclockError as error:
            return [error] * len(ids)
        return list(receipts_of(route.topic, ids, answer))

    async def _attempt(
        self, request: broker_pb2.PublishBatchRequest, ends_ms: float
    ) -> broker_pb2.PublishBatchResponse:
        """Send a request until it is answered, refused for good, or out of time."""
        connection = self._connection
        backoff = connection.backoff()
        error: WaterclockError = TimedOut("the message waited too long behind others")
        while (left_ms := ends_ms - self._loop.time() * 1_000) > 0:
            if self._is_abandoned:
                raise Closed("the client was closed before the node answered")
            address = self._publish_stream.address
            try:
                answer = await self._publish_stream.publish(request, left_ms)
            except WaterclockError as reason:
                error = reason
                pause_ms = backoff.next_ms(error)
                is_left = connection.failed(address, error, backoff.failures)
                if is_left:
                    self._publish_stream.leave(address)
                elif not is_transient(error) or _is_stored(request, error):
                    raise
                self._wait.away(error)
            else:
                self._wait.here()
                return answer
            await asyncio.sleep(min(pause_ms, left_ms) / 1_000)
        if isinstance(error, TimedOut) and not connection.is_ready:
            raise unreachable(connection.address, "connection refused or lost")
        raise error

    def _is_empty(self) -> bool:
        routes = self._routes.values()
        return not self._arrow_calls and all(route.accumulator.is_empty for route in routes)

    def _note_drained(self) -> None:
        if self._drained is not None and not self._drained.done() and self._is_empty():
            self._drained.set_result(None)

    async def close(self) -> None:
        """Send what waits, and return when all of it is answered, well or not."""
        self._is_closed = True
        self._linger_ms = 0
        for route in self._routes.values():
            self._advance(route)
        if not self._is_empty():
            self._drained = self._loop.create_future()
            await self._drained

    def abandon(self) -> None:
        """Fail all calls that wait for an answer."""
        self._is_closed = self._is_abandoned = True
        for route in self._routes.values():
            if route.timer is not None:
                route.timer.cancel()
            for batch in route.accumulator.waiting():
                batch.answer([Closed("the client was closed before this was sent")] * len(batch))
                self._send_buffer.give(batch.size_bytes)
        for task in self._sends:
            task.cancel()
        self._publish_stream.close()


def acks_number(acks: Acks) -> broker_pb2.Acks.ValueType:
    """Return it as requests have it."""
    return broker_pb2.Acks.ValueType(ACKS.index(acks))


def _is_stored(request: broker_pb2.PublishBatchRequest, error: WaterclockError) -> bool:
    """Return whether a retry would only store the same once more."""
    return request.allow_duplicate and isinstance(error, NotEnoughReplicas)


def _may_be_one(error: BadInput) -> bool:
    """Return whether a batch may have been refused for one of its messages, or for its size."""
    if isinstance(error, LimitExceeded):
        return str(error.field).startswith(_MESSAGE_FIELDS)
    return isinstance(error, BadBatch)
