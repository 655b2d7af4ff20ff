"""The producer of a program that uses OpenTelemetry: a span around each call that publishes.

    send orders    PRODUCER    from the call until the message, or all of many, is durable

Its context goes with the messages, in their headers, so that whoever works on them can go on under
it. A message that came with a context of its own keeps that, and the span links to it. The messages
of one call share one span and one context: a list in the column of headers, no object each.
"""

import asyncio
from collections.abc import Sequence

import pyarrow as pa

from waterclock.client.connection import Connection
from waterclock.client.producer.arrow import ArrowReceipt
from waterclock.client.producer.batch import ProducerBatch
from waterclock.client.producer.columns import HeaderPairs
from waterclock.client.producer.producer import Destination, Producer
from waterclock.client.results import Receipt
from waterclock.log.schema import HEADERS, MESSAGES, maps
from waterclock.model.message import Message
from waterclock.model.views import NodeInfo
from waterclock.runtime.trace_context import has_trace
from waterclock.runtime.tracing import Context, Span, id_text, messaging


class TracedProducer(Producer):
    """Publishes as any producer does, with spans."""

    def __init__(self, connection: Connection, node: NodeInfo, tasks: asyncio.TaskGroup) -> None:
        super().__init__(connection, node, tasks)
        assert connection.tracer is not None
        self._tracer = connection.tracer

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
        given = self._tracer.contexts_of([headers])
        span = self._begin(destination, None, given)
        with self._tracer.inside(span):
            receipt = await super().publish(
                destination,
                value,
                key=key,
                headers=_joined(headers, self._tracer.pairs(span)),
                due_ms=due_ms,
                message_id=message_id,
            )
            span.set_attribute("messaging.message.id", id_text(receipt.message_id))
            span.set_attribute("messaging.destination.partition.id", str(receipt.partition))
            return receipt

    async def publish_many(
        self, destination: Destination, messages: Sequence[Message]
    ) -> list[Receipt]:
        """Publish messages in order; return when all are durable."""
        with self._tracer.inside(self._begin(destination, len(messages))):
            return await super().publish_many(destination, messages)

    def _extend(self, batch: ProducerBatch, messages: Sequence[Message]) -> None:
        start = len(batch.headers)
        super()._extend(batch, messages)
        # The current span is that of the call.
        pairs = self._tracer.pairs()
        batch.headers[start:] = [_joined(headers, pairs) for headers in batch.headers[start:]]

    async def publish_arrow(self, destination: Destination, batch: pa.RecordBatch) -> ArrowReceipt:
        """Publish rows in order; return when all are durable."""
        with self._tracer.inside(self._begin(destination, batch.num_rows)):
            return await super().publish_arrow(
                destination, _with_pairs(batch, self._tracer.pairs())
            )

    def _begin(
        self, destination: Destination, count: int | None, linked: Sequence[Context] = ()
    ) -> Span:
        topic = destination[0]
        attributes = messaging("send", topic, count=count)
        attributes["server.address"] = self._connection.address
        span = self._tracer.begin(f"send {topic}", "PRODUCER", attributes=attributes)
        self._tracer.link(span, linked)
        return span


def _joined(headers: HeaderPairs | None, pairs: HeaderPairs) -> HeaderPairs:
    """Return headers with those of a context, unless they carry one."""
    if headers is None:
        return pairs
    return headers if has_trace(headers) else [*headers, *pairs]


def _with_pairs(batch: pa.RecordBatch, pairs: HeaderPairs) -> pa.RecordBatch:
    """Return a batch whose messages all have these headers, unless some have headers already: those
    are columns of the program's own making, and are sent as they are."""
    names = batch.schema.names
    if "headers" in names:
        column = batch.column("headers")
        if column.null_count < len(column):
            return batch
        batch = batch.drop_columns(["headers"])
    if not batch.num_rows:
        return batch
    rows = batch.num_rows
    first = pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(bytes(4 * rows))])
    column = maps([pairs], HEADERS).take(first)
    return batch.append_column(MESSAGES.field("headers"), column)
