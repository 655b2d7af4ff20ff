"""Reading the files of a snapshot, a row group at a time. Slow: done in a thread, by one at a time.

The files belong to whoever wrote them, and may be gone, cut short or overwritten at any moment. So
they are read, never mapped (touching a map beyond the end of its file kills the process), and what
comes out is checked against the manifest again and again: size, columns, number of rows, offsets
that ascend. Anything else is `Damaged`, and says of which file.
"""

from collections.abc import Generator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from waterclock.delivery.spans import Range, ranges_of
from waterclock.log.arrays import as_numpy
from waterclock.log.schema import MESSAGES, encode
from waterclock.log.snapshot import (
    MANIFEST,
    MANIFEST_BYTES_MAX,
    ROWS,
    Manifest,
    SnapshotFile,
    SnapshotPartition,
    parse_manifest,
)
from waterclock.model.errors import Damaged, WaterclockError
from waterclock.model.units import MIB

if TYPE_CHECKING:
    from pyarrow import parquet as pq

Int64s = npt.NDArray[np.int64]

GROUP_BYTES_MAX = 256 * MIB
"""A row group, inflated: this much memory, twice, is what a reader may take."""
GROUP_ROWS_MAX = 1_000_000
BATCH_ROWS = 16_384
"""Messages that go out together."""
BATCH_BYTES = 4 * MIB


class SnapshotBatch:
    """Messages of a snapshot as they go out: a `DeliveryBatch` whose offsets lie apart."""

    def __init__(self, offsets: Int64s, append_times: Int64s, rows: pa.RecordBatch) -> None:
        assert len(offsets) == len(append_times) == len(rows)
        self.offsets = offsets
        self.append_times = append_times
        self._rows = rows

    def __repr__(self) -> str:
        return f"<SnapshotBatch {self.count} messages from {int(self.offsets[0])}>"

    @property
    def count(self) -> int:
        """How many messages."""
        return len(self.offsets)

    @property
    def append_ms(self) -> int:
        """When the last of them became deliverable."""
        return int(self.append_times[-1])

    @property
    def size_bytes(self) -> int:
        """About how much it is."""
        return int(self._rows.nbytes)

    @cached_property
    def ranges(self) -> tuple[Range, ...]:
        return tuple(ranges_of(self.offsets))

    @property
    def arrow(self) -> memoryview:
        """The messages as one Arrow record-batch message in the columns of MESSAGES."""
        return encode(self._rows)

    def rows(self) -> pa.RecordBatch:
        """Return the messages as Arrow columns."""
        return self._rows


