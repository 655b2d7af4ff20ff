"""What a compaction has to do, decided from facts: pure, so that it can be tested without Spark.

Two decisions. Before the shuffle: from where to read, the last snapshot or the log's beginning.
After it, when it is known how many messages live in each chunk of 65,536 offsets: which files of
the last snapshot lost nothing and can be linked, and how the rest is cut into slices, one task and
one file each. Files never share a chunk, so counts by chunk are all that is needed: a partition of
a billion messages is planned from fifteen thousand numbers.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from waterclock.log.snapshot import CHUNK_BITS, Manifest, SnapshotFile
from waterclock.model.units import DAY_MS, HOUR_MS

SLICE_ROWS_MAX = 1 << 20
"""Most rows of a file, unless one chunk has more: what a task holds, and a failure repeats."""
SLICE_ROWS_MIN = 1 << 16
"""Fewer rows are not worth a task."""
LINK_ROWS_MIN = 1 << 18
"""Smaller files are written again and so grow together: or each run would leave one more."""
INCREMENT_MS_MAX = DAY_MS - HOUR_MS
"""A snapshot older than this is not gone on from, on a compacted topic: the node may have let go
tombstones (after a day) that no compaction has seen, and what they deleted would come back."""


class PartitionRange(NamedTuple):
    """What is read of one partition."""

    partition: int
    start_offset: int
    """Nothing below it is deliverable any more: such rows of the last snapshot go."""
    from_offset: int
    """The log is read from here on; below it, the last snapshot."""
    end_offset: int


@dataclass(frozen=True, slots=True)
class Ranges:
    """What a compaction reads, and why."""

    partitions: tuple[PartitionRange, ...]
    is_incremental: bool
    why: str
    """In words for people."""

    @property
    def offsets(self) -> int:
        """Offsets of the log to be read."""
        return sum(each.end_offset - each.from_offset for each in self.partitions)


def plan_ranges(
    bounds: Mapping[int, tuple[int, int]],
    last: Manifest | None,
    *,
    is_compacted: bool,
    now_ms: int,
) -> Ranges:
    """Return what to read, given (first deliverable, end) offsets of each partition."""
    why = "there is no snapshot to go on from" if last is None else ""
    ends = {} if last is None else last.ends
    if last is not None and is_compacted and now_ms - last.created_ms > INCREMENT_MS_MAX:
        hours = INCREMENT_MS_MAX // HOUR_MS
        why = f"snapshot {last.snapshot} is older than {hours} h: tombstones may have gone since"
    if any(
        partition not in bounds or end > bounds[partition][1] for partition, end in ends.items()
    ):
        why = "the last snapshot is ahead of the log"
    if why:
        ends = {}
    ranges = (
        PartitionRange(partition, start, max(start, ends.get(partition, 0)), end)
        for partition, (start, end) in sorted(bounds.items())
    )
    reason = why or (f"goes on from snapshot {last.snapshot}" if last else "")
    return Ranges(tuple(ranges), is_incremental=not why, why=reason)


def is_up_to_date(ranges: Ranges, last: Manifest | None) -> bool:
    """Tell whether a new snapshot would be the same as the last one."""
    if last is None or not ranges.is_incremental:
        return False
    known = {each.partition: each for each in last.partitions}
    for each in ranges.partitions:
        before = known.get(each.partition)
        if before is None or before.end_offset != each.end_offset:
            return False
        if before.files and before.files[0].first_offset < each.start_offset:
            return False
    return True


class ChunkCount(NamedTuple):
    """Messages that live in one chunk, those of the last snapshot and new ones apart."""

    partition: int
    chunk: int
    is_new: bool
    rows: int


class Slice(NamedTuple):
    """Chunks that one task writes into one file."""

    number: int
    partition: int
    chunks: tuple[int, ...]
    """Only those in which something lives."""
    rows: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The files of the new snapshot: linked ones, and slices to be written."""

    links: tuple[tuple[int, SnapshotFile], ...]
    """(partition, file of the last snapshot)."""
    slices: tuple[Slice, ...]


def plan_layout(
    counts: Iterable[ChunkCount],
    last: Manifest | None,
    *,
    cores: int,
    link_rows_min: int = LINK_ROWS_MIN,
) -> Layout:
    """Return how what lives is laid out in files."""
    live_rows: dict[int, dict[int, tuple[int, int]]] = {}
    for partition, chunk, is_new, rows in counts:
        chunks = live_rows.setdefault(partition, {})
        old_rows, new_rows = chunks.get(chunk, (0, 0))
        chunks[chunk] = (old_rows, new_rows + rows) if is_new else (old_rows + rows, new_rows)
    links: list[tuple[int, SnapshotFile]] = []
    for each in () if last is None else last.partitions:
        chunks = live_rows.get(each.partition, {})
        links += [
            (each.partition, file)
            for file in each.files
            if file.rows >= link_rows_min and _lost_nothing(file, chunks)
        ]
    linked = {(partition, chunk) for partition, file in links for chunk in file.chunks}
    rest = {
        partition: {
            chunk: sum(rows) for chunk, rows in chunks.items() if (partition, chunk) not in linked
        }
        for partition, chunks in live_rows.items()
    }
    total = sum(sum(chunks.values()) for chunks in rest.values())
    rows_max = min(SLICE_ROWS_MAX, max(SLICE_ROWS_MIN, -(-total // (2 * cores))))
    slices: list[Slice] = []
    for partition, left in sorted(rest.items()):
        walls = sorted(file.first_offset for of, file in links if of == partition)
        for run in _runs(left, [wall >> CHUNK_BITS for wall in walls], rows_max):
            rows = sum(left[chunk] for chunk in run)
            slices.append(Slice(len(slices), partition, tuple(run), rows))
    return Layout(tuple(links), tuple(slices))


def _lost_nothing(file: SnapshotFile, chunks: Mapping[int, tuple[int, int]]) -> bool:
    """Tell whether all rows of a file live, and nothing new lives among them."""
    found = [chunks.get(chunk, (0, 0)) for chunk in file.chunks]
    return sum(old for old, _ in found) == file.rows and not any(new for _, new in found)


def _runs(chunks: Mapping[int, int], walls: Sequence[int], rows_max: int) -> Iterable[list[int]]:
    """Yield chunks in order, cut where enough rows are together and where a linked file stands."""
    run: list[int] = []
    rows = 0
    ahead = iter([*walls, 1 << 62])
    wall = next(ahead)
    for chunk in sorted(chunks):
        passed = chunk > wall
        while chunk > wall:
            wall = next(ahead)
        if run and (passed or rows + chunks[chunk] > rows_max):
            yield run
            run, rows = [], 0
        run.append(chunk)
        rows += chunks[chunk]
    if run:
        yield run
