"""Which offsets a read covers, and how they are shared out: pure, before anything is read.

A Spark partition is a range of offsets of one partition. Ranges are half-open, do not overlap, and
together are exactly what was asked for; so any plan of the same read gives the same rows.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from waterclock.model.errors import OffsetOutOfRange
from waterclock.spark.options import BadOption, OffsetBound, OffsetBounds

TASK_ROWS_MIN = 32_768
"""Offsets that are not worth a task of their own: it costs some 50 ms, they take 10."""


class Extent(NamedTuple):
    """What a partition has: offsets [start, end)."""

    start: int
    end: int
    retained: int = 0
    """Retention took what was below. The log may begin earlier, with the ids it remembers, and with
    whatever else is left: a read from the earliest offset gets that."""

    def has_lost(self, offset: int) -> bool:
        """Say if a reader at `offset` can no longer get all that followed it."""
        return offset < self.start or self.start < offset < self.retained


class Range(NamedTuple):
    """Offsets [start, end) of a partition, for one task."""

    partition: int
    start: int
    end: int

    @property
    def size(self) -> int:
        """How many offsets."""
        return self.end - self.start


def chosen(extents: Mapping[int, Extent], partitions: frozenset[int] | None) -> dict[int, Extent]:
    """Return the extents of the partitions asked for, in order; raise BadOption if one is not."""
    absent = sorted((partitions or frozenset()) - set(extents))
    if absent:
        raise BadOption(
            "partitions", f"there is no partition {absent[0]}: the topic has {len(extents)}"
        )
    return {
        partition: extents[partition]
        for partition in sorted(extents)
        if partitions is None or partition in partitions
    }


def resolved(
    places: OffsetBounds, extents: Mapping[int, Extent], option: str, *, is_strict: bool
) -> dict[int, int]:
    """Return an offset for each partition.

    One outside the log raises OffsetOutOfRange if `is_strict`; otherwise it becomes the nearest
    that is inside.
    """
    unknown = sorted(set(places.named) - set(extents))
    if unknown:
        raise BadOption(option, f"names partition {unknown[0]}, which is not read: leave it out")
    found = {}
    for partition, extent in extents.items():
        offset = _offset(places.named.get(partition, places.elsewhere), extent)
        if is_strict and (extent.has_lost(offset) or offset > extent.end):
            raise out_of_range(partition, offset, extent)
        found[partition] = min(max(offset, extent.start), extent.end)
    return found


def _offset(place: OffsetBound, extent: Extent) -> int:
    if place == "earliest":
        return extent.start
    return extent.end if place == "latest" else place


def out_of_range(partition: int, offset: int, extent: Extent) -> OffsetOutOfRange:
    """Return the error of a place that the log does not have; it says what to do."""
    error = OffsetOutOfRange(offset, start=extent.start, end=extent.end)
    kept = max(extent.start, extent.retained)
    if offset < kept:
        error.args = (
            f"offset {offset} of partition {partition} is gone: retention took what was below "
            f"{kept}. Begin there or at 'earliest', or set failOnDataLoss=false to go on behind "
            f"the gap",
        )
    else:
        error.args = (
            f"offset {offset} of partition {partition} is beyond the log's end {extent.end}: ask "
            f"for less, or, if the topic was made anew, begin again (a stream: a new checkpoint), "
            f"or set failOnDataLoss=false",
        )
    return error


def planned(
    bounds: Iterable[Range], *, partitions_min: int = 1, rows_max: int = 1 << 62
) -> list[Range]:
    """Cut ranges into pieces of about the same size: none above `rows_max`, and, where there are
    offsets enough, no fewer than `partitions_min`. Empty ranges are left out."""
    whole = [each for each in bounds if each.size > 0]
    total = sum(each.size for each in whole)
    if not total:
        return []
    # Rounded down: pieces that are a little smaller make a few more of them, never fewer.
    piece = max(1, min(rows_max, total // partitions_min))
    return [cut for each in whole for cut in _cut(each, -(-each.size // piece))]


def grouped(pieces: Iterable[Range], *, tasks_min: int = 1) -> list[tuple[Range, ...]]:
    """Put small neighbours into one task, which costs more than reading their rows; but leave,
    where there are pieces enough, no fewer tasks than `tasks_min`."""
    tasks: list[tuple[Range, ...]] = []
    rows = 0
    pieces = list(pieces)
    for index, piece in enumerate(pieces):
        could_be = len(tasks) + len(pieces) - index - 1
        if tasks and rows + piece.size <= TASK_ROWS_MIN and could_be >= tasks_min:
            tasks[-1] += (piece,)
            rows += piece.size
        else:
            tasks.append((piece,))
            rows = piece.size
    return tasks


def _cut(whole: Range, pieces: int) -> Iterable[Range]:
    """Yield so many pieces, their sizes as equal as can be."""
    for index in range(pieces):
        yield Range(
            whole.partition,
            whole.start + whole.size * index // pieces,
            whole.start + whole.size * (index + 1) // pieces,
        )
