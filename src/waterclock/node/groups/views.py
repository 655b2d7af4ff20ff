"""Groups as administrators see them: frozen views, made when somebody asks."""

from dataclasses import dataclass

from waterclock.node.counters import GroupCounters
from waterclock.node.groups.host import GroupHost
from waterclock.node.groups.partition import GroupPartition


@dataclass(frozen=True, slots=True)
class GroupPartitionView:
    """A group in one partition."""

    partition: int
    member: str
    """The owner; empty if nobody owns it."""
    committed: int
    end_offset: int
    lag: int
    """Offsets not done, those with nothing to deliver included."""
    unacked: int
    waiting: int
    """Messages that wait for a retry or for the dead letter topic."""
    missed: int
    """Messages that retention took before they were done."""


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group on one topic."""

    topic: str
    group: str
    generation: int
    members: tuple[str, ...]
    partitions: tuple[GroupPartitionView, ...]
    counters: GroupCounters


def view_of(host: GroupHost) -> GroupView:
    """Return a group as it is now."""
    return GroupView(
        host.topic,
        host.name,
        host.generation,
        host.members,
        tuple(map(_partition, host.partitions)),
        host.counters,
    )


def _partition(partition: GroupPartition) -> GroupPartitionView:
    cursor, end = partition.cursor, partition.end
    member = "" if partition.session is None else partition.session.member
    return GroupPartitionView(
        partition.number,
        member,
        cursor.committed,
        end,
        cursor.lag(end),
        cursor.unacked,
        cursor.waiting,
        partition.missed,
    )
