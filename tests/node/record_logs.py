"""Replicas of a log of records whose roles a test sets by hand: no network, no coordinator."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

from tests.kit.clock import ManualClock
from tests.kit.disk import SimulatedFolder
from waterclock.log.append import Appended
from waterclock.log.batch import Batch
from waterclock.model.ids import Epoch
from waterclock.model.sections import DedupConfig, LogConfig
from waterclock.node.metadata import Metadata
from waterclock.storage.flush import BackgroundThreads, FlushQueue
from waterclock.storage.opening import open_partition
from waterclock.storage.partition_store import PartitionStore
from waterclock.storage.replica_log import ReplicaLog

LOG_ID = b"records of nodes"
Role = Literal["leader", "follower", "closed"]


class RecordReplica:
    """One replica, and the records that its node knows."""

    def __init__(self, clock: ManualClock, threads: BackgroundThreads) -> None:
        self.role: Role = "closed"
        self.epoch = 0
        self.rewriting = asyncio.Lock()
        self._clock = clock
        self._threads = threads
        self._folder = SimulatedFolder()
        self.open()
        self.metadata = Metadata(self, clock)

    def open(self) -> None:
        self.store: PartitionStore = open_partition(
            self._folder,
            log=LogConfig(preallocate_bytes=4096),
            dedup=DedupConfig(enabled=False),
            now_ms=self._clock.now_ms(),
            new_log_id=LOG_ID,
        )
        self.log = ReplicaLog(self.store)
        loop = asyncio.get_running_loop()
        self.flush_queue = FlushQueue(self.store, self._clock, loop, threads=self._threads)

    @property
    def is_open(self) -> bool:
        return self.role != "closed"

    def append(self, batch: Batch, *, allow_duplicate: bool = False) -> Appended:
        return self.store.append(
            batch, now_ms=self._clock.now_ms(), allow_duplicate=allow_duplicate
        )

    def close(self) -> None:
        self.flush_queue.close()

    # What a replicator does

    def lead(self, epoch: int) -> None:
        """Begin to lead; its frame is not committed yet."""
        self.epoch = epoch
        self.log.begin_epoch(Epoch(epoch), now_ms=self._clock.now_ms())
        self.turn("leader")

    def turn(self, role: Role) -> None:
        self.role = role
        self.metadata.role_changed()

    def commit(self, end: int | None = None) -> None:
        """Have all that is written, or what lies below `end`, be flushed and committed."""
        self.store.sync()
        self.log.commit(self.store.end if end is None else end)
        self.flush_queue._tell()

    def copy(self, leader: "RecordReplica") -> None:
        """Take what the leader has more."""
        raw = b"".join(frame.raw for frame in leader.store.reader.frames(self.store.end))
        if raw:
            epoch = leader.store.epoch
            self.log.append_frames(raw, leader_epoch=epoch, now_ms=self._clock.now_ms())

    def truncate(self, end: int) -> None:
        """Give up what lies above `end`, and open the log anew."""
        self.log.truncate(end)
        self.close()
        self._folder = self._folder.reopen()
        self.open()
        self.turn("follower")

    @property
    def records(self) -> Mapping[str, bytes]:
        return dict(self.metadata.items(""))


@contextmanager
def replicas(count: int = 2) -> Iterator[list[RecordReplica]]:
    """Open so many replicas; the first leads, in epoch 1, and the others follow."""
    threads = BackgroundThreads()
    clock = ManualClock(1_700_000_000_000)
    made = [RecordReplica(clock, threads) for _ in range(count)]
    made[0].lead(1)
    for follower in made[1:]:
        follower.turn("follower")
    share(made)
    try:
        yield made
    finally:
        for replica in made:
            replica.close()
        threads.stop()


def share(made: list[RecordReplica]) -> None:
    """Have all replicas hold, and show, what the first one has."""
    for replica in made:
        replica.copy(made[0])
        replica.commit(made[0].store.end)
