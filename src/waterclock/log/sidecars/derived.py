"""Everything derived from one segment, collected frame by frame: sparse index, id entries,
scheduled messages.

Used where a segment is read as a whole: when a side-car is missing, after a crash, after a rewrite.
The live append path keeps the same things up to date from batches it has at hand.
"""

import numpy as np

from waterclock.log.arrays import as_numpy
from waterclock.log.frame import CARRIES_IDS, FLAG_EXPIRED, Frame, FrameType
from waterclock.log.id_index.fingerprint import fingerprints
from waterclock.log.id_index.runs import OFFSET_BITS, IdEntries, IdPieces
from waterclock.log.schema import decode, due_times, row_offsets
from waterclock.log.sidecars.due import DueDelta, NetDelta
from waterclock.log.sidecars.endings import Ending
from waterclock.log.sidecars.sparse_index import SparseIndex


class Derived:
    """What the frames of one segment say, so far."""

    def __init__(self, base_offset: int, *, every_bytes: int, seed: int | None) -> None:
        """`seed` is that of the id fingerprints; None where nobody asks for repeats."""
        self.base_offset = base_offset
        self.index = SparseIndex(every_bytes)
        self.due = DueDelta(base_offset)
        self._seed = seed
        self._ids = IdPieces([], [])

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
        if kind in CARRIES_IDS and self._seed is not None:
            batch = decode(header, frame.body)
            fps = fingerprints(batch.column("message_id"), self._seed)
            relative = row_offsets(header, batch) - self.base_offset
            entries = np.sort(fps << np.uint64(OFFSET_BITS) | relative.astype(np.uint64))
            (self._ids.tracked if header.is_tracked else self._ids.untracked).append(entries)
        note_timers(self.due, frame)

    def entries(self) -> IdEntries:
        """Return the id entries, sorted."""
        return self._ids.merged()


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
