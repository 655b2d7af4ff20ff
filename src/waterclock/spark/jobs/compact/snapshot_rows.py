"""The messages that live, taken out of frames and of an older snapshot, and put into Parquet.

Bodies go from the log into the file without a Python object or a JVM between: a task gets which
offsets live, and picks them with Arrow. Everything is bounded: a few replies of the node, and one
row group.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from waterclock.log.frame import Frame, read_frame
from waterclock.log.schema import MESSAGES, decode, row_offsets
from waterclock.log.snapshot import ROW_GROUP_ROWS_MAX, ROWS
from waterclock.spark.jobs.compact.snapshot_files import make_file, make_folders

Int64s = npt.NDArray[np.int64]

ROW_GROUP_BYTES = 32 << 20
"""A row group is closed at this size, however few its rows: a reader holds a whole one."""
COPY_PART = 4
"""A frame that is wholly wanted is not copied, if it is one in so many of what it came with."""


def picked_of_frames(frames: memoryview, wanted: Int64s) -> Iterator[pa.RecordBatch]:
    """Yield the rows at the offsets wanted (sorted) of whole frames back to back."""
    position = 0
    while position < len(frames):
        frame = read_frame(frames, position)
        position += frame.header.size
        if frame.header.is_deliverable:
            yield from _picked_of_frame(frame, wanted, len(frames))


def _picked_of_frame(frame: Frame, wanted: Int64s, size: int) -> Iterator[pa.RecordBatch]:
    header = frame.header
    here = _between(wanted, header.base_offset, header.end_offset)
    if not len(here):
        return
    rows = decode(header, frame.body)
    offsets = row_offsets(header, rows)
    keep = _among(offsets, here).nonzero()[0]
    # A row that is not copied keeps all of the bytes it came with.
    if len(keep) < len(rows) or COPY_PART * header.size < size:
        rows, offsets = rows.take(pa.array(keep)), offsets[keep]
    if len(rows):
        appended = np.full(len(rows), header.append_ms, dtype=np.int64)
        messages = [rows.column(name) for name in MESSAGES.names]
        columns = [pa.array(offsets), *messages, pa.array(appended)]
        yield pa.RecordBatch.from_arrays(columns, schema=ROWS)


def picked_of_file(path: Path, wanted: Int64s) -> Iterator[pa.RecordBatch]:
    """Yield the rows at the offsets wanted (sorted) of a file of a snapshot.

    Row groups in which none is wanted are not read.
    """
    with pq.ParquetFile(path) as file:
        for number in range(file.num_row_groups):
            spread = file.metadata.row_group(number).column(0).statistics
            if len(_between(wanted, spread.min, spread.max + 1)):
                table = file.read_row_group(number, use_threads=False).cast(ROWS)
                offsets = table.column("offset").to_numpy()
                keep = _among(offsets, wanted)
                rows = table if keep.all() else table.filter(pa.array(keep))
                yield from rows.to_batches()


class RowGroups:
    """A Parquet file in the making; a row group is held in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0
        self.first_offset = self.last_offset = -1
        self._writer: pq.ParquetWriter | None = None
        self._held: list[pa.RecordBatch] = []
        self._held_rows = self._held_bytes = 0

    def __repr__(self) -> str:
        return f"<RowGroups {self.path.name}, {self.rows} rows>"

    def add(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Take rows in, in order of offset."""
        for batch in batches:
            self._held.append(batch)
            self._held_rows += len(batch)
            self._held_bytes += batch.nbytes
            if self._held_rows >= ROW_GROUP_ROWS_MAX or self._held_bytes >= ROW_GROUP_BYTES:
                self._write(ends=False)

    def close(self) -> None:
        """Write what is held, and the footer. Without rows there is no file."""
        if self._held_rows:
            self._write(ends=True)
        if self._writer is not None:
            self._writer.close()

    def _write(self, *, ends: bool) -> None:
        table = pa.Table.from_batches(self._held, ROWS)
        at = 0
        while at < len(table):
            count = _rows_that_fit(table, at)
            if at + count == len(table) and not ends and count < ROW_GROUP_ROWS_MAX and at:
                break  # a rest: it waits for more
            self._write_group(table.slice(at, count))
            at += count
        rest = table.slice(at)
        # The rest would keep all it was cut from.
        self._held = rest.combine_chunks().to_batches() if len(rest) else []
        self._held_rows, self._held_bytes = len(rest), rest.nbytes

    def _write_group(self, table: pa.Table) -> None:
        offsets = table.column("offset")
        if self._writer is None:
            make_folders(self.path.parent)
            make_file(self.path)
            self._writer = pq.ParquetWriter(
                self.path,
                ROWS,
                compression="lz4",
                use_dictionary=False,
                write_statistics=["offset"],
                store_schema=False,
                write_page_checksum=True,
            )
            self.first_offset = offsets[0].as_py()
        assert offsets[0].as_py() > self.last_offset
        self._writer.write_table(table, row_group_size=ROW_GROUP_ROWS_MAX)
        self.last_offset = offsets[-1].as_py()
        self.rows += len(table)


def _rows_that_fit(table: pa.Table, at: int) -> int:
    """Return how many rows from `at` on make one row group."""
    count = min(len(table) - at, ROW_GROUP_ROWS_MAX)
    while count > 1 and table.slice(at, count).nbytes > 2 * ROW_GROUP_BYTES:
        count = -(-count // 2)
    return count


def _between(wanted: Int64s, start: int, end: int) -> Int64s:
    first, last = np.searchsorted(wanted, (start, end))
    return wanted[first:last]


def _among(offsets: Int64s, wanted: Int64s) -> npt.NDArray[np.bool_]:
    """Tell which offsets are wanted; both are sorted."""
    if not len(wanted):
        return np.zeros(len(offsets), np.bool_)
    at = np.searchsorted(wanted, offsets)
    at[at == len(wanted)] = 0
    return np.asarray(wanted[at] == offsets)
