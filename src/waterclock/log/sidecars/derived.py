"""Everything derived from one segment, collected frame by frame: sparse index, id entries,
scheduled messages.

Used where a segment is read as a whole: when a side-car is missing, after a crash, after a rewrite.
The live append path keeps the same things up to date from batches it has at hand.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.log.arrays import as_numpy
from waterclock.log.frame import (
    CARRIES_IDS,
    FLAG_EXPIRED,
    FLAG_UNTRACKED,
    Frame,
    FrameType,
    LoneFrame,
)
from waterclock.log.id_index.fingerprint import fingerprints
from waterclock.log.id_index.runs import OFFSET_BITS, IdEntries, IdPieces
from waterclock.log.lone_message import lone_id
from waterclock.log.schema import binaries, decode, due_times, row_offsets
from waterclock.log.sidecars.due import DueDelta, NetDelta
from waterclock.log.sidecars.endings import Ending
from waterclock.log.sidecars.sparse_index import SparseIndex

Int64s = npt.NDArray[np.int64]
TOGETHER_ROWS = 8_192
"""Ids are fingerprinted so many at once: most frames may have one, and each call its price."""


class Derived:
    """What the frames of one segment say, so far."""

    def __init__(self, base_offset: int, *, every_bytes: int, seed: int | None) -> None:
        """`seed` is that of the id fingerprints; None where nobody asks for repeats."""
        self.base_offset = base_offset
        self.index = SparseIndex(every_bytes)
        self.due = DueDelta(base_offset)
        self._seed = seed
        self._ids = IdPieces([], [])
        self._waiting_rows = 0
        self._tracked = _Waiting([], [], [], [])
        self._untracked = _Waiting([], [], [], [])

    def resume(self, index: SparseIndex, due: NetDelta, entries: IdEntries | None) -> None:
        """Go on from what side-cars knew."""
        self.index = index
        self.due = DueDelta.resume(self.base_offset, due)
        if entries is not None:
            self._ids = IdPieces([entries.tracked], [entries.untracked])

    def add(self, frame: Frame, position: int) -> None:
        """Take in the next frame, which lies at `position`."""
        header = frame.header
        self.index.add(header, position)
        kind = header.type
        if self._seed is not None and kind in CARRIES_IDS:
            self._note_ids(frame)
        if kind is not FrameType.DATA:
            note_timers(self.due, frame)

    def add_lone(self, lone: LoneFrame, position: int) -> bool:
        """Take in a `data` frame of one message; False if that is left to `add`."""
        if self._seed is not None:
            found = lone_id(lone.body)
            if found is None:
                return False
            is_tracked = not lone.flags & FLAG_UNTRACKED
            waiting = self._tracked if is_tracked else self._untracked
            waiting.lone_ids.append(found)
            waiting.lone_offsets.append(lone.base_offset)
            self._waiting_rows += 1
            if self._waiting_rows >= TOGETHER_ROWS:
                self._take_in()
        self.index.note(lone.base_offset, position, lone.append_ms)
        return True

    def _note_ids(self, frame: Frame) -> None:
        header = frame.header
        waiting = self._tracked if header.is_tracked else self._untracked
        batch = decode(header, frame.body)
        waiting.ids.append(batch.column("message_id"))
        waiting.offsets.append(row_offsets(header, batch))
        self._waiting_rows += header.rows
        if self._waiting_rows >= TOGETHER_ROWS:
            self._take_in()

    def _take_in(self) -> None:
        """Make entries of the ids that wait; what they lie in is let go."""
        self._waiting_rows = 0
        pairs = ((self._tracked, self._ids.tracked), (self._untracked, self._ids.untracked))
        for waiting, entries in pairs:
            if waiting.lone_ids:
                waiting.ids.append(binaries(waiting.lone_ids))
                waiting.offsets.append(np.array(waiting.lone_offsets, np.int64))
            if waiting.ids:
                assert self._seed is not None
                fps = fingerprints(pa.concat_arrays(waiting.ids), self._seed)
                relative = (np.concatenate(waiting.offsets) - self.base_offset).astype(np.uint64)
                entries.append(np.sort(fps << np.uint64(OFFSET_BITS) | relative))
                for pieces in waiting:
                    pieces.clear()

    def entries(self) -> IdEntries:
        """Return the id entries, sorted. You must call this before what was added is cut off."""
        self._take_in()
        return self._ids.merged()


class _Waiting(NamedTuple):
    """Ids of frames, and their offsets, of which no entries were made yet."""

    ids: list[pa.BinaryArray]
    offsets: list[Int64s]
    lone_ids: list[bytes]
    lone_offsets: list[int]


def note_timers(due: DueDelta, frame: Frame) -> None:
    """Note what a frame says of scheduled messages; nothing of its body is held on to."""
    header, kind = frame.header, frame.header.type
    if kind is FrameType.SCHEDULED:
        batch = decode(header, frame.body)
        due.open(row_offsets(header, batch), due_times(batch).copy())
    elif kind is FrameType.FIRED:
        due.retire(as_numpy(decode(header, frame.body).column("scheduled_offset")).copy())
    elif kind is FrameType.CANCEL:
        scheduled = as_numpy(decode(header, frame.body).column("scheduled_offset")).copy()
        due.cancel(scheduled, has_expired=bool(header.flags & FLAG_EXPIRED))
    elif kind is FrameType.SEEN:
        batch = decode(header, frame.body)
        offsets, endings = row_offsets(header, batch), as_numpy(batch.column("ending"))
        if endings.any():
            due.cancel(offsets[endings == Ending.CANCELLED])
            due.cancel(offsets[endings == Ending.EXPIRED], has_expired=True)
    elif kind is FrameType.RESCHEDULE:
        batch = decode(header, frame.body)
        due.move(as_numpy(batch.column("scheduled_offset")).copy(), due_times(batch).copy())
