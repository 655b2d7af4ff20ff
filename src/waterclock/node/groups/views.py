"""Groups as administrators see them: frozen views, made on request."""

from waterclock.model.views import GroupInfo, GroupPartitionInfo
from waterclock.node.groups.host import GroupHost
from waterclock.node.groups.partition import GroupPartition


def view_of(host: GroupHost) -> GroupInfo:
    """Return a group as it is now."""
    partitions = tuple(map(_partition, host.partitions))
    return GroupInfo(host.topic, host.name, host.generation, host.members, partitions)


def _partition(partition: GroupPartition) -> GroupPartitionInfo:
    cursor, end = partition.cursor, partition.end
    member = "" if partition.session is None else partition.session.member
    return GroupPartitionInfo(
        partition.number,
        member,
        cursor.committed,
        end,
        cursor.lag(end),
        cursor.unacked,
        cursor.waiting,
        partition.missed,
    )
