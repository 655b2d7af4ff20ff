"""Which groups `/metrics` shows: those with the most lag, and how much the others have together.

Whoever may consume a topic can make groups, and each would be a label: ten thousand on a topic of a
thousand partitions were twenty million lines. Exporters of Kafka's groups have filters for that,
which somebody has to write; here a number is enough. Gauges of the groups that are not shown are
summed under the name `(other)`, which no group can have. Their counters are left out: a sum of
those would fall whenever a group comes to be shown, and look like a restart.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import nlargest

from waterclock.model.views import GroupPartitionInfo
from waterclock.node.groups.host import GroupHost

OTHER = "(other)"
SLICE_PARTITIONS = 500
"""Looked at in one go: about 3 ms."""


@dataclass(slots=True)
class GroupRanking:
    """The groups and partitions of groups to be shown, and sums over the others."""

    groups: list[GroupHost] = field(default_factory=list)
    partitions: list[tuple[GroupHost, GroupPartitionInfo]] = field(default_factory=list)
    hidden_groups: int = 0
    hidden_partitions: int = 0
    """Those of groups that are shown included: a group may have a thousand."""
    other_members: int = 0
    other_lag: int = 0
    other_unacked: int = 0


async def rank_groups(hosts: Iterable[GroupHost], *, shown_max: int) -> GroupRanking:
    """Return the groups with the most lag, and as many of their partitions; the loop is let go in
    between."""
    groups: list[tuple[GroupHost, int]] = []
    partitions: list[tuple[GroupHost, GroupPartitionInfo]] = []
    ranking = GroupRanking()
    looked_at = 0
    for host in hosts:
        lag = 0
        for partition in tuple(host.partitions):
            info = partition.info()
            lag += info.lag
            partitions.append((host, info))
            ranking.other_lag += info.lag
            ranking.other_unacked += info.unacked
            looked_at += 1
            if looked_at % SLICE_PARTITIONS == 0:
                ranking.hidden_partitions += max(0, len(partitions) - shown_max)
                partitions = nlargest(shown_max, partitions, key=_partition_rank)
                await asyncio.sleep(0)
        groups.append((host, lag))
    shown = nlargest(shown_max, groups, key=_group_rank)
    ranking.groups = [host for host, _ in shown]
    ranking.hidden_groups = len(groups) - len(shown)
    ranking.hidden_partitions += max(0, len(partitions) - shown_max)
    ranking.partitions = nlargest(shown_max, partitions, key=_partition_rank)
    ranking.other_lag -= sum(info.lag for _, info in ranking.partitions)
    ranking.other_unacked -= sum(info.unacked for _, info in ranking.partitions)
    ranking.other_members = sum(len(host.members) for host, _ in groups)
    ranking.other_members -= sum(len(host.members) for host in ranking.groups)
    return ranking


def _group_rank(each: tuple[GroupHost, int]) -> tuple[int, bool]:
    host, lag = each
    return lag, bool(host.members)


def _partition_rank(each: tuple[GroupHost, GroupPartitionInfo]) -> tuple[int, int]:
    _, info = each
    return info.lag, info.unacked
