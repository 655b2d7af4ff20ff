"""The spans of a partition: one for each batch that is appended, and for what was due.

    append orders    from when a batch comes to the partition until it is durable
    fire orders      from when a scheduled message is due until it is written as fired

A batch without a context makes none, unless the request it came by has a span. Spans are made once
all is done, so on a node that makes none a batch costs one question, and a message nothing.
"""

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.runtime.trace_context import Header
from waterclock.runtime.tracing import LINKS_MAX, Context, Tracer, messaging, tracer_of

ROWS_MAX = 4 * LINKS_MAX
"""Messages of a batch whose headers are looked at."""
_MS_NS = 1_000_000


class PartitionSpans:
    """Makes the spans of one partition."""

    def __init__(self, tracer: Tracer, topic: str, partition: int) -> None:
        self._tracer = tracer
        self._topic = topic
        self._partition = str(partition)

    def __repr__(self) -> str:
        return f"<PartitionSpans of {self._topic}/{self._partition}>"

    def appended(self, rows: pa.RecordBatch, took_ms: float) -> None:
        """Note that a batch is durable, after so long."""
        contexts = self._tracer.contexts_of(_headers(rows))
        is_asked = self._tracer.has_current()
        if not contexts and not is_asked:
            return
        attributes = self._attributes("append", rows.num_rows)
        span = self._tracer.begin(
            f"append {self._topic}",
            "INTERNAL" if is_asked else "SERVER",
            () if is_asked else contexts,
            attributes=attributes,
            begun_ns=time.time_ns() - int(took_ms * _MS_NS),
        )
        if is_asked:
            self._tracer.link(span, contexts)
        span.end()

    def fired(self, rows: pa.RecordBatch, due_ms: npt.NDArray[np.int64], now_ms: int) -> None:
        """Note that messages that were due are written, one for each context there is."""
        seen: set[Sequence[Header]] = set()
        for headers, due in zip(_headers(rows), due_ms[:ROWS_MAX].tolist(), strict=False):
            if not headers or len(seen) == LINKS_MAX or tuple(headers) in seen:
                continue
            context = self._tracer.context_of(headers)
            if context is not None:
                seen.add(tuple(headers))
                self._fired(context, due, now_ms)

    def _fired(self, context: Context, due_ms: int, now_ms: int) -> None:
        span = self._tracer.begin(
            f"fire {self._topic}",
            "INTERNAL",
            [context],
            attributes=self._attributes("fire", None),
            begun_ns=min(due_ms, now_ms) * _MS_NS,
        )
        span.end(end_time=now_ms * _MS_NS)

    def _attributes(self, operation: str, count: int | None) -> dict[str, str | int]:
        return messaging(operation, self._topic, count=count) | {
            "messaging.destination.partition.id": self._partition
        }


def partition_spans(topic: str, partition: int) -> PartitionSpans | None:
    """Return what makes spans for a partition; None if OpenTelemetry is not in use."""
    tracer = tracer_of("waterclock.node")
    return None if tracer is None else PartitionSpans(tracer, topic, partition)


def _headers(rows: pa.RecordBatch) -> list[list[Header] | None]:
    column = rows.column("headers")
    if column.null_count == len(column):
        return []
    found: list[list[Header] | None] = column.slice(0, ROWS_MAX).to_pylist()
    return found
