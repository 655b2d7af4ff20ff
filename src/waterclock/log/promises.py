"""Frames that speak of promises: firing, cancelling and rescheduling them. Pure."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.log.appending import PlannedFrame
from waterclock.log.frame import BODY_BYTES_MAX, FrameHeader, FrameType
from waterclock.log.schema import MESSAGES, due_times, encode, schema_of
from waterclock.model.errors import BadInput, LimitExceeded
from waterclock.model.sections import Compression

Int64s = npt.NDArray[np.int64]
FoundRows = tuple[FrameHeader, pa.RecordBatch, Int64s, Int64s]
"""A frame's header, its rows, which of them are meant, and which ask each answers."""


def fired_frame(
    found: Iterable[FoundRows], offsets: Int64s, compression: Compression = "none"
) -> PlannedFrame:
    """Return the frame that makes the promises at `offsets` deliverable, in that order."""
    if not len(offsets):
        raise BadInput("no promises were named to fire")
    pieces, asks = [], []
    for header, batch, rows, ask in found:
        if header.type is not FrameType.PROMISE:
            raise BadInput(f"offset {int(offsets[ask[0]])} is a {header.type.name}, not a promise")
        pieces.append(batch.select(MESSAGES.names).take(pa.array(rows)))
        asks.append(ask)
    try:
        gathered = pa.Table.from_batches(pieces, schema=MESSAGES).combine_chunks()
    except pa.ArrowInvalid as error:
        raise LimitExceeded("bytes of promises fired at once", BODY_BYTES_MAX) from error
    order = np.argsort(np.concatenate(asks), kind="stable")
    messages = gathered.take(pa.array(order)).to_batches()[0]
    columns = [*messages.columns, pa.array(offsets, pa.int64())]
    batch = pa.record_batch(columns, schema=schema_of(FrameType.FIRED))
    due = due_times(batch)
    count = len(offsets)
    body = encode(batch, compression)
    return PlannedFrame(FrameType.FIRED, body, count, count, int(due.min()), int(due.max()))


def cancel_frame(offsets: Int64s) -> PlannedFrame:
    """Return the frame after which the promises at `offsets` never fire."""
    return _control(FrameType.CANCEL, [offsets])


def reschedule_frame(offsets: Int64s, due_ms: Int64s) -> PlannedFrame:
    """Return the frame that gives the promises at `offsets` new due times."""
    return _control(FrameType.RESCHEDULE, [offsets, due_ms])


def _control(kind: FrameType, columns: list[Int64s]) -> PlannedFrame:
    arrays = [pa.array(column, pa.int64()) for column in columns]
    batch = pa.record_batch(arrays, schema=schema_of(kind))
    return PlannedFrame(kind, encode(batch), 1, batch.num_rows, 0, 0)
