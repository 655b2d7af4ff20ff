"""Frames become record batches: any range, key prefix and projection equals the plain rows, picked.

Pure but for Arrow: thousands of logs are read without a node or Spark.
"""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.spark.frame_logs import KEYS, PARTITION, FramePlan, frame_plans, log_of
from waterclock.log.frame import FrameType
from waterclock.model.errors import FrameDamaged
from waterclock.spark.read.frame_rows import FrameRows
from waterclock.spark.read.ranges import Range, planned
from waterclock.spark.schemas import COLUMNS, EXTRA_COLUMNS, TIMESTAMP

ALL = {column.name: column.arrow for column in (*COLUMNS["all"], *EXTRA_COLUMNS["all"])}


def read(frames: list[bytes], names: list[str], wanted: Range, **options: Any) -> list[Any]:
    """Return what is read, as dicts, of replies that hold two frames each."""
    schema = pa.schema([(name, ALL[name]) for name in names])
    settings = {"with_scheduled": True, "key_prefix": None, "batch_rows": 64, **options}
    replies = [memoryview(b"".join(frames[at : at + 2])) for at in range(0, len(frames), 2)]
    batches = list(FrameRows(schema, wanted, **settings).batches(replies))
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema.equals(schema)
        assert 0 < batch.num_rows <= settings["batch_rows"]
    return [row for batch in batches for row in plain(batch)]


def plain(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return rows with their times in milliseconds."""
    columns = {}
    for field, column in zip(batch.schema, batch.columns, strict=True):
        is_time = field.type == TIMESTAMP
        cells = (column.view(pa.int64()) if is_time else column).to_pylist()
        columns[field.name] = [c and c // 1_000 for c in cells] if is_time else cells
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]


@given(
    st.lists(frame_plans(), min_size=1, max_size=8),
    st.data(),
    st.booleans(),
    KEYS,
    st.lists(st.sampled_from(sorted(ALL)), min_size=1, unique=True),
    st.integers(1, 30),
)
def test_any_mix_of_range_prefix_and_columns_equals_the_plain_rows(
    plans, data, with_scheduled, prefix, names, batch_rows
):
    log = log_of(plans)
    start = data.draw(st.integers(0, log.end))
    end = data.draw(st.integers(start, log.end))
    pieces = planned([Range(PARTITION, start, end)], partitions_min=data.draw(st.integers(1, 5)))

    found: list[Any] = []
    for piece in pieces:
        found += read(
            log.frames, names, piece, with_scheduled=with_scheduled, key_prefix=prefix,
            batch_rows=batch_rows,
        )  # fmt: skip

    rows = [
        {**row, "value_bytes": None if row["value"] is None else len(row["value"])}
        for row in log.rows
        if start <= row["offset"] < end
        and (with_scheduled or row["kind"] != "scheduled")
        and (prefix is None or (row["key"] is not None and row["key"].startswith(prefix)))
    ]
    assert found == [{name: row[name] for name in names} for row in rows]


def dense(span: int, compression: str = "none") -> FramePlan:
    return FramePlan(FrameType.DATA, span, frozenset(), compression, [None] * span)


def test_small_frames_are_put_together_and_large_ones_are_cut():
    log = log_of([dense(10), dense(10), dense(10), dense(45)])
    schema = pa.schema([("offset", pa.int64())])
    rows = FrameRows(
        schema, Range(0, 0, log.end), with_scheduled=False, key_prefix=None, batch_rows=20
    )

    sizes = [batch.num_rows for batch in rows.batches([memoryview(b"".join(log.frames))])]

    assert sizes == [20, 10, 20, 20, 5]


@pytest.mark.parametrize("at", [20, 90, -1])
def test_one_flipped_bit_is_noticed(at):
    frames = bytearray(log_of([dense(10)]).frames[0])
    frames[at] ^= 4

    with pytest.raises(FrameDamaged):
        read([bytes(frames)], ["offset"], Range(0, 0, 10))


def test_a_reply_that_ends_within_a_frame_is_noticed():
    frames = log_of([dense(10)]).frames[0]

    with pytest.raises(FrameDamaged):
        read([frames[:-8]], ["offset"], Range(0, 0, 10))
