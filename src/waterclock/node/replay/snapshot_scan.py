"""Reading a partition's past from a snapshot first, and from the log behind it.

    snapshot rows in [at, snapshot end)      then      the log from the snapshot's end to the end

Parquet is read in a thread, one row group ahead of what is being handed out, so a reader that takes
nothing holds two row groups and no more.

If the snapshot cannot be read, and nothing of it was handed out, the log is read instead, all of
it. Once something was, that would leave a hole: retention may have taken from the log what the rest
of the snapshot has, and nobody could tell (what is gone is spanned by frames without rows). So the
reader gets an error, and begins anew.
"""

import asyncio
import logging
from collections import deque

from waterclock.model.errors import Damaged
from waterclock.node.groups.outbound import DeliveryBatch
from waterclock.node.partition.host import PartitionHost
from waterclock.node.partition.remote_log import log_of
from waterclock.node.replay.scan import Scan
from waterclock.node.replay.snapshot_files import PartitionRows, SnapshotBatch
from waterclock.node.replay.snapshots import SnapshotSource

log = logging.getLogger("waterclock.node")

Group = list[SnapshotBatch]


class CompactedScan:
    """Reads [start, end) of a partition, what a snapshot has of it from there."""

    def __init__(
        self,
        host: PartitionHost,
        start: int,
        end: int,
        *,
        source: SnapshotSource | Damaged,
        snapshot: tuple[int, int],
    ) -> None:
        self.handed_out = start
        """Everything below was handed out, or has nothing to hand out."""
        self._host = host
        self._end = end
        self._snapshot_start, self._snapshot_end = snapshot
        self._batches: deque[SnapshotBatch] = deque()
        self._rows: PartitionRows | None = None
        self._prefetched: asyncio.Future[Group] | None = None
        self._behind: Scan | None = None
        """The log, once its turn has come."""
        self._problem: Damaged | None = None
        if start >= self._snapshot_end:
            self._read_log(start)
        elif isinstance(source, Damaged):
            self._problem = source
        else:
            self._rows = PartitionRows(source.folder, source.partition, start)

    def __repr__(self) -> str:
        return f"<CompactedScan of {self._host!r} at {self.handed_out}>"

    @property
    def is_exhausted(self) -> bool:
        """There is nothing more to hand out."""
        return self._behind is not None and self._behind.is_exhausted

    async def next(self) -> tuple[DeliveryBatch | SnapshotBatch, int] | None:
        """Return the next messages and the offset behind them; None at the end."""
        if self._behind is None:
            found = await self._next_of_snapshot()
            if found is not None:
                return found
        assert self._behind is not None
        following = await self._behind.next()
        if following is not None:
            self.handed_out = following[1]
        return following

    def close(self) -> None:
        """Close the files, once the read under way has ended."""
        rows, self._rows = self._rows, None
        self._batches.clear()
        if rows is None:
            return
        if self._prefetched is None or self._prefetched.done():
            _retrieve(self._prefetched)
            rows.close()
        else:
            self._prefetched.add_done_callback(_retrieve)
            self._prefetched.add_done_callback(lambda _: rows.close())

    async def _next_of_snapshot(self) -> tuple[SnapshotBatch, int] | None:
        """Return messages of the snapshot; None once the log is to be read."""
        try:
            if self._problem is not None:
                raise self._problem
            if not self._batches:
                self._batches.extend(await self._group())
        except Damaged as error:
            self._fall_back(error)
            return None
        if not self._batches:
            self.close()
            self._read_log(self._snapshot_end)
            return None
        messages = self._batches.popleft()
        self.handed_out = int(messages.offsets[-1]) + 1
        return messages, self.handed_out

    async def _group(self) -> Group:
        """Return the next row group, and have the one after it read meanwhile."""
        assert self._rows is not None, "read after close"
        loop = asyncio.get_running_loop()
        prefetched = self._prefetched or loop.run_in_executor(None, self._rows.next_group)
        # Kept until it has been waited for: who is cancelled here must not read on beside it.
        self._prefetched = prefetched
        group = await asyncio.shield(prefetched)
        self._prefetched = None
        if group and self._rows is not None:
            self._prefetched = loop.run_in_executor(None, self._rows.next_group)
        return group

    def _fall_back(self, error: Damaged) -> None:
        self.close()
        host, at = self._host, self.handed_out
        if at > self._snapshot_start:
            raise Damaged(
                f"the snapshot of {host.topic}/{host.partition} cannot be read any more behind "
                f"offset {at}, and part of it was replayed: begin a new replay ({error})"
            )
        log.warning(
            "snapshot_unreadable topic=%s partition=%d reading=log error=%s",
            host.topic,
            host.partition,
            error,
        )
        self._read_log(log_of(host).start)

    def _read_log(self, start: int) -> None:
        self._behind = Scan(log_of(self._host), start, max(start, self._end))


def _retrieve(prefetched: "asyncio.Future[Group] | None") -> None:
    """Look at a result that is not awaited any more, so that a failure of it is not reported."""
    if prefetched is not None and not prefetched.cancelled():
        prefetched.exception()
