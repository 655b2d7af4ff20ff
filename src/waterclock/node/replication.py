"""What a node asks of whatever replicates its partitions. A single node has none.

The node names the partitions it found in the records of `__meta`; the replicator opens those that
this node is to have a copy of, has them led or followed, and closes those it has no more. Whatever
it does to a host it says by `PartitionHost.on_role`.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from waterclock.model.views import TopicSettings
from waterclock.node.partition.host import PartitionHost
from waterclock.node.places import Places

META = "__meta"
"""The log with the records of all nodes; it bears the name of a topic, and is none."""


class Replication(Protocol):
    """The replicator of a node, as far as the node knows it."""

    @property
    def places(self) -> Places:
        """Who leads what."""
        ...

    async def call(self, node: str, method: str, request: bytes) -> bytes:
        """Return another node's answer.

        Raises what it raised; Unreachable if it was not asked; another Unavailable if nobody knows
        whether it did what it was asked.
        """
        ...

    async def meta_log_id(self) -> bytes:
        """Return the identity of the log of the records, once the cluster has one.

        A node that forms a cluster and has such a log brings it in.
        """
        ...

    def may_write(self, level: int) -> bool:
        """Whether all nodes understand what came with a release level: ask before a frame or a
        record of such a kind is written."""
        ...

    async def open_meta(self, host: PartitionHost) -> None:
        """Have the records of all nodes followed, or led, from now on."""
        ...

    async def joined(self) -> None:
        """Return once this node shows the records that were committed when it came."""
        ...

    def attach(self, host: PartitionHost, log_id: bytes, *, factor: int | None = None) -> None:
        """Drive a partition from now on, its timers too, wherever its copies come to be.

        It is to have `factor` of them; None: as many as is configured.
        """
        ...

    def set_factor(self, host: PartitionHost, factor: int | None) -> None:
        """Have another number of copies of a partition from now on."""
        ...

    async def detach(self, host: PartitionHost) -> None:
        """Close a partition whose topic was deleted; nothing touches its files then."""
        ...

    def forget_others(self, knows_all_topics: Callable[[], bool]) -> None:
        """Forget the places of partitions that are not attached, whenever this tells that all
        topics there are have been: asked on the leader of `__meta` only."""
        ...

    async def led(self, log_ids: Sequence[bytes]) -> None:
        """Return once each of these logs has a leader."""
        ...

    async def create_topic(self, name: str, settings: TopicSettings) -> None:
        """Have the leader of `__meta` make a topic, unless there is one of that name."""
        ...

    async def add_partitions(self, name: str, partitions: int) -> None:
        """Have the leader of `__meta` give a topic so many partitions."""
        ...

    async def ensure_own_topic(self, name: str, settings: TopicSettings) -> None:
        """Have the leader of `__meta` make a topic of the nodes' own, or give it these settings."""
        ...

    async def stop(self) -> None:
        """Drive nothing any more; on return nothing touches the logs but the node."""
        ...