def read_manifest(folder: Path) -> tuple[Manifest, int]:
    """Return a manifest and the checksum of its bytes; raises BadInput or Damaged."""
    path = folder / MANIFEST
    try:
        if not path.is_file():
            raise Damaged(f"{path}: there is no such file")
        with path.open("rb") as file:
            data = file.read(MANIFEST_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        raise Damaged(f"{path}: {error}") from error
    return parse_manifest(data), crc32c(data)


def check_files(folder: Path, manifest: Manifest) -> None:
    """Raise Damaged unless every file is there, with the columns and rows the manifest says."""
    for partition in manifest.partitions:
        for file in partition.files:
            open_file(folder, file).close()


def open_file(folder: Path, file: SnapshotFile) -> "pq.ParquetFile":
    """Open a file whose size and footer are what the manifest says; raises Damaged."""
    path = folder / file.path
    try:
        if not path.is_file():
            raise Damaged(f"{path}: there is no such file")
        size = path.stat().st_size
        if size != file.size_bytes:
            raise Damaged(f"{path}: has {size} bytes, and {file.size_bytes} by the manifest")
        from pyarrow import parquet as pq  # most nodes never have a snapshot

        opened = pq.ParquetFile(path, memory_map=False, page_checksum_verification=True)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise Damaged(f"{path}: {error}") from error
    try:
        _check_footer(path, opened, file)
    except (OSError, ValueError, pa.ArrowException) as error:
        opened.close()
        raise Damaged(f"{path}: {error}") from error
    except WaterclockError:
        opened.close()
        raise
    return opened


def _check_footer(path: Path, opened: "pq.ParquetFile", file: SnapshotFile) -> None:
    footer = opened.metadata
    if footer.num_rows != file.rows:
        raise Damaged(f"{path}: has {footer.num_rows} rows, and {file.rows} by the manifest")
    columns = opened.schema_arrow
    for wanted in ROWS:
        at = columns.get_field_index(wanted.name)
        if at < 0 or not columns.field(at).type.equals(wanted.type):
            found = "no such column" if at < 0 else f"it is {columns.field(at).type}"
            raise Damaged(f"{path}: column {wanted.name} must be {wanted.type}: {found}")
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        if group.total_byte_size > GROUP_BYTES_MAX or group.num_rows > GROUP_ROWS_MAX:
            raise Damaged(
                f"{path}: row group {number} has {group.num_rows} rows in "
                f"{group.total_byte_size} bytes; at most {GROUP_ROWS_MAX} in {GROUP_BYTES_MAX}"
            )


class PartitionRows:
    """The rows of one partition of a snapshot from an offset on, in order."""

    def __init__(self, folder: Path, partition: SnapshotPartition, offset: int) -> None:
        self._folder = folder
        self._partition = partition
        self._offset = offset
        self._groups = self._read()

    def next_group(self) -> list[SnapshotBatch]:
        """Return the messages of the next row group; nothing at the end. Raises Damaged."""
        return next(self._groups, [])

    def last_row(self) -> tuple[int, bytes] | None:
        """Return offset and id of the last message there is; None if there is none."""
        found = None
        for batches in self._groups:
            ids = batches[-1].rows().column("message_id")
            found = int(batches[-1].offsets[-1]), ids[len(ids) - 1].as_py()
        return found

    def close(self) -> None:
        """Let go of the file at hand."""
        self._groups.close()

    def _read(self) -> Generator[list[SnapshotBatch], None, None]:
        for file in self._partition.files:
            # A reader that comes back opens nothing that it has behind itself.
            if file.last_offset < self._offset:
                continue
            with open_file(self._folder, file) as opened:
                for number in range(opened.num_row_groups):
                    if _last_offset(opened, number) < self._offset:
                        continue
                    batches = self._batches(file, opened, number)
                    if batches:
                        yield batches

    def _batches(
        self, file: SnapshotFile, opened: "pq.ParquetFile", number: int
    ) -> list[SnapshotBatch]:
        path = self._folder / file.path
        try:
            table = opened.read_row_group(number, columns=ROWS.names, use_threads=False)
            (batch,) = table.combine_chunks().to_batches()
            offsets = as_numpy(batch.column("offset"))
            times = as_numpy(batch.column("append_ms"))
            columns = [batch.column(field.name) for field in MESSAGES]
            rows = pa.RecordBatch.from_arrays(columns, schema=MESSAGES)
            rows.validate()
        except (OSError, ValueError, TypeError, pa.ArrowException) as error:
            raise Damaged(f"{path}: row group {number}: {error}") from error
        if rows.column("message_id").null_count or not _ascend(offsets, file):
            raise Damaged(f"{path}: row group {number}: its offsets or ids cannot be")
        first = int(np.searchsorted(offsets, self._offset))
        if first == len(offsets):
            return []
        self._offset = int(offsets[-1]) + 1
        step = min(BATCH_ROWS, max(1, BATCH_BYTES * len(rows) // max(1, rows.nbytes)))
        return [
            SnapshotBatch(offsets[at : at + step], times[at : at + step], rows.slice(at, step))
            for at in range(first, len(offsets), step)
        ]


def _ascend(offsets: Int64s, file: SnapshotFile) -> bool:
    if not len(offsets):
        return False
    is_within = file.first_offset <= offsets[0] and offsets[-1] <= file.last_offset
    return bool(is_within and (np.diff(offsets) > 0).all())


def _last_offset(opened: "pq.ParquetFile", number: int) -> int:
    """Return the greatest offset of a row group, as far as its file tells without reading it."""
    column = opened.metadata.row_group(number).column(0)
    statistics = column.statistics if column.path_in_schema == "offset" else None
    if statistics is None or not statistics.has_min_max:
        return (1 << 63) - 1
    return int(statistics.max)
