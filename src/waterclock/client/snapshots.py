"""Snapshots: compacted copies of topics, from which compacted replays begin.

`waterclock pipeline compact` makes them and registers them here; see docs/formats/snapshot.md.
"""

import os
from dataclasses import dataclass
from datetime import datetime

from waterclock.client.connection import Connection
from waterclock.client.results import time_of
from waterclock.v1 import admin_pb2


@dataclass(frozen=True, slots=True)
class SnapshotPartitionInfo:
    """What a snapshot has of one partition."""

    partition: int
    start_offset: int
    end_offset: int
    """A replay goes on with the log from here."""
    rows: int
    size_bytes: int
    files: int


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """A snapshot the node knows of."""

    topic: str
    name: str
    folder: str
    created: datetime
    partitions: tuple[SnapshotPartitionInfo, ...]

    @property
    def rows(self) -> int:
        """Messages in all partitions."""
        return sum(each.rows for each in self.partitions)


class Snapshots:
    """Have snapshots used, or used no more."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def register(self, topic: str, folder: str | os.PathLike[str]) -> SnapshotInfo:
        """Have a snapshot used for compacted replays. The folder, which has its manifest, is an
        absolute path on the node's own machine; its files stay where they are."""
        request = admin_pb2.RegisterSnapshotRequest(topic=topic, folder=os.fspath(folder))
        told = await self._connection.call(self._connection.admin.RegisterSnapshot, request)
        return _snapshot(told)

    async def list(self, topic: str) -> list[SnapshotInfo]:
        """Return the snapshots of a topic, the one that reaches farthest first."""
        request = admin_pb2.ListSnapshotsRequest(topic=topic)
        answer = await self._connection.call(self._connection.admin.ListSnapshots, request)
        return [_snapshot(told) for told in answer.snapshots]

    async def delete(self, topic: str, name: str) -> bool:
        """Have a snapshot used no more; tell whether there was one. Its files stay."""
        request = admin_pb2.DeleteSnapshotRequest(topic=topic, snapshot=name)
        answer = await self._connection.call(self._connection.admin.DeleteSnapshot, request)
        return answer.existed


def _snapshot(told: admin_pb2.Snapshot) -> SnapshotInfo:
    return SnapshotInfo(
        topic=told.topic,
        name=told.snapshot,
        folder=told.folder,
        created=time_of(told.created_ms),
        partitions=tuple(
            SnapshotPartitionInfo(
                partition=each.partition,
                start_offset=each.start_offset,
                end_offset=each.end_offset,
                rows=each.rows,
                size_bytes=each.bytes,
                files=each.files,
            )
            for each in told.partitions
        ),
    )
