"""What a compaction decides before and after the shuffle: ranges, links and slices."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from waterclock.log.snapshot import CHUNK_BITS, Manifest, SnapshotFile, SnapshotPartition
from waterclock.model.units import DAY_MS
from waterclock.spark.jobs.compact.plan import (
    ChunkCount,
    PartitionRange,
    Slice,
    is_up_to_date,
    plan_layout,
    plan_ranges,
)

CHUNK = 1 << CHUNK_BITS


def file(first: int, last: int, rows: int) -> SnapshotFile:
    return SnapshotFile(f"partition=0/{first}.parquet", rows, 100, first, last)


def snapshot(*files: SnapshotFile, end: int = 10 * CHUNK, created_ms: int = 1_000) -> Manifest:
    return Manifest("t", "s", created_ms, (SnapshotPartition(0, 0, end, files),))


def test_without_a_snapshot_the_log_is_read_from_its_beginning():
    ranges = plan_ranges({0: (7, 50), 1: (0, 0)}, None, is_compacted=False, now_ms=0)

    assert ranges.partitions == (PartitionRange(0, 7, 7, 50), PartitionRange(1, 0, 0, 0))
    assert not ranges.is_incremental
    assert ranges.offsets == 43


def test_after_a_snapshot_only_what_came_since_is_read():
    ranges = plan_ranges({0: (7, 50), 1: (0, 9)}, snapshot(end=40), is_compacted=True, now_ms=2_000)

    assert ranges.is_incremental
    assert ranges.partitions == (PartitionRange(0, 7, 40, 50), PartitionRange(1, 0, 0, 9))


def test_what_retention_took_since_the_snapshot_is_not_read():
    ranges = plan_ranges({0: (45, 50)}, snapshot(end=40), is_compacted=False, now_ms=2_000)

    assert ranges.partitions == (PartitionRange(0, 45, 45, 50),)


def test_a_compacted_topic_is_read_anew_once_tombstones_may_have_gone():
    def is_incremental(now_ms: int, *, is_compacted: bool) -> bool:
        last = snapshot(end=40, created_ms=1_000)
        ranges = plan_ranges({0: (0, 50)}, last, is_compacted=is_compacted, now_ms=now_ms)
        return ranges.is_incremental

    assert is_incremental(1_000 + DAY_MS // 2, is_compacted=True)
    assert not is_incremental(1_000 + DAY_MS, is_compacted=True)
    assert is_incremental(1_000 + DAY_MS, is_compacted=False)


def test_a_snapshot_ahead_of_the_log_is_not_gone_on_from():
    ranges = plan_ranges({0: (0, 30)}, snapshot(end=40), is_compacted=False, now_ms=2_000)

    assert not ranges.is_incremental
    assert "ahead" in ranges.why


def test_nothing_new_means_the_same_ends_and_nothing_gone():
    last = snapshot(file(5, 9, 2), end=40)

    def is_same(start: int, end: int, *, more: bool = False) -> bool:
        bounds = {0: (start, end)} | ({1: (0, 0)} if more else {})
        ranges = plan_ranges(bounds, last, is_compacted=False, now_ms=2_000)
        return is_up_to_date(ranges, last)

    assert is_same(0, 40)
    assert is_same(5, 40)
    assert not is_same(6, 40)
    assert not is_same(0, 41)
    assert not is_same(0, 40, more=True)
    assert not is_up_to_date(plan_ranges({0: (0, 0)}, None, is_compacted=False, now_ms=0), None)


def test_a_file_that_lost_nothing_is_linked():
    last = snapshot(file(3, CHUNK + 7, 100), file(4 * CHUNK, 5 * CHUNK - 1, 60))
    counts = [
        ChunkCount(0, 0, False, 40),
        ChunkCount(0, 1, False, 60),
        ChunkCount(0, 4, False, 59),
        ChunkCount(0, 6, True, 10),
    ]

    layout = plan_layout(counts, last, cores=2, link_rows_min=1)

    assert layout.links == ((0, last.partitions[0].files[0]),)
    assert layout.slices == (Slice(0, 0, (4, 6), 69),)


def test_a_row_that_went_is_not_made_up_for_by_one_that_came():
    last = snapshot(file(0, 9, 10), end=10)
    counts = [ChunkCount(0, 0, False, 9), ChunkCount(0, 0, True, 1)]

    assert plan_layout(counts, last, cores=1, link_rows_min=1).links == ()


def test_a_file_is_written_again_if_something_new_lives_in_its_last_chunk():
    last = snapshot(file(0, 9, 10), end=10)
    counts = [ChunkCount(0, 0, False, 10), ChunkCount(0, 0, True, 1)]

    layout = plan_layout(counts, last, cores=1, link_rows_min=1)

    assert layout.links == ()
    assert layout.slices == (Slice(0, 0, (0,), 11),)


def test_small_files_grow_together():
    last = snapshot(file(0, 9, 10))

    layout = plan_layout([ChunkCount(0, 0, False, 10)], last, cores=1, link_rows_min=11)

    assert layout.links == ()
    assert layout.slices == (Slice(0, 0, (0,), 10),)


def test_no_slice_reaches_past_a_linked_file():
    last = snapshot(file(2 * CHUNK, 3 * CHUNK - 1, 5))
    counts = [ChunkCount(0, 1, False, 1), ChunkCount(0, 2, False, 5), ChunkCount(0, 3, True, 1)]

    layout = plan_layout(counts, last, cores=1, link_rows_min=1)

    assert [each.chunks for each in layout.slices] == [(1,), (3,)]


chunk_counts = st.dictionaries(
    st.tuples(st.integers(0, 2), st.integers(0, 40)), st.integers(1, CHUNK), max_size=40
)


@given(chunk_counts, st.integers(1, 8), st.data())
def test_every_chunk_is_written_or_linked_once_and_files_stay_in_order(counts, cores, data):
    old: dict[int, list[SnapshotFile]] = {}
    for partition in range(3):
        cuts = sorted(data.draw(st.sets(st.integers(0, 40), max_size=6)))
        for first, end in pairwise(cuts):
            rows = sum(counts.get((partition, chunk), 0) for chunk in range(first, end))
            if rows:
                made = SnapshotFile("x", rows, 1, first * CHUNK, end * CHUNK - 1)
                old.setdefault(partition, []).append(made)
    partitions = [SnapshotPartition(p, 0, 99 * CHUNK, tuple(files)) for p, files in old.items()]
    last = Manifest("t", "s", 0, tuple(partitions))
    said = [
        ChunkCount(partition, chunk, data.draw(st.booleans()), rows)
        for (partition, chunk), rows in counts.items()
    ]

    layout = plan_layout(said, last, cores=cores, link_rows_min=1)

    spans = [(partition, file.chunks.start, file.chunks.stop) for partition, file in layout.links]
    spans += [(each.partition, each.chunks[0], each.chunks[-1] + 1) for each in layout.slices]
    ordered = sorted(spans)
    for (partition, _, end), (next_partition, start, _) in pairwise(ordered):
        assert partition != next_partition or end <= start
    written = {(each.partition, chunk) for each in layout.slices for chunk in each.chunks}
    linked = {(p, chunk) for p, file in layout.links for chunk in file.chunks}
    assert written | linked >= set(counts)
    assert not written & linked
    assert [each.number for each in layout.slices] == list(range(len(layout.slices)))
    rows = sum(each.rows for each in layout.slices) + sum(file.rows for _, file in layout.links)
    assert rows == sum(counts.values())
