"""Publishing what is in Arrow already: no message becomes an object on the way.

A record batch needs a column `value`; `key`, `headers`, `due_ms` and `message_id` are taken if they
are there. Strings become bytes, and timestamps of `due_ms` milliseconds. It does not pass through
the accumulators of `publish`: two calls at once may be stored in either order.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.log.schema import MESSAGES
from waterclock.model.errors import BadBatch
from waterclock.model.ids import UUID7_ENTROPY_BYTES, Millis, uuid7_batch
from waterclock.v1 import broker_pb2

_UUID_BYTES = 16


@dataclass(frozen=True, slots=True)
class ArrowReceipt:
    """Where the messages of an Arrow batch are, row by row."""

    topic: str
    partitions: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]
    is_new: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.offsets)


def receipt_of(
    topic: str, rows: int, answers: Sequence[broker_pb2.PublishBatchResponse]
) -> ArrowReceipt:
    """Return where the rows are whose batches were answered so."""
    partitions = np.empty(rows, np.int32)
    offsets = np.empty(rows, np.int64)
    is_new = np.ones(rows, np.bool_)
    start = 0
    for answer in answers:
        mine = slice(start, start + answer.count)
        partitions[mine] = answer.partitions or answer.partition
        offsets[mine] = answer.offsets or np.arange(answer.count) + answer.first_offset
        is_new[mine][list(answer.duplicates)] = False
        start += answer.count
    return ArrowReceipt(topic, partitions, offsets, is_new)


def slices(rows: pa.RecordBatch, *, messages_max: int, bytes_max: int) -> Iterator[bytes]:
    """Yield a batch as Arrow bytes, in as many parts as the limits of a node demand."""
    if rows.num_rows <= messages_max:
        body = rows.serialize().to_pybytes()
        if len(body) <= bytes_max or rows.num_rows == 1:
            yield body
            return
    half = min(messages_max, max(1, rows.num_rows // 2))
    yield from slices(rows.slice(0, half), messages_max=messages_max, bytes_max=bytes_max)
    yield from slices(rows.slice(half), messages_max=messages_max, bytes_max=bytes_max)


def messages_of(batch: pa.RecordBatch, now_ms: Millis) -> pa.RecordBatch:
    """Return a batch in the columns a node takes, each message with an id."""
    unknown = [name for name in batch.schema.names if name not in MESSAGES.names]
    if unknown:
        raise BadBatch(unknown[0], f"is no column of a message; those are {MESSAGES.names}")
    if "value" not in batch.schema.names:
        raise BadBatch("value", "is missing")
    count = batch.num_rows
    columns = []
    for field in MESSAGES:
        if field.name in batch.schema.names:
            columns.append(_cast(batch.column(field.name), field))
        elif field.name == "message_id":
            columns.append(made_ids(now_ms, count))
        else:
            columns.append(pa.nulls(count, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=MESSAGES)


def made_ids(now_ms: Millis, count: int) -> pa.BinaryArray:
    """Return so many new ids as a column."""
    ids = uuid7_batch(now_ms, count, os.urandom(UUID7_ENTROPY_BYTES))
    offsets = np.arange(0, (count + 1) * _UUID_BYTES, _UUID_BYTES, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(ids)]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.type == field.type:
        return column
    try:
        if pa.types.is_timestamp(column.type):
            if column.type.tz is None:
                raise BadBatch(field.name, "is a timestamp without a time zone")
            # Here and not above: it takes long to load, and few need it.
            import pyarrow.compute as pc

            # Rounded up: nothing may be early.
            whole = pc.ceil_temporal(column, 1, "millisecond")
            return whole.cast(pa.timestamp("ms", column.type.tz)).cast(field.type)
        return column.cast(field.type)
    except pa.ArrowException as error:
        raise BadBatch(field.name, str(error)) from error
