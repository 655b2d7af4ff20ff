"""Where a streaming query stands: one offset a partition, and what follows from two of them.

Spark keeps these as JSON and compares the text, so the keys always stand in the same order.
A partition that joined the topic while the query ran is read from its first message.
"""

from collections.abc import Mapping

from waterclock.model.errors import BadInput
from waterclock.spark.read.ranges import Extent, Range, out_of_range


def to_json(offsets: Mapping[int, int]) -> dict[str, int]:
    """Return offsets as Spark keeps them, partitions in order."""
    return {str(partition): offsets[partition] for partition in sorted(offsets)}


def from_json(stored: Mapping[str, object]) -> dict[int, int]:
    """Return offsets that Spark kept; raise BadInput if they are not ours."""
    found = {}
    for partition, offset in stored.items():
        if not partition.isdecimal() or type(offset) is not int or offset < 0:
            raise BadInput(
                f"the checkpoint has {partition!r}: {offset!r} for an offset, which no waterclock "
                f"stream wrote: give this query a checkpoint folder of its own"
            )
        found[int(partition)] = offset
    return found


def reached(start: Mapping[int, int], extents: Mapping[int, Extent]) -> dict[int, int]:
    """Return how far the log goes, for a query that stands at `start`.

    A new partition is left out while it is empty: the same place must read as the same text.
    """
    return {
        partition: extent.end
        for partition, extent in extents.items()
        if partition in start or extent.end > 0
    }


def capped(ends: Mapping[int, int], target: Mapping[int, int]) -> dict[int, int]:
    """Return ends, none beyond the target; partitions that it has not are left out."""
    return {each: min(end, target[each]) for each, end in ends.items() if each in target}


def limited(start: Mapping[int, int], ends: Mapping[int, int], rows_max: int) -> dict[int, int]:
    """Return ends with at most `rows_max` offsets before them, shared out by what each has.

    If there are so many, exactly so many: every micro-batch gets on, and no partition starves.
    """
    waiting = {each: max(end - start.get(each, 0), 0) for each, end in ends.items()}
    total = sum(waiting.values())
    if total <= rows_max:
        return dict(ends)
    shares = {each: rows_max * count // total for each, count in waiting.items()}
    left = rows_max - sum(shares.values())
    # Less than one each was lost to rounding; those who wait with most come first.
    for each in sorted(waiting, key=lambda each: (-waiting[each], each)):
        extra = min(left, 1, waiting[each] - shares[each])
        shares[each] += extra
        left -= extra
    return {
        each: start.get(each, 0) + share
        for each, share in shares.items()
        if each in start or share > 0
    }


def checked(
    offsets: Mapping[int, int], extents: Mapping[int, Extent], *, fail_on_data_loss: bool
) -> None:
    """Raise OffsetOutOfRange if the log has lost what a query at `offsets` has yet to read."""
    if not fail_on_data_loss:
        return
    for partition, offset in offsets.items():
        extent = extents.get(partition, Extent(0, 0))
        if extent.has_lost(offset) or offset > extent.end:
            raise out_of_range(partition, offset, extent)


def between(
    start: Mapping[int, int],
    end: Mapping[int, int],
    extents: Mapping[int, Extent],
    *,
    fail_on_data_loss: bool,
) -> list[Range]:
    """Return what a micro-batch reads; what retention took is an error, or is left out."""
    found = []
    for partition in sorted(end):
        first, last = start.get(partition, 0), end[partition]
        extent = extents.get(partition, Extent(0, 0))
        if first < last:
            if fail_on_data_loss and extent.has_lost(first):
                raise out_of_range(partition, first, extent)
            if fail_on_data_loss and last > extent.end:
                raise out_of_range(partition, last, extent)
        first, last = max(first, extent.start), min(last, extent.end)
        if first < last:
            found.append(Range(partition, first, last))
    return found
