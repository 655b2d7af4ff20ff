"""The producer of a program that uses OpenTelemetry: a span around each call that publishes.

    send orders    PRODUCER    from the call until the message, or all of many, is durable

Its context goes with the messages, in their headers, so that whoever works on them can go on under
it. A message that came with a context of its own keeps that, and the span links to it. The messages
of one call share one span and one context: a list in the column of headers, no object each.
"""

import asyncio
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from waterclock.client.connection import Connection
from waterclock.client.producer.arrow import ArrowReceipt
from waterclock.client.producer.batch import ProducerBatch
from waterclock.client.producer.checks import HeaderPairs, message_bytes
from waterclock.client.producer.producer import Destination, Producer
from waterclock.client.results import Receipt
from waterclock.log.schema import HEADERS, MESSAGES, maps
from waterclock.model.limits import Limits
from waterclock.model.message import Message
from waterclock.model.views import NodeInfo
from waterclock.runtime.trace_context import has_trace
from waterclock.runtime.tracing import Context, Span, id_text, messaging

CONTEXT_BYTES_MAX = 600
"""Of `traceparent` and `tracestate`, with their names."""
SPARE_BYTES = 256
"""For what a message grows by on its way, such as by encryption."""

HEADERS_MAX = Limits().headers_max
"""As nodes have it that were not told otherwise: they do not say."""


class TracedProducer(Producer):
    """Publishes as any producer does, with spans. Tracing refuses nothing: a message that has no
    room for a context goes without one."""

    def __init__(self, connection: Connection, node: NodeInfo, tasks: asyncio.TaskGroup) -> None:
        super().__init__(connection, node, tasks)
        assert connection.tracer is not None
        self._tracer = connection.tracer
        contexts_bytes = self._batch_messages * CONTEXT_BYTES_MAX
        self._batch_bytes = max(1, min(self._batch_bytes, node.batch_bytes_max - contexts_bytes))

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
                headers=self._joined(value, key, message_id, headers, self._tracer.pairs(span)),
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
        columns = batch.values[start:], batch.keys[start:], batch.ids[start:], batch.headers[start:]
        batch.headers[start:] = [
            self._joined(value, key, message_id, headers, pairs)
            for value, key, message_id, headers in zip(*columns, strict=True)
        ]

    async def publish_arrow(self, destination: Destination, batch: pa.RecordBatch) -> ArrowReceipt:
        """Publish rows in order; return when all are durable."""
        with self._tracer.inside(self._begin(destination, batch.num_rows)):
            if _largest(batch) + CONTEXT_BYTES_MAX + SPARE_BYTES <= self._message_bytes_max:
                batch = _with_pairs(batch, self._tracer.pairs())
            return await super().publish_arrow(destination, batch)

    def _joined(
        self,
        value: bytes | None,
        key: bytes | None,
        message_id: bytes | None,
        headers: HeaderPairs | None,
        pairs: HeaderPairs,
    ) -> HeaderPairs | None:
        """Return headers with those of a context, unless they carry one or there is no room."""
        if headers is None:
            joined = pairs
        elif has_trace(headers):
            return headers
        else:
            joined = [*headers, *pairs]
        size = message_bytes(value, key, message_id, joined) + SPARE_BYTES
        has_room = size <= self._message_bytes_max and len(joined) <= HEADERS_MAX
        return joined if has_room else headers

    def _begin(
        self, destination: Destination, count: int | None, linked: Sequence[Context] = ()
    ) -> Span:
        topic = destination[0]
        attributes = messaging("send", topic, count=count)
        attributes["server.address"] = self._connection.address
        span = self._tracer.begin(f"send {topic}", "PRODUCER", attributes=attributes)
        self._tracer.link(span, linked)
        return span


def _largest(batch: pa.RecordBatch) -> int:
    """Return a bound of the bytes of any message in a batch that has no headers."""
    names = {"value", "key", "message_id"} & set(batch.schema.names)
    columns = [batch.column(name) for name in names]
    return sum(pc.max(pc.binary_length(column)).as_py() or 0 for column in columns)


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
