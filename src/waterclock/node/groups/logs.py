"""The logs that the groups of a node read: each once, for all of them, here or at another node."""

import logging

from waterclock.node.partition.host import PartitionHost
from waterclock.node.partition.log_reader import LogReader
from waterclock.node.partition.remote_log import (
    GROUP_CACHE_BYTES,
    FrameCache,
    PartitionLog,
    RemoteLog,
    Spawn,
    is_current,
    is_elsewhere,
)

log = logging.getLogger("waterclock.delivery")


class GroupLogs:
    """Readers of partitions. What is pulled from other nodes is bounded for all together."""

    def __init__(self, spawn: Spawn) -> None:
        self.readers: dict[PartitionHost, PartitionLog] = {}
        self._pulled = FrameCache(GROUP_CACHE_BYTES)
        self._spawn = spawn

    def __repr__(self) -> str:
        return f"<GroupLogs {len(self.readers)}, {self._pulled!r}>"

    def of(self, partition: PartitionHost) -> PartitionLog | None:
        """Return the reader of a partition; None if it cannot be read anywhere."""
        reader = self.readers.get(partition)
        if reader is not None:
            return reader
        if is_elsewhere(partition):
            if partition.is_open:
                where = f"{partition.topic}/{partition.partition}"
                log.warning("damaged_copy_not_read topic=%s reading=elsewhere", where)
            reader = RemoteLog(partition, self._pulled, self._spawn)
        elif partition.is_open:
            reader = LogReader(partition.store, met_damage=partition.met_damage)
        else:
            return None
        self.readers[partition] = reader
        return reader

    def is_current(self, partition: PartitionHost) -> bool:
        """Say if a partition has a reader, and that reads the log as it is open now."""
        reader = self.readers.get(partition)
        return reader is not None and is_current(reader, partition)

    def drop(self, partition: PartitionHost) -> None:
        """Let go of a reader, for another one or for good."""
        reader = self.readers.pop(partition, None)
        if isinstance(reader, RemoteLog):
            reader.close()
