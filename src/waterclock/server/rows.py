"""Batches as messages one by one, for clients without Arrow."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from waterclock.delivery.spans import Range
from waterclock.model.units import MIB
from waterclock.node.groups.outbound import DeliveryBatch
from waterclock.node.replay.snapshot_files import SnapshotBatch
from waterclock.v1 import broker_pb2 as pb

ROWS_MAX = 500
ROWS_BYTES_MAX = 1 * MIB
"""About how much goes out at once to clients without Arrow: making the objects takes the loop some
3 us each, and gRPC clients take no more than 4 MiB unless they are configured to."""


class Slice(NamedTuple):
    """Some of the messages of a batch."""

    bounds: list[int]
    rows: pa.RecordBatch
    append_times: list[int]


def fields_of(rows: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """Yield id, key, value, headers and due time of each row in the schema of messages."""
    names = ("message_id", "key", "value", "headers", "due_ms")
    return zip(*(rows.column(name).to_pylist() for name in names), strict=True)


def rows_to_proto(some: Slice) -> pb.Messages:
    """Return messages as clients without Arrow get them."""
    rows = [
        pb.Message(message_id=id_, key=key, value=value, headers=dict(headers or ()), due_ms=due_ms)
        for id_, key, value, headers, due_ms in fields_of(some.rows)
    ]
    times = some.append_times
    each = times if min(times) != max(times) else ()
    return pb.Messages(rows=rows, append_ms=times[-1], append_times=each)


def append_times_of(messages: DeliveryBatch | SnapshotBatch) -> list[int]:
    """Return when each message was stored, to be delivered."""
    times = messages.append_times
    return [messages.append_ms] * messages.count if times is None else times.tolist()


def in_slices(messages: DeliveryBatch | SnapshotBatch) -> Iterator[Slice]:
    """Yield messages a part at a time, for clients that get them one by one."""
    rows = messages.rows()
    mean_bytes = messages.size_bytes // max(1, messages.count)
    step = max(1, min(ROWS_MAX, ROWS_BYTES_MAX // max(1, mean_bytes)))
    left = list(reversed(messages.ranges))
    times = append_times_of(messages)
    for first in range(0, messages.count, step):
        yield Slice(_take(left, step), rows.slice(first, step), times[first : first + step])


def _take(left: list[Range], count: int) -> list[int]:
    """Take the first offsets of ranges that stand in reverse; return them as bounds."""
    bounds: list[int] = []
    while left and count:
        start, end = left.pop()
        stop = min(end, start + count)
        bounds += (start, stop)
        count -= stop - start
        if stop < end:
            left.append((stop, end))
    return bounds
