"""Snapshots: compacted copies of topics, from which compacted replays begin.

`waterclock pipeline compact` makes them and registers them here; see docs/formats/snapshot.md.
"""

import os

from waterclock.client.connection import Connection
from waterclock.model.protobuf import from_proto
from waterclock.model.views import SnapshotInfo
from waterclock.v1 import admin_pb2


class Snapshots:
    """Have snapshots used, or used no more."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def register(self, topic: str, folder: str | os.PathLike[str]) -> SnapshotInfo:
        """Have a snapshot used for compacted replays. The folder, which has its manifest, is an
        absolute path on the node's own machine; its files stay where they are."""
        request = admin_pb2.RegisterSnapshotRequest(topic=topic, folder=os.fspath(folder))
        told = await self._connection.call(self._connection.admin.RegisterSnapshot, request)
        return from_proto(told, SnapshotInfo)

    async def list(self, topic: str) -> list[SnapshotInfo]:
        """Return the snapshots of a topic, the one that reaches farthest first."""
        request = admin_pb2.ListSnapshotsRequest(topic=topic)
        answer = await self._connection.call(self._connection.admin.ListSnapshots, request)
        return [from_proto(each, SnapshotInfo) for each in answer.snapshots]

    async def delete(self, topic: str, name: str) -> bool:
        """Have a snapshot used no more; tell whether there was one. Its files stay."""
        request = admin_pb2.DeleteSnapshotRequest(topic=topic, snapshot=name)
        answer = await self._connection.call(self._connection.admin.DeleteSnapshot, request)
        return answer.existed
