"""Rows of a frame and their offsets: dense in a frame as appended, sparse after compaction."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.log.arrays import as_numpy
from waterclock.log.frame import FrameHeader, FrameType
from waterclock.log.schema import OFFSET_DELTA
from waterclock.model.errors import OffsetOutOfRange

Int64s = npt.NDArray[np.int64]


def row_offsets(header: FrameHeader, batch: pa.RecordBatch) -> Int64s:
    """Return the offset of each row of a frame of messages, or of ids once seen."""
    if header.type is FrameType.SEEN:
        return as_numpy(batch.column("offset"))
    if header.is_sparse:
        deltas = as_numpy(batch.column(OFFSET_DELTA.name))
        return np.asarray(deltas.astype(np.int64) + header.base_offset)
    return np.arange(header.base_offset, header.base_offset + header.rows, dtype=np.int64)


def row_numbers(header: FrameHeader, batch: pa.RecordBatch, offsets: Int64s) -> Int64s:
    """Return which row of a frame each offset is; raise OffsetOutOfRange if one has no row."""
    if not header.is_sparse and header.rows == header.span:
        return offsets - header.base_offset
    present = row_offsets(header, batch)
    at = np.searchsorted(present, offsets)
    hit = at < len(present)
    hit[hit] = present[at[hit]] == offsets[hit]
    if not bool(hit.all()):
        gone = int(offsets[~hit][0])
        raise OffsetOutOfRange(gone, start=header.base_offset, end=header.end_offset)
    return at
