"""Messages of one key, looked for in a partition from an offset on.

There is no index of keys: all that comes is looked at, so one request looks at no more than the
bounds below, says where it stopped, and another one goes on there.
"""

from collections.abc import AsyncIterator

import numpy as np
import pyarrow.compute as pc

from waterclock.log.arrays import as_numpy, filled
from waterclock.log.schema import binary_scalar
from waterclock.model.units import MIB
from waterclock.node.replay.replays import Replay, ReplayBatch
from waterclock.node.replay.snapshot_files import SnapshotBatch

ROWS_MAX = 100_000
BYTES_MAX = 64 * MIB
"""What one request looks at; the batch in which it passes either is looked at whole."""


class KeySearch:
    """Picks messages of a key out of batches, until it has enough or has looked at enough."""

    def __init__(self, key: bytes, *, start: int, count: int, end: int = 0) -> None:
        """Find `count` of them in the offsets [start, end); 0 is all there are."""
        self._key = binary_scalar(key)
        self._count = count
        self.end = max(start, end) if end else 0
        self._size_bytes = 0
        self._log_end = start
        self.rows = 0
        """How many messages it has looked at."""
        self.found = 0
        self.next_offset = start
        """Where another search goes on."""

    def __repr__(self) -> str:
        return f"<KeySearch found {self.found} of {self.rows}>"

    @property
    def is_over(self) -> bool:
        """It has found, or looked at, what it was to."""
        has_all = bool(self._count) and self.found >= self._count
        is_at_end = bool(self.end) and self.next_offset >= self.end
        return has_all or is_at_end or self.rows >= ROWS_MAX or self._size_bytes >= BYTES_MAX

    @property
    def is_at_end(self) -> bool:
        """It has come to where the partition ended when it began."""
        return self.next_offset >= self._log_end

    async def batches(self, replay: Replay) -> AsyncIterator[ReplayBatch]:
        """Yield what it finds in a replay of the partition from its start on."""
        (self._log_end,) = replay.ends.values()
        async for batch in replay:
            picked = self.pick(batch)
            if picked is not None:
                yield picked
            if self.is_over:
                return
        end = self._log_end
        self.next_offset = max(self.next_offset, min(end, self.end or end))

    def pick(self, batch: ReplayBatch) -> ReplayBatch | None:
        """Return the messages of the key in the next batch; None if there are none."""
        messages = batch.messages
        rows = messages.rows()
        at = np.flatnonzero(as_numpy(filled(pc.equal(rows.column("key"), self._key), False)))
        offsets = np.concatenate([np.arange(*span) for span in messages.ranges])
        if self.end and batch.next_offset > self.end:
            at = at[offsets[at] < self.end]
        room = self._count - self.found if self._count else len(at)
        is_cut = bool(self._count) and len(at) >= room
        at = at[:room]
        self.next_offset = int(offsets[at[-1]]) + 1 if is_cut else batch.next_offset
        if self.end:
            self.next_offset = min(self.next_offset, self.end)
        self.rows += int(at[-1]) + 1 if is_cut else messages.count
        self._size_bytes += messages.size_bytes
        self.found += len(at)
        if not len(at):
            return None
        times = messages.append_times
        if times is None:
            times = np.full(messages.count, messages.append_ms, np.int64)
        picked = SnapshotBatch(offsets[at], times[at], rows.take(at))
        return ReplayBatch(batch.partition, picked, self.next_offset)
