"""Where a group begins in a log, or goes on when somebody moves it."""

from enum import IntEnum

from waterclock.model.errors import BadInput, OffsetOutOfRange
from waterclock.node.groups.partition import GroupPartition


class Start(IntEnum):
    """Where a new group begins. The numbers are those of the API."""

    EARLIEST = 0
    LATEST = 1
    TIME = 2


def position_of(place: GroupPartition, start: Start, start_ms: int) -> int:
    """Return where a group begins in a partition."""
    if not place.is_readable:
        return 0
    store = place.log.store
    match start:
        case Start.EARLIEST:
            return store.start
        case Start.LATEST:
            return store.acknowledged_end
        case Start.TIME:
            return store.offset_at(start_ms)


def targets_of(
    places: list[GroupPartition], start: Start, start_ms: int, positions: dict[int, int] | None
) -> list[tuple[GroupPartition, int]]:
    """Return where a group is to go on: everywhere by `start`, or in some partitions by offset."""
    if not positions:
        readable = [place for place in places if place.is_readable]
        return [(place, position_of(place, start, start_ms)) for place in readable]
    targets = []
    for number, offset in positions.items():
        if not 0 <= number < len(places):
            raise BadInput(f"partition {number}: the topic has {len(places)}")
        place = places[number]
        low, high = place.log.store.start, place.log.store.acknowledged_end
        if not low <= offset <= high:
            raise OffsetOutOfRange(offset, start=low, end=high)
        targets.append((place, offset))
    return targets
