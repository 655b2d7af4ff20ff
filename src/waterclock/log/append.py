"""From a batch to frames: which rows are new, which are for later, and where each one lands. Pure.

Has a message been published before? The index of ids proposes offsets whose id has the same
fingerprint; the stored ids, read back from the log, decide. So a repeat is never missed and a new
message is never refused. An id counts as known for `window_ms` after it was appended, to the
millisecond; `ids_max` is the stated cap beyond which the oldest segments' ids are forgotten early.

A mixed batch becomes a `data` and a `scheduled` frame, so that every frame is wholly deliverable or
wholly not. The common batch, all new and all for now, is one frame whose body is the producer's
own bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.log.batch import Batch
from waterclock.log.frame import CONTROL, FLAG_EXPIRES, FrameHeader, FrameType, header_of
from waterclock.log.id_index.fingerprint import Fingerprints
from waterclock.log.id_index.index import IdIndex, first_occurrence
from waterclock.model.ids import Epoch, Millis, Offset
from waterclock.model.sections import Compression

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
StoredIds = Callable[[Int64s], list[tuple[bytes, int]]]
"""Read back (message id, append time) of the messages at these offsets."""

_NEW = -1


class PlannedFrame(NamedTuple):
    """A frame to be written, but for its place in the log."""

    kind: FrameType
    body: memoryview
    span: int
    rows: int
    min_due_ms: int
    """0 stands for the moment of appending, here and below."""
    max_due_ms: int
    flags: int = 0

    def header_at(
        self, offset: Offset, *, append_ms: Millis, log_tag: int, epoch: Epoch, flushed_end: int
    ) -> FrameHeader:
        """Return its header, once its place in the log is known."""
        # A frame that holds no messages, but speaks of some, is due at no time.
        due_now = 0 if self.kind in CONTROL else append_ms
        return header_of(
            self.kind,
            self.body,
            base_offset=offset,
            span=self.span,
            rows=self.rows,
            log_tag=log_tag,
            append_ms=append_ms,
            epoch=epoch,
            flushed_end=flushed_end,
            min_due_ms=self.min_due_ms or due_now,
            max_due_ms=self.max_due_ms or due_now,
            flags=self.flags,
        )


class Part(NamedTuple):
    """Messages of a batch that go into one frame."""

    frame: PlannedFrame
    batch: Batch
    row: Bools | None
    """Which rows of the whole batch these are; None for all."""


@dataclass(frozen=True, slots=True)
class Appended:
    """What became of each message of a batch."""

    offsets: range | Int64s
    """Where each message is: the new ones' own offsets, the repeats' first ones."""
    is_new: Bools | None
    """Which messages were written now; None for all."""
    durable_at: Offset
    """Acknowledge once the log is flushed up to here: a repeat is no safer than its original."""
    scheduled: tuple[Int64s, Int64s] | None = None
    """Offsets and due times of the messages that were written for later; None if none were."""

    @property
    def new_count(self) -> int:
        """How many messages were written now."""
        return len(self.offsets) if self.is_new is None else int(self.is_new.sum())


@dataclass(frozen=True, slots=True)
class Repeats:
    """Which rows of a batch repeat something."""

    stored_at: Int64s
    """Offset of the stored message each row repeats, -1 for none."""
    same_as: Int64s
    """Earlier row of the same batch each row repeats, -1 for none."""

    @property
    def is_new(self) -> npt.NDArray[np.bool_]:
        """Rows that repeat nothing."""
        return np.asarray((self.stored_at == _NEW) & (self.same_as == _NEW))


def repeats_in(
    batch: Batch, ids: IdIndex, stored: StoredIds, *, oldest_ms: int, allow_duplicate: bool
) -> tuple[Fingerprints, Repeats | None]:
    """Return the fingerprints of a batch, to be remembered, and the rows not to write."""
    if batch.count > 1:
        fps = ids.fingerprints(batch.ids)
        if allow_duplicate:
            return fps, None
        return fps, find_repeats(ids, batch.ids, fps, stored, oldest_ms=oldest_ms)
    # One message: NumPy's fixed costs would be most of the work.
    message_id = batch.ids[0].as_py()
    fp = ids.fingerprint(message_id)
    offset = None
    if not allow_duplicate:
        offset = find_repeat(ids, message_id, fp, stored, oldest_ms=oldest_ms)
    repeats = None if offset is None else Repeats(np.array([offset]), np.array([-1]))
    return np.array([fp], np.uint64), repeats


def find_repeats(
    index: IdIndex, ids: pa.BinaryArray, fps: Fingerprints, stored: StoredIds, *, oldest_ms: int
) -> Repeats | None:
    """Return the repeats in a batch, None if every row is new.

    Messages appended before `oldest_ms` have left the window and do not count.
    """
    candidates = index.lookup(fps)
    first = first_occurrence(fps)
    if first is None and not len(candidates.rows):
        return None
    same_as = _repeats_within(ids, first)
    stored_at = np.full(len(fps), _NEW, dtype=np.int64)
    if len(candidates.rows):
        known = stored(candidates.offsets)
        # Oldest first within a row, so the first match is the first publish.
        pairs = zip(candidates.rows.tolist(), candidates.offsets.tolist(), known, strict=True)
        for row, offset, (message_id, append_ms) in pairs:
            is_match = append_ms >= oldest_ms and message_id == ids[row].as_py()
            if is_match and stored_at[row] == _NEW:
                stored_at[row] = offset
    repeats = Repeats(stored_at, same_as)
    return None if bool(repeats.is_new.all()) else repeats


def find_repeat(
    index: IdIndex, message_id: bytes, fp: int, stored: StoredIds, *, oldest_ms: int
) -> int | None:
    """Return the offset of the stored message this one repeats; the scalar twin."""
    offsets = index.lookup_one(fp)
    if not offsets:
        return None
    known = stored(np.array(offsets, dtype=np.int64))
    for offset, (found, append_ms) in zip(offsets, known, strict=True):
        if append_ms >= oldest_ms and found == message_id:
            return offset
    return None


def _repeats_within(ids: pa.BinaryArray, first: Int64s | None) -> Int64s:
    """Return, per row, the first row with the same id, -1 if it is that row itself."""
    rows = np.arange(len(ids), dtype=np.int64)
    same_as = np.full(len(ids), _NEW, dtype=np.int64)
    if first is None:
        return same_as
    shared = np.isin(first, first[first != rows])
    seen: dict[bytes, int] = {}
    for row in np.flatnonzero(shared).tolist():
        earlier = seen.setdefault(ids[row].as_py(), row)
        if earlier != row:
            same_as[row] = earlier
    return same_as


def split_by_due(
    batch: Batch, *, now_ms: int, flags: int = 0, compression: Compression = "none"
) -> list[Part]:
    """Cut a batch into what is deliverable now and what is scheduled for later."""
    due = batch.due_ms
    if due is None:
        return [Part(_plan(FrameType.DATA, batch, None, flags), batch, None)]
    later = due > now_ms
    if bool(later.all()):
        return [Part(_plan(FrameType.SCHEDULED, batch, due, flags), batch, None)]
    if not bool(later.any()):
        return [Part(_plan(FrameType.DATA, batch, due, flags), batch, None)]
    now_rows, later_rows = batch.select(~later, compression), batch.select(later, compression)
    return [
        Part(_plan(FrameType.DATA, now_rows, now_rows.due_ms, flags), now_rows, ~later),
        Part(_plan(FrameType.SCHEDULED, later_rows, later_rows.due_ms, flags), later_rows, later),
    ]


def _plan(kind: FrameType, batch: Batch, due: Int64s | None, flags: int) -> PlannedFrame:
    low, high = _span_of(due)
    flags |= FLAG_EXPIRES * batch.may_expire
    return PlannedFrame(kind, batch.body, batch.count, batch.count, low, high, flags)


def _span_of(due: Int64s | None) -> tuple[int, int]:
    """Return the least and greatest due time; 0 stands for the moment of appending."""
    if due is None:
        return 0, 0
    given = due[due > 0]
    if not len(given):
        return 0, 0
    # Rows of one frame that are due on appending have no later neighbours.
    return int(given.min()), int(given.max()) if len(given) == len(due) else 0


def assigned_offsets(parts: list[Part], count: int, base_offset: int) -> range | Int64s:
    """Return where each row of a batch of `count` lands when its parts are written in order."""
    if len(parts) == 1:
        return range(base_offset, base_offset + count)
    offsets = np.empty(count, dtype=np.int64)
    at = base_offset
    for part in parts:
        assert part.row is not None
        offsets[part.row] = np.arange(at, at + part.frame.span)
        at += part.frame.span
    return offsets


def appended_of(
    repeats: Repeats | None,
    written: range | Int64s,
    end: int,
    scheduled: tuple[Int64s, Int64s] | None = None,
) -> Appended:
    """Tell the producer what became of its batch; `written` are the offsets of the new rows."""
    if repeats is None:
        return Appended(written, None, Offset(end), scheduled)
    is_new = repeats.is_new
    offsets = repeats.stored_at.copy()
    offsets[is_new] = np.asarray(written, dtype=np.int64)
    inner = repeats.same_as >= 0
    # A row may repeat an earlier row that itself repeats a stored message, settled above.
    offsets[inner] = offsets[repeats.same_as[inner]]
    return Appended(offsets, is_new, Offset(int(offsets.max()) + 1), scheduled)
