"""From a batch to frames: which rows are new, which are for later, and where each one lands. Pure.

A mixed batch becomes a `data` and a `promise` frame, so that every frame is wholly deliverable or
wholly not. The common batch, all new and all for now, is one frame whose body is the producer's
own bytes.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from waterclock.log.batch import Batch
from waterclock.log.frame import CONTROL, FLAG_EXPIRES, FrameType
from waterclock.log.id_index.dedup import Repeats
from waterclock.model.ids import Offset
from waterclock.model.sections import Compression

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


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

    @property
    def is_control(self) -> bool:
        """It speaks of messages instead of holding some."""
        return self.kind in CONTROL


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

    @property
    def new_count(self) -> int:
        """How many messages were written now."""
        return len(self.offsets) if self.is_new is None else int(self.is_new.sum())


def split_by_due(
    batch: Batch, *, now_ms: int, flags: int = 0, compression: Compression = "none"
) -> list[Part]:
    """Cut a batch into what is deliverable now and what is promised for later."""
    due = batch.due_ms
    if due is None:
        return [Part(_plan(FrameType.DATA, batch, None, flags), batch, None)]
    later = due > now_ms
    if bool(later.all()):
        return [Part(_plan(FrameType.PROMISE, batch, due, flags), batch, None)]
    if not bool(later.any()):
        return [Part(_plan(FrameType.DATA, batch, due, flags), batch, None)]
    now_rows, later_rows = batch.select(~later, compression), batch.select(later, compression)
    return [
        Part(_plan(FrameType.DATA, now_rows, now_rows.due_ms, flags), now_rows, ~later),
        Part(_plan(FrameType.PROMISE, later_rows, later_rows.due_ms, flags), later_rows, later),
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


def landed(parts: list[Part], count: int, base_offset: int) -> range | Int64s:
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


def answer(repeats: Repeats | None, written: range | Int64s, end: int) -> Appended:
    """Tell the producer what became of its batch; `written` are the offsets of the new rows."""
    if repeats is None:
        return Appended(written, None, Offset(end))
    is_new = repeats.is_new
    offsets = repeats.stored_at.copy()
    offsets[is_new] = np.asarray(written, dtype=np.int64)
    inner = repeats.same_as >= 0
    # A row may repeat an earlier row that itself repeats a stored message, settled above.
    offsets[inner] = offsets[repeats.same_as[inner]]
    return Appended(offsets, is_new, Offset(int(offsets.max()) + 1))
