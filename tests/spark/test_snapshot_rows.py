"""Rows that live, picked out of frames and files, and the Parquet they become."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.log.frame import FrameType, encode_header, header_of
from waterclock.log.schema import encode, from_messages, schema_of
from waterclock.log.snapshot import ROW_GROUP_ROWS_MAX, ROWS
from waterclock.model.message import Message
from waterclock.spark.jobs.compact import snapshot_rows
from waterclock.spark.jobs.compact.snapshot_rows import RowGroups, picked_of_file, picked_of_frames


def frame(kind: FrameType, base: int, rows: int, *, append_ms: int = 5) -> bytes:
    messages = [
        Message(message_id=b"m%d" % (base + i), value=b"v%d" % (base + i), key=b"k")
        for i in range(rows)
    ]
    batch = from_messages(messages)
    if kind is FrameType.FIRED:
        columns = [*batch.columns, pa.array(range(rows), pa.int64())]
        batch = pa.record_batch(columns, schema=schema_of(kind))
    body = bytes(encode(batch))
    header = header_of(
        kind, body, base_offset=base, span=rows, rows=rows, log_tag=1, append_ms=append_ms
    )
    return encode_header(header) + body


def offsets_of(batches: list[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def wanted(*offsets: int) -> np.ndarray:
    return np.array(offsets, dtype=np.int64)


def test_only_deliverable_rows_that_are_wanted_are_picked():
    frames = memoryview(
        frame(FrameType.DATA, 0, 4)
        + frame(FrameType.SCHEDULED, 4, 3)
        + frame(FrameType.FIRED, 7, 2, append_ms=9)
    )

    picked = list(picked_of_frames(frames, wanted(1, 3, 5, 8)))

    assert offsets_of(picked) == [1, 3, 8]
    assert all(batch.schema == ROWS for batch in picked)
    assert [batch.column("append_ms").to_pylist() for batch in picked] == [[5, 5], [9]]
    assert picked[1].column("value").to_pylist() == [b"v8"]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.sets(st.integers(0, 80)))
def test_picking_is_the_same_as_looking_at_every_row(sizes, offsets):
    parts, base = [], 0
    for size in sizes:
        parts.append(frame(FrameType.DATA, base, size))
        base += size
    frames = memoryview(b"".join(parts))

    picked = list(picked_of_frames(frames, wanted(*sorted(offsets))))

    assert offsets_of(picked) == sorted(offset for offset in offsets if offset < base)


def rows(offsets: range, value: bytes = b"v") -> pa.RecordBatch:
    count = len(offsets)
    columns = [
        pa.array(offsets, pa.int64()),
        pa.array([b"m"] * count, pa.binary()),
        pa.array([b"k"] * count, pa.binary()),
        pa.array([value] * count, pa.binary()),
        pa.nulls(count, ROWS.field("headers").type),
        pa.nulls(count, pa.int64()),
        pa.array([1] * count, pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ROWS)


def written(path: Path, *batches: pa.RecordBatch) -> RowGroups:
    made = RowGroups(path)
    made.add(batches)
    made.close()
    return made


def test_a_file_has_row_groups_of_at_most_so_many_rows(tmp_path):
    path = tmp_path / "p" / "a.parquet"
    step = 50_000

    made = written(path, *(rows(range(at, at + step)) for at in range(0, 4 * step, step)))

    assert (made.rows, made.first_offset, made.last_offset) == (4 * step, 0, 4 * step - 1)
    meta = pq.read_metadata(path)
    sizes = [meta.row_group(i).num_rows for i in range(meta.num_row_groups)]
    assert sizes == [ROW_GROUP_ROWS_MAX] * 3 + [4 * step - 3 * ROW_GROUP_ROWS_MAX]
    assert pq.read_table(path).column("offset").to_pylist() == list(range(4 * step))


def test_a_row_group_of_large_messages_is_closed_early(tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot_rows, "ROW_GROUP_BYTES", 1_000)
    path = tmp_path / "a.parquet"

    written(path, rows(range(8), b"x" * 900), rows(range(8, 10)))

    meta = pq.read_metadata(path)
    sizes = [meta.row_group(i).num_rows for i in range(meta.num_row_groups)]
    assert sum(sizes) == 10
    assert max(sizes[:-1]) <= 2


def test_the_file_has_the_columns_the_format_says(tmp_path):
    path = tmp_path / "a.parquet"
    written(path, rows(range(3)))

    assert pq.read_schema(path).names == ROWS.names
    assert pq.read_table(path).cast(ROWS).schema == ROWS
    column = pq.read_metadata(path).row_group(0).column(3)
    assert column.compression == "LZ4"
    assert not column.has_dictionary_page


def test_without_rows_there_is_no_file(tmp_path):
    made = written(tmp_path / "a.parquet")

    assert made.rows == 0
    assert not made.path.exists()


@pytest.mark.parametrize("chosen", [(), (0,), (70_000,), (1, 65_535, 65_536, 99_999)])
def test_a_file_gives_back_the_rows_that_are_wanted(tmp_path, chosen):
    path = tmp_path / "a.parquet"
    written(path, rows(range(100_000)))

    assert offsets_of(list(picked_of_file(path, wanted(*chosen)))) == list(chosen)
