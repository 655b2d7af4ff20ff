"""A batch whose messages belong to many partitions of this node: appended row by row, then waited
for as a whole.

With a thousand partitions most have one message of a batch, and what is done for each of them is
the price of a message. So a row is put together by hand, without an object or a task of its own;
only what a partition has many of is made a batch by Arrow.

A part that is refused keeps no other partition's from being written. Not for replicas: while one is
waited for, another may be cut and led anew, and the offset waited for then be that of another
message.
"""

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from waterclock.log.append import Appended
from waterclock.log.batch import Batch
from waterclock.log.frame import FLAG_UNTRACKED
from waterclock.log.lone_rows import LoneRows
from waterclock.model.errors import WaterclockError
from waterclock.node.partition.host import PartitionHost

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

FEW_ROWS_MAX = 4
"""So many rows for one partition are appended one by one: to have Arrow make a batch of them costs
more than four appends."""


class SpreadBatch:
    """One batch, the host of each of its rows, and what became of them."""

    def __init__(self, batch: Batch, hosts: list[PartitionHost], where: Int32s) -> None:
        """`where` is the partition of each row, and `hosts` has its host."""
        self.offsets: Int64s = np.zeros(batch.count, np.int64)
        """Where each message is."""
        self.repeats: list[int] = []
        """Rows that were published before."""
        self._batch = batch
        self._hosts = hosts
        self._where = where
        self._lone = LoneRows(batch)
        self._begun = time.perf_counter()
        self._waits: list[tuple[PartitionHost, int]] = []
        self._batch_waits: list[tuple[PartitionHost, Batch, Appended]] = []
        self._refused: dict[PartitionHost, WaterclockError] = {}

    def append(self, *, now_ms: int, allow_duplicate: bool) -> None:
        """Append every row; raise what the first partition said that refused one."""
        # Arrow makes those it has to make, and whole where there are spans: they want rows.
        is_cheap = self._lone.are_cheap and self._hosts[0].spans is None
        counts = np.bincount(self._where)
        few_max = FEW_ROWS_MAX if self._lone.are_cheap else 1
        many = frozenset(np.flatnonzero(counts > few_max).tolist())
        rows: Sequence[int] = range(self._batch.count)
        if many:
            self._append_many(many, allow_duplicate=allow_duplicate)
            rows = np.flatnonzero(counts[self._where] <= few_max).tolist()
        if is_cheap:
            self._append_lone(rows, now_ms=now_ms, flags=FLAG_UNTRACKED * allow_duplicate)
        else:
            for row in rows:
                self._append_batch(self._lone.row(row), [row], allow_duplicate=allow_duplicate)
        if self._refused:
            raise next(iter(self._refused.values()))
        self.repeats.sort()

    def _append_lone(self, rows: Sequence[int], *, now_ms: int, flags: int) -> None:
        hosts, encoded = self._hosts, self._lone.encoded
        fps = self._lone.fingerprints([host.id_seed for host in hosts])
        waits = self._waits
        stored: list[tuple[int, int]] = []
        for row in rows:
            host = hosts[row]
            # What comes behind a refused one with the same key must not overtake it.
            if self._refused and host in self._refused:
                continue
            message_id, body = encoded(row)
            try:
                offset, is_new = host.append_lone(
                    message_id, body, fp=fps[row], now_ms=now_ms, flags=flags
                )
            except WaterclockError as error:
                self._refused[host] = error
                continue
            stored.append((row, offset))
            if not is_new:
                self.repeats.append(row)
            waits.append((host, offset + 1))
        if stored:
            placed, offsets = zip(*stored, strict=True)
            self.offsets[list(placed)] = offsets

    def _append_many(self, numbers: frozenset[int], *, allow_duplicate: bool) -> None:
        for number in sorted(numbers):
            is_there = self._where == number
            part = self._batch.select(is_there)
            self._append_batch(part, np.flatnonzero(is_there), allow_duplicate=allow_duplicate)

    def _append_batch(
        self, part: Batch, rows: Int64s | list[int], *, allow_duplicate: bool
    ) -> None:
        host = self._hosts[rows[0]]
        if host in self._refused:
            return
        try:
            appended = host.append(part, allow_duplicate=allow_duplicate)
        except WaterclockError as error:
            self._refused[host] = error
            return
        self.offsets[rows] = appended.offsets
        if appended.is_new is not None:
            self.repeats += np.array(rows)[~appended.is_new].tolist()
        self._batch_waits.append((host, part, appended))

    async def wait_durable(self) -> None:
        """Return when all of it may be answered for: a task for each part is not free."""
        begun = self._begun
        took_ms = 0.0
        for host, end in self._waits:
            queue = host.flush_queue
            if not queue.is_flushed(end):
                await queue.wait_flushed(end)
                took_ms = 0.0
            took_ms = took_ms or (time.perf_counter() - begun) * 1_000
            host.counters.publish_ms.observe(took_ms)
        for host, part, appended in self._batch_waits:
            await host.wait_durable(part, appended, begun=begun)
