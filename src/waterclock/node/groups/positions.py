"""Where a group begins in a log, or goes on after a seek."""

from enum import IntEnum

from waterclock.model.errors import BadInput, OffsetOutOfRange
from waterclock.node.groups.partition import GroupPartition

POSITIONS_MAX = 100_000
"""Positions that one request may name."""


class Start(IntEnum):
    """Where a new group begins. The numbers are those of the API."""

    EARLIEST = 0
    LATEST = 1
    TIME = 2


def position_of(partition: GroupPartition, start: Start, start_ms: int) -> int:
    """Return where a group begins in a partition."""
    if not partition.is_readable:
        return 0
    store = partition.log.store
    match start:
        case Start.EARLIEST:
            return store.start
        case Start.LATEST:
            return store.acknowledged_end
        case Start.TIME:
            return store.offset_at(start_ms)


def targets_of(
    partitions: list[GroupPartition], start: Start, start_ms: int, positions: dict[int, int] | None
) -> list[tuple[GroupPartition, int]]:
    """Return where a group is to go on: everywhere by `start`, or in some partitions by offset."""
    if not positions:
        readable = [partition for partition in partitions if partition.is_readable]
        return [(partition, position_of(partition, start, start_ms)) for partition in readable]
    targets = []
    for number, offset in positions.items():
        if not 0 <= number < len(partitions):
            raise BadInput(f"partition {number}: the topic has {len(partitions)}")
        partition = partitions[number]
        low, high = partition.log.store.start, partition.log.store.acknowledged_end
        if not low <= offset <= high:
            raise OffsetOutOfRange(offset, start=low, end=high)
        targets.append((partition, offset))
    return targets
