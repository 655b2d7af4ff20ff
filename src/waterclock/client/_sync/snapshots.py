"""The blocking twin of `snapshots.py`: the same names, and calls that wait."""

import os

from waterclock.client import snapshots
from waterclock.client.loop_thread import LoopThread
from waterclock.client.snapshots import SnapshotInfo


class Snapshots:
    """Have snapshots used, or used no more."""

    def __init__(self, background: LoopThread, snapshots: snapshots.Snapshots) -> None:
        self._background = background
        self._snapshots = snapshots

    def register(self, topic: str, folder: str | os.PathLike[str]) -> SnapshotInfo:
        """Have a snapshot used for compacted replays; the folder is on the node's own machine."""
        return self._background.run(self._snapshots.register(topic, folder))

    def list(self, topic: str) -> list[SnapshotInfo]:
        """Return the snapshots of a topic, the one that reaches farthest first."""
        return self._background.run(self._snapshots.list(topic))

    def delete(self, topic: str, name: str) -> bool:
        """Have a snapshot used no more; tell whether there was one. Its files stay."""
        return self._background.run(self._snapshots.delete(topic, name))
