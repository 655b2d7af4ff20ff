"""Messages that fire next, read ahead of their time in the order they lie in the log.

Due times scatter messages over the log. To read them as they fire means to find, check and decode a
whole frame for one message, again and again. Read ahead for a second at once, each frame is visited
once for all of its messages. What is not here when it fires is read then: this is only ever faster.
"""

import asyncio
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.log.arrays import distinct, is_among
from waterclock.log.frame import FLAG_EXPIRES, FrameType, header_of
from waterclock.log.scheduled import FoundRows, ScheduledRows, scheduled_rows
from waterclock.model.errors import Damaged, OffsetOutOfRange
from waterclock.storage.partition_store import PartitionStore

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

ROWS_MAX = 131_072
"""Messages kept, about, ..."""
BYTES_MAX = 64 << 20
"""... and their bytes."""
STEP_ROWS = 256
"""Messages read between two pauses: in the worst case each is in a frame of its own, ..."""
STEP_DECODED_BYTES = 8 << 20
"""... so that many bytes are decoded for few messages."""
STEP_BYTES = 8 << 20
CHUNK_BYTES = 4 << 20
"""Messages with so many bytes are joined: one large copy would be a pause for everyone else."""
WORTH_ROWS = 64
"""Fewer are read when they fire."""


class _Chunk:
    """Messages read together. It passes for a frame of them."""

    def __init__(self, parts: list[ScheduledRows]) -> None:
        self.offsets: Int64s = np.concatenate([part.offsets for part in parts])
        table = pa.Table.from_batches([part.rows for part in parts]).combine_chunks()
        self.rows: pa.RecordBatch = table.to_batches()[0]
        count = len(self.offsets)
        header = header_of(
            FrameType.SCHEDULED,
            b"",
            base_offset=0,
            span=count,
            rows=count,
            log_tag=0,
            append_ms=0,
            flags=FLAG_EXPIRES * any(part.may_expire for part in parts),
        )
        self.header = header._replace(body_len=self.rows.nbytes)


class ReadAhead:
    """Scheduled messages read before they fire; passes for the reader of a store."""

    def __init__(self, store: PartitionStore, is_open: Callable[[Int64s], Bools]) -> None:
        self._store = store
        self._is_open = is_open
        self._chunks: list[_Chunk] = []
        self.misses = 0
        """Frames that had to be read as their messages fired, since anybody set this to 0."""

    def __repr__(self) -> str:
        return f"<ReadAhead {sum(len(chunk.offsets) for chunk in self._chunks)} messages>"

    def rows(self, offsets: Int64s) -> Iterator[FoundRows]:
        """Yield messages as `Reader.rows` does, from here if they are here."""
        is_left = np.ones(len(offsets), np.bool_)
        for chunk in self._chunks:
            is_here = is_left & is_among(offsets, chunk.offsets)
            if is_here.any():
                asks = np.flatnonzero(is_here)
                is_left[asks] = False
                yield chunk.header, chunk.rows, chunk.offsets.searchsorted(offsets[asks]), asks
        left = np.flatnonzero(is_left)
        for header, batch, rows, asks in self._store.reader.rows(offsets[left]):
            self.misses += 1
            yield header, batch, rows, left[asks]

    def affordable(self, offsets: Int64s) -> int:
        """Return how many of the first can be had at once: some need a frame read for each."""
        is_away = np.ones(len(offsets), np.bool_)
        for chunk in self._chunks:
            is_away &= ~is_among(offsets, chunk.offsets)
        away = np.flatnonzero(is_away)
        return len(offsets) if len(away) <= STEP_ROWS else int(away[STEP_ROWS])

    async def read(self, offsets: Int64s) -> None:
        """Read what is not here yet, with pauses, and let go of what is not wanted any more."""
        wanted = distinct(offsets)
        await asyncio.sleep(0)
        self._chunks = [c for c in self._chunks if is_among(c.offsets, wanted).any()]
        here = np.sort(np.concatenate([np.empty(0, np.int64), *(c.offsets for c in self._chunks)]))
        await asyncio.sleep(0)
        wanted = wanted[~is_among(wanted, here)]
        if len(wanted) < WORTH_ROWS:
            return
        size = joined = sum(chunk.header.body_len for chunk in self._chunks)
        parts: list[ScheduledRows] = []
        while len(wanted) and size < BYTES_MAX:
            part, wanted = self._step(wanted)
            if part is not None:
                size += part.rows.nbytes
                parts.append(part)
            if size - joined >= CHUNK_BYTES:
                self._chunks.append(_Chunk(parts))
                joined = size
                parts = []
            await asyncio.sleep(0)
        if parts:
            self._chunks.append(_Chunk(parts))

    def _step(self, wanted: Int64s) -> tuple[ScheduledRows | None, Int64s]:
        """Read the first of some messages, by offset; return them, and those that come next."""
        step, rest = wanted[:STEP_ROWS], wanted[STEP_ROWS:]
        # What has fired meanwhile may be gone from the log.
        step = step[self._is_open(step)]
        frames: list[FoundRows] = []
        decoded = 0
        try:
            for found in self._store.reader.rows(step):
                frames.append(found)
                decoded += found[1].nbytes
                if decoded >= STEP_DECODED_BYTES:
                    break
        except (Damaged, OffsetOutOfRange):
            return None, rest  # firing them will raise it
        if not frames:
            return None, rest
        step = step[: int(frames[-1][3].max()) + 1]
        part = scheduled_rows(frames, step, bytes_max=STEP_BYTES)
        return part, wanted[int(wanted.searchsorted(step[-1])) + 1 :]
