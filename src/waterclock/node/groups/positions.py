"""Where a group begins in a log, or goes on after a seek."""

from enum import IntEnum

from waterclock.model.errors import BadInput, OffsetOutOfRange
from waterclock.node.groups.partition import GroupPartition
from waterclock.node.partition.remote_log import current_log

POSITIONS_MAX = 100_000
"""Positions that one request may name."""


class Start(IntEnum):
    """Where a new group begins. The numbers are those of the API."""

    EARLIEST = 0
    LATEST = 1
    TIME = 2


async def position_of(partition: GroupPartition, start: Start, start_ms: int) -> int:
    """Return where a group begins in a partition."""
    if not partition.is_readable:
        return 0
    log = await current_log(partition.host)
    if start is Start.TIME:
        return await log.offset_at(start_ms)
    return log.start if start is Start.EARLIEST else log.end


async def targets_of(
    partitions: list[GroupPartition], start: Start, start_ms: int, positions: dict[int, int] | None
) -> list[tuple[GroupPartition, int]]:
    """Return where a group is to go on: everywhere by `start`, or in some partitions by offset."""
    if not positions:
        readable = [partition for partition in partitions if partition.is_readable]
        return [(each, await position_of(each, start, start_ms)) for each in readable]
    targets = []
    for number, offset in positions.items():
        if not 0 <= number < len(partitions):
            raise BadInput(f"partition {number}: the topic has {len(partitions)}")
        partition = partitions[number]
        log = await current_log(partition.host)
        low, high = log.start, log.end
        if not low <= offset <= high:
            raise OffsetOutOfRange(offset, start=low, end=high)
        targets.append((partition, offset))
    return targets
