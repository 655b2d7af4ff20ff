"""Raw frames of a partition, as they lie in its log, checked again on this side."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from waterclock.log.arrays import from_numpy
from waterclock.log.frame import Frame, check_body, decode_header
from waterclock.log.schema import MESSAGES, decode, row_offsets

OFFSET = pa.field("offset", pa.int64(), nullable=False)
APPEND_MS = pa.field("append_ms", pa.int64(), nullable=False)
TABLE = pa.schema([OFFSET, *MESSAGES, APPEND_MS])


@dataclass(frozen=True, slots=True)
class Fetched:
    raw: bytes
    next_offset: int
    """Where to go on."""
    start_offset: int
    """Of the partition."""
    end_offset: int
    """Of what could be read."""

    def frames(self) -> Iterator[Frame]:
        """Yield the frames; raises FrameDamaged if bytes are not what was written."""
        position = 0
        view = memoryview(self.raw)
        while position < len(view):
            header = decode_header(view, position)
            body = check_body(header, view, position)
            yield Frame(header, body, view[position : position + header.size])
            position += header.size

    def table(self) -> pa.Table:
        """Return the deliverable messages with their offsets and the times they were stored (those
        for later: when they became due and were delivered), as an Arrow table."""
        batches = []
        for frame in self.frames():
            if frame.header.is_deliverable:
                rows = decode(frame.header, frame.body)
                offsets = from_numpy(row_offsets(frame.header, rows))
                times = from_numpy(np.full(rows.num_rows, frame.header.append_ms, np.int64))
                columns = [offsets, *(rows.column(name) for name in MESSAGES.names), times]
                batches.append(pa.RecordBatch.from_arrays(columns, schema=TABLE))
        return pa.Table.from_batches(batches, TABLE)
