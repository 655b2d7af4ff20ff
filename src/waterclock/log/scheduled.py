"""Frames that speak of scheduled messages: firing, cancelling and rescheduling them. Pure."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.log.append import PlannedFrame
from waterclock.log.arrays import from_numpy
from waterclock.log.expiry import moved
from waterclock.log.frame import BODY_BYTES_MAX, FLAG_EXPIRED, FLAG_EXPIRES, FrameHeader, FrameType
from waterclock.log.schema import MESSAGES, due_times, encode, schema_of
from waterclock.model.errors import BadInput, LimitExceeded
from waterclock.model.sections import Compression

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
VIEWS_MAX = 8
"""Rows of a frame that are cheaper to join one by one than to take together."""
FoundRows = tuple[FrameHeader, pa.RecordBatch, Int64s, Int64s]
"""A frame's header, its rows, which of them are meant, and which ask each answers."""


class ScheduledRows(NamedTuple):
    """Scheduled messages read back from the log, in the order they were asked for."""

    offsets: Int64s
    rows: pa.RecordBatch
    """The columns a producer sends."""
    may_expire: bool
    """Some rows may say until when they are of use."""

    def due_at(self, due_ms: Int64s) -> "ScheduledRows":
        """Return them with the due times they have now: some may have been rescheduled.

        You must call it once at most: when they expire moves along, from the first due time.
        """
        rows = self.rows
        if self.may_expire:
            rows = moved(rows, due_ms - due_times(rows))
        at = rows.schema.get_field_index("due_ms")
        return self._replace(rows=rows.set_column(at, MESSAGES.field(at), from_numpy(due_ms)))

    def select(self, keep: Bools) -> "ScheduledRows":
        """Return those for which `keep` is true."""
        return self._replace(offsets=self.offsets[keep], rows=self.rows.filter(from_numpy(keep)))


def scheduled_rows(
    found: Iterable[FoundRows], offsets: Int64s, *, bytes_max: int = BODY_BYTES_MAX
) -> ScheduledRows:
    """Return the scheduled messages at `offsets`, in that order: the first of them, at least one,
    that have about `bytes_max` bytes together."""
    if not len(offsets):
        raise BadInput("no scheduled messages were named to fire")
    frames = list(found)
    sizes = np.empty(len(offsets), np.int64)
    for header, batch, rows, asks in frames:
        if header.type is not FrameType.SCHEDULED:
            raise BadInput(
                f"offset {int(offsets[asks[0]])} is a {header.type.name}, not a scheduled message"
            )
        sizes[asks] = _sizes(header, batch, rows)
    count = max(1, int(sizes.cumsum().searchsorted(bytes_max, side="right")))
    pieces, order = [], []
    for header, batch, rows, asks in frames:
        is_wanted = asks < count
        if is_wanted.any():
            pieces += _pieces(header, batch, rows[is_wanted])
            order.append(asks[is_wanted])
    try:
        joined = pa.Table.from_batches(pieces, schema=MESSAGES).combine_chunks()
    except pa.ArrowInvalid as error:
        raise LimitExceeded("bytes of scheduled messages fired at once", BODY_BYTES_MAX) from error
    back = np.concatenate(order).argsort(kind="stable")
    messages = joined.take(from_numpy(back)).to_batches()[0]
    return ScheduledRows(offsets[:count], messages, any(header.may_expire for header, *_ in frames))


def fired_frame(scheduled: ScheduledRows, compression: Compression = "none") -> PlannedFrame:
    """Return the frame that makes scheduled messages deliverable, in their order."""
    count = len(scheduled.offsets)
    columns = [*scheduled.rows.columns, from_numpy(scheduled.offsets)]
    batch = pa.record_batch(columns, schema=schema_of(FrameType.FIRED))
    due = due_times(batch)
    flags = FLAG_EXPIRES * scheduled.may_expire
    body = encode(batch, compression)
    return PlannedFrame(FrameType.FIRED, body, count, count, int(due.min()), int(due.max()), flags)


def cancel_frame(offsets: Int64s, *, has_expired: bool = False) -> PlannedFrame:
    """Return the frame after which the scheduled messages at `offsets` never fire."""
    flags = FLAG_EXPIRED * has_expired
    return _control(FrameType.CANCEL, [offsets])._replace(flags=flags)


def reschedule_frame(offsets: Int64s, due_ms: Int64s) -> PlannedFrame:
    """Return the frame that gives the scheduled messages at `offsets` new due times."""
    return _control(FrameType.RESCHEDULE, [offsets, due_ms])


def _sizes(header: FrameHeader, batch: pa.RecordBatch, rows: Int64s) -> Int64s:
    """Return about how many bytes each of some rows has: what varies is nearly always the value."""
    column = batch.column("value")
    bounds = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)
    others = max(0, header.body_len - int(bounds[-1] - bounds[0])) // max(1, header.rows)
    return np.asarray(bounds[rows + 1] - bounds[rows] + others)


def _pieces(header: FrameHeader, batch: pa.RecordBatch, rows: Int64s) -> list[pa.RecordBatch]:
    """Return rows of a frame as batches to be joined: views of a few, or a copy of many."""
    if header.is_sparse:
        batch = batch.select(MESSAGES.names)
    if len(rows) <= VIEWS_MAX:
        return [batch.slice(row, 1) for row in rows.tolist()]
    return [batch.take(from_numpy(rows))]


def _control(kind: FrameType, columns: list[Int64s]) -> PlannedFrame:
    arrays = [from_numpy(column) for column in columns]
    batch = pa.record_batch(arrays, schema=schema_of(kind))
    return PlannedFrame(kind, encode(batch), 1, batch.num_rows, 0, 0)
