"""What people want of nodes and partitions: drained, replaced, moved.

What they want is a record in the coordinator, so it outlives every node. Any node writes it, and
the leaders of partitions do it, a step at a time (`placing`). What cannot be is refused here.
"""

import asyncio
import logging
from contextlib import suppress
from typing import Final

from waterclock.cluster.coordinator.errors import CoordinatorRefused, RevisionWentBack
from waterclock.cluster.coordinator.records import (
    DrainRecord,
    MoveRecord,
    PartitionRecord,
    encode_record,
)
from waterclock.cluster.coordinator.requests import Delete, Operation, Put, Txn, one_key
from waterclock.cluster.replication.cluster_view import node_of
from waterclock.cluster.replication.placement import remaining, staying
from waterclock.model.cluster_views import DrainView, MoveView, PlacementView
from waterclock.model.errors import BadInput, Busy, NotFound, Unavailable, UnknownTopic
from waterclock.server.cluster.replication.replicator import Replicator

SEEN_S: Final = 1.0
"""How long a change may take until the node that made it sees it."""

_log = logging.getLogger(__name__)


class Orders:
    """Takes what people want. All raise Unavailable while the coordinator is away."""

    def __init__(self, replicator: Replicator) -> None:
        self._replicator = replicator
        self._view = replicator.session.view
        self._keys = replicator.session.keys

    def __repr__(self) -> str:
        return f"<Orders {len(self._view.drains)} drains, {len(self._view.moves)} moves>"

    def placement(self) -> PlacementView:
        """Return what is wanted and not done, and every node that is drained."""
        names = {each.log_id: each.host for each in self._replicator.hosted}
        moves = [
            MoveView(
                topic=names[log_id].topic,
                partition=names[log_id].partition,
                target=move.record.target,
                source=move.record.source,
                is_leader_only=move.record.is_leader_only,
            )
            for log_id, move in self._view.moves.items()
            if log_id in names
        ]
        moves.sort(key=lambda each: (each.topic, each.partition))
        return PlacementView(tuple(map(self._drain, sorted(self._view.drains))), tuple(moves))

    def _drain(self, name: str) -> DrainView:
        record = self._view.drains[name].record
        left = remaining(self._view, name)
        return DrainView(
            node=name,
            since_ms=record.since_ms,
            target=record.target,
            is_alive=name in self._view.nodes,
            leaders=left.leaders,
            replicas=left.replicas,
            stuck=left.stuck,
        )

    async def drain(self, node: str) -> PlacementView:
        """Have a node lead and keep nothing, so that it can be taken away."""
        self._check_known(node)
        if not staying(self._view.nodes, (*self._view.drains, node)):
            raise Busy(f"node: {node!r} is the last that stays: there is none to take its replicas")
        record = DrainRecord(since_ms=self._replicator.wall_ms())
        return await self._put(self._keys.drain(node), record)

    async def undrain(self, node: str) -> PlacementView:
        """Let a node have replicas again; also one that is being replaced."""
        if node not in self._view.drains:
            self._check_known(node)
        return await self._write(Delete(one_key(self._keys.drain(node))))

    async def replace(self, node: str, target: str) -> PlacementView:
        """Have the replicas of a node that will not come back made anew on another, at once."""
        self._check_known(node)
        if node in self._view.nodes:
            raise Busy(f"node: {node!r} is there: stop it, or drain it")
        self._check_target(target)
        record = DrainRecord(since_ms=self._replicator.wall_ms(), target=target)
        return await self._put(self._keys.drain(node), record)

    async def move(
        self,
        topic: str,
        partition: int,
        *,
        target: str,
        source: str = "",
        is_leader_only: bool = False,
    ) -> PlacementView:
        """Have a node get a replica of a partition, in the place of another one, or lead it."""
        log_id = self._log_of(topic, partition)
        placed = self._view.partitions.get(log_id)
        if placed is None:
            raise Unavailable(f"{topic}/{partition} has no replicas yet: try again")
        self._check_target(target)
        _check_move(placed.record, target=target, source=source, is_leader_only=is_leader_only)
        record = MoveRecord(target=target, source=source, is_leader_only=is_leader_only)
        return await self._put(self._keys.move(log_id), record)

    async def undo_move(self, topic: str, partition: int) -> PlacementView:
        """Move a partition no further; a replica that votes by now stays."""
        key = self._keys.move(self._log_of(topic, partition))
        return await self._write(Delete(one_key(key)))

    # Checks

    def _check_known(self, node: str) -> None:
        if node not in self._view.nodes and node not in map(node_of, self._view.replicas()):
            raise NotFound("node", node)

    def _check_target(self, target: str) -> None:
        found = self._view.nodes.get(target)
        if found is None:
            raise NotFound("node", target)
        if found.is_leaving or target in self._view.drains:
            raise Busy(f"target: {target!r} is to have nothing: it stops, or is drained")

    def _log_of(self, topic: str, partition: int) -> bytes:
        hosted = {(each.host.topic, each.host.partition): each for each in self._replicator.hosted}
        found = hosted.get((topic, partition))
        if found is not None:
            return found.log_id
        if (topic, 0) not in hosted:
            raise UnknownTopic(topic)
        raise NotFound("partition", f"{topic}/{partition}")

    # Records

    async def _put(self, key: bytes, record: DrainRecord | MoveRecord) -> PlacementView:
        return await self._write(Put(key, encode_record(record)))

    async def _write(self, operation: Operation) -> PlacementView:
        session = self._replicator.session
        try:
            result = await session.coordinator.write(Txn(success=(operation,)))
        except (CoordinatorRefused, RevisionWentBack) as error:
            raise Unavailable(str(error)) from error
        _log.info("placement_ordered %r", operation)
        with suppress(TimeoutError):  # the watch is late: it is done all the same
            async with asyncio.timeout(SEEN_S):
                await self._replicator.until(lambda: self._view.revision >= result.revision)
        return self.placement()


def _check_move(record: PartitionRecord, *, target: str, source: str, is_leader_only: bool) -> None:
    """Raise unless a partition can be moved so."""
    having = {*map(node_of, record.replicas)}
    if is_leader_only:
        if source:
            raise BadInput("source: a leader is moved from wherever it is: name none")
        if target not in having:
            raise Busy(f"target: {target!r} has no replica that votes: move one there first")
        return
    if target in having:
        raise Busy(f"target: {target!r} has a replica already")
    if source and source not in having:
        raise Busy(f"source: {source!r} has no replica that votes")
