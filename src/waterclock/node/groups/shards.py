"""Where the records of a group are: with all others of a single node, or in a partition of its own.

Nodes of a cluster keep them in the topic `__groups`. The partition is that of the group's name, and
the node that leads it is the group's home: it alone serves the members, whatever topic they read.
All replicas follow the records, so a new home begins with what was committed by the old one. It
needs no fence besides: what the old home writes is not committed any more.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

from waterclock.log.partitioner import partition_of_key
from waterclock.model.clock import Clock
from waterclock.model.errors import NotLeader
from waterclock.model.views import TopicSettings
from waterclock.node.metadata import Metadata
from waterclock.node.partition.host import PartitionHost
from waterclock.node.topics import Topic, Topics

GROUPS_TOPIC = "__groups"
SHARDS = 16
"""Cannot change once there are groups: their names say where they are."""
SETTINGS = TopicSettings(partitions=SHARDS, is_compacted=True)


def shard_of(group: str) -> int:
    """Return the partition of `__groups` that has the records of a group."""
    return partition_of_key(group.encode(), SHARDS)


class Shards(Protocol):
    """Says where the records of groups are."""

    def metadata_of(self, group: str) -> Metadata:
        """Return the records of a group; raises NotLeader if another node is its home."""
        ...


class OwnShard:
    """The records of a node that is home to all groups."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    def metadata_of(self, group: str) -> Metadata:
        return self._metadata


class GroupShards:
    """The partitions of `__groups`, as this node has them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._shards: dict[int, tuple[PartitionHost, Metadata]] = {}

    def __repr__(self) -> str:
        return f"<GroupShards home to {self.led()}>"

    def follow(self, topics: Topics, on_leading: Callable[[int, Metadata, bool], None]) -> None:
        """Follow every shard from now on, and tell when this node has become home, or is no more.

        The last argument says which.
        """

        def opened(topic: Topic, host: PartitionHost) -> None:
            if topic.name == GROUPS_TOPIC:
                self._add(host, on_leading)

        topics.on_opened.append(opened)
        found = topics.find(GROUPS_TOPIC)
        if found is not None:
            for host in found.partitions:
                self._add(host, on_leading)

    def _add(self, host: PartitionHost, on_leading: Callable[[int, Metadata, bool], None]) -> None:
        number = host.partition
        shard = Metadata(host, self._clock, name=f"{GROUPS_TOPIC}/{number}")
        self._shards[number] = host, shard
        shard.on_leading.append(partial(on_leading, number, shard))
        host.on_role.append(lambda host: shard.role_changed())
        if shard.is_leading:
            on_leading(number, shard, True)

    def metadata_of(self, group: str) -> Metadata:
        host, shard = self._shards.get(shard_of(group), (None, None))
        if shard is None or not shard.is_leading:
            leader = "" if host is None or host.role == "leader" else host.leader
            raise NotLeader(f"the group {group!r}", leader=leader)
        return shard

    def led(self) -> list[Metadata]:
        """Return the records of all groups whose home this node is."""
        return [shard for _, shard in self._shards.values() if shard.is_leading]

    def followed(self) -> list[Metadata] | None:
        """Return the records of all groups, as far as they are known here; None: some are not."""
        known = self._shards.values()
        shards = [shard for host, shard in known if host.is_open and shard.is_current]
        return shards if len(shards) == SHARDS else None
