"""Snapshots as the compaction job leaves them, written in plain steps for tests."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import parquet as pq

from waterclock.log.snapshot import MANIFEST, ROWS, Manifest, SnapshotFile, SnapshotPartition


class Row(NamedTuple):
    """A message at its offset."""

    offset: int
    message_id: bytes
    key: bytes | None
    value: bytes | None
    headers: Any = None
    due_ms: int | None = None
    append_ms: int = 1


def latest(rows: Iterable[Row]) -> list[Row]:
    """Return what a compaction leaves: the last of each key, if it has a value."""
    last: dict[object, Row] = {}
    for row in rows:
        last[row.offset if row.key is None else row.key] = row
    return sorted(row for row in last.values() if row.value is not None)


def write_snapshot(
    folder: Path,
    partitions: Mapping[int, tuple[int, int, Sequence[Row]]],
    *,
    topic: str = "orders",
    snapshot: str = "s1",
    file_rows: int = 1_000_000,
    group_rows: int = 65_536,
    log_tag: int = 0,
) -> Path:
    """Write {partition: (start, end, rows)}; return the snapshot's folder."""
    target = folder / snapshot
    found = []
    for number, (start, end, rows) in partitions.items():
        files = []
        for at in range(0, len(rows), file_rows):
            part = rows[at : at + file_rows]
            path = f"partition={number}/{part[0].offset:020d}-{at}.parquet"
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            pairs = zip(zip(*part, strict=True), ROWS, strict=True)
            columns = [pa.array(column, field.type) for column, field in pairs]
            write_table(target / path, pa.table(columns, schema=ROWS), group_rows)
            size = (target / path).stat().st_size
            files.append(SnapshotFile(path, len(part), size, part[0].offset, part[-1].offset))
        found.append(SnapshotPartition(number, start, end, tuple(files), log_tag))
    target.mkdir(parents=True, exist_ok=True)
    manifest = Manifest(topic, snapshot, 1_794_766_210_123, tuple(found))
    (target / MANIFEST).write_bytes(manifest.encode())
    return target


def write_table(path: Path, table: pa.Table, group_rows: int) -> None:
    """Write one file as the job does."""
    pq.write_table(
        table,
        path,
        row_group_size=group_rows,
        compression="lz4",
        use_dictionary=False,
        write_statistics=["offset"],
        write_page_checksum=True,
    )
