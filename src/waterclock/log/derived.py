"""Everything derived from one segment, gathered frame by frame: sparse index, id entries, promises.

Used where a segment is read as a whole: when a side-car is missing, after a crash, after a rewrite.
The live append path keeps the same things up to date from batches it has at hand.
"""

import numpy as np

from waterclock.log.due import DueDelta, NetDelta
from waterclock.log.fingerprint import fingerprints
from waterclock.log.frame import Frame, FrameType
from waterclock.log.id_runs import OFFSET_BITS, Entries
from waterclock.log.index import SparseIndex
from waterclock.log.rows import row_offsets
from waterclock.log.schema import decode, due_times


class Derived:
    """What the frames of one segment say, so far."""

    def __init__(self, base_offset: int, *, every_bytes: int, seed: int | None) -> None:
        """`seed` is that of the id fingerprints; None where nobody asks for repeats."""
        self.base_offset = base_offset
        self.index = SparseIndex(every_bytes)
        self.due = DueDelta(base_offset)
        self._seed = seed
        self._sorted: Entries | None = None
        self._entries: list[Entries] = []

    def resume(self, index: SparseIndex, due: NetDelta, entries: Entries | None) -> None:
        """Go on from what side-cars knew."""
        self.index = index
        self.due = DueDelta.resume(self.base_offset, due)
        self._sorted = entries

    def add(self, frame: Frame, position: int) -> None:
        """Take in the next frame, which lies at `position`."""
        header = frame.header
        self.index.add(header, position)
        kind = header.type
        if header.is_tracked and self._seed is not None:
            batch = decode(header, frame.body)
            fps = fingerprints(batch.column("message_id"), self._seed)
            relative = row_offsets(header, batch) - self.base_offset
            self._entries.append(fps << np.uint64(OFFSET_BITS) | relative.astype(np.uint64))
        if kind is FrameType.PROMISE:
            batch = decode(header, frame.body)
            self.due.open(row_offsets(header, batch), due_times(batch))
        elif kind in (FrameType.FIRED, FrameType.CANCEL):
            self.due.retire(decode(header, frame.body).column("promise_offset").to_numpy())
        elif kind is FrameType.RESCHEDULE:
            batch = decode(header, frame.body)
            self.due.move(batch.column("promise_offset").to_numpy(), due_times(batch))

    def entries(self) -> Entries:
        """Return the id entries, sorted."""
        known = np.empty(0, np.uint64) if self._sorted is None else self._sorted
        return np.sort(np.concatenate([known, *self._entries])) if self._entries else known
