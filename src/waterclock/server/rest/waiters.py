"""Waiters for messages of an HTTP consumer: one poll, or a stream of events."""

import asyncio

import msgspec
from msgspec import UNSET, UnsetType

from waterclock.model.errors import WaterclockError
from waterclock.node.groups.session import AnswerKind
from waterclock.server.http.messages import Pending, Response, json
from waterclock.server.http.problems import problem_of
from waterclock.server.rest.consumer import DeliveredMessage, HttpConsumer
from waterclock.server.rest.consumers import HttpConsumers
from waterclock.server.rest.models import MessageResponse, ResponseModel, render_fields

NO_STORE = b"Cache-Control: no-store\r\n"


class DeliveredMessageResponse(MessageResponse, kw_only=True):
    """A message, and the lease under which it is held."""

    lease: str
    partition: int
    offset: int
    attempt: int
    deadline_ms: int
    """Answer before, or it comes again."""


class DeliveredPage(ResponseModel):
    """Messages, perhaps none."""

    messages: list[DeliveredMessageResponse]
    made_partitions: int | UnsetType = UNSET
    """Only where there was no such topic: it was made, with so many partitions."""


class Poll(Pending):
    """Waits for messages, to answer one request."""

    __slots__ = ("consumer", "consumers", "limit", "made_partitions")

    def __init__(
        self, consumers: HttpConsumers, consumer: HttpConsumer, limit: int, made_partitions: int = 0
    ) -> None:
        super().__init__(Poll.gone)
        self.made_partitions = made_partitions
        self.limit = limit
        self.consumer = consumer
        self.consumers = consumers

    def credit(self, held: int) -> int:
        """As many as it asked for, whatever others hold."""
        return held + self.limit

    def take(self, messages: list[DeliveredMessage]) -> bool:
        return self.answer(page_of(messages, self.made_partitions))

    def fail(self, error: WaterclockError) -> None:
        self.answer(problem_of(error))

    def gone(self) -> None:
        """Leave the queue."""
        self.consumers.gone(self.consumer)


class Batch:
    """Waits for messages, for a stream."""

    __slots__ = ("found", "is_over", "limit")

    def __init__(self, window: int) -> None:
        self.limit = window
        self.is_over = False
        self.found: asyncio.Future[list[DeliveredMessage]] = (
            asyncio.get_running_loop().create_future()
        )

    def credit(self, held: int) -> int:
        """So many in all: what is not answered for counts."""
        return self.limit

    def take(self, messages: list[DeliveredMessage]) -> bool:
        """Wake the stream."""
        self.is_over = True
        self.found.set_result(messages)
        return True

    def fail(self, error: WaterclockError) -> None:
        """End the stream."""
        self.is_over = True
        self.found.set_exception(error)


class Listening:
    """What a stream of events has asked of its consumer, and has not sent yet."""

    def __init__(self, consumer: HttpConsumer, window: int) -> None:
        self._consumer = consumer
        self._window = window
        self._batch: Batch | None = None

    def ask(self) -> Batch:
        """Join the queue."""
        self._batch = batch = Batch(self._window)
        self._consumer.add(batch)
        return batch

    def sent(self, *, is_acked: bool) -> None:
        """Note that what came was sent."""
        assert self._batch is not None
        batch, self._batch = self._batch, None
        if is_acked:
            self._consumer.answer(AnswerKind.ACK, [one.lease for one in batch.found.result()])

    def close(self) -> None:
        """Leave the queue, and give back what was not sent."""
        batch = self._batch
        if batch is None:
            return
        if not batch.is_over:
            batch.is_over = True
            self._consumer.left()
        elif batch.found.exception() is None:
            leases = [one.lease for one in batch.found.result()]
            self._consumer.answer(AnswerKind.GIVE_BACK, leases)


def page_of(messages: list[DeliveredMessage], made_partitions: int = 0) -> Response:
    """Return messages as the answer to a poll."""
    rendered = list(map(_render, messages))
    return json(
        200, DeliveredPage(messages=rendered, made_partitions=made_partitions or UNSET), NO_STORE
    )


def _render(message: DeliveredMessage) -> DeliveredMessageResponse:
    message_id, key, value, headers, due_ms = message.row
    lease = message.lease
    return DeliveredMessageResponse(
        lease=str(lease),
        partition=lease.partition,
        offset=lease.offset,
        attempt=lease.attempt,
        deadline_ms=message.deadline_ms,
        appended_ms=message.appended_ms,
        **render_fields(message_id, key, value, dict(headers or ()), due_ms),
    )


def event_of(message: DeliveredMessage) -> bytes:
    """Return a message as a server-sent event."""
    data = msgspec.json.encode(_render(message))
    return b"id: %b\ndata: %b\n\n" % (str(message.lease).encode(), data)
