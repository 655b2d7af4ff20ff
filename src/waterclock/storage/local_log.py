"""A partition log in a script: the blocking face, without a node.

`open_log` puts together what a node puts together (an opened partition, group commit, the system's
clock) and hides the waiting: `publish` returns when the messages are durable. Messages are objects
here, which is convenient and costs several times what a batch of Arrow bytes costs. One thread uses
a log, one process a folder. Messages for later are kept and listed; firing is a scheduler's work.
"""

import os
import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from waterclock.log.append import Appended
from waterclock.log.batch import encode_batch
from waterclock.log.frame import Frame
from waterclock.log.schema import MESSAGES, decode, row_offsets
from waterclock.model.errors import Closed, StorageFailed
from waterclock.model.ids import UUID7_ENTROPY_BYTES, Millis, Offset
from waterclock.model.limits import Limits
from waterclock.model.message import Message
from waterclock.model.sections import DedupConfig, LogConfig
from waterclock.runtime.clock import SystemClock
from waterclock.storage.flush import GroupCommit
from waterclock.storage.folders.os_folder import OsFolder
from waterclock.storage.opening import open_partition
from waterclock.storage.partition_store import PartitionStore

LIMITS = Limits()


class StoredMessage(NamedTuple):
    """A message and its place in the log."""

    offset: Offset
    message: Message


class Scheduled(NamedTuple):
    """A message for later, neither fired nor cancelled."""

    offset: Offset
    due_ms: Millis


def open_log(
    path: str | os.PathLike[str], *, log: LogConfig | None = None, dedup: DedupConfig | None = None
) -> "Log":
    """Open the log in a folder, or begin one there. You must close it; `with` does."""
    clock = SystemClock()
    store = open_partition(
        OsFolder(path),
        log=log or LogConfig(),
        dedup=dedup or DedupConfig(),
        now_ms=clock.now_ms(),
        new_log_id=os.urandom(16),
    )
    return Log(store, clock)


class Log:
    """An open log. Open one with `open_log`."""

    def __init__(self, store: PartitionStore, clock: SystemClock) -> None:
        self._store = store
        self._clock = clock
        self._commit = GroupCommit(store, clock)
        self._is_closed = False
        self._lock = threading.RLock()
        self._closing = threading.Event()
        if store.log.fsync == "interval":
            threading.Thread(target=self._tick, name="waterclock-tick", daemon=True).start()

    def _tick(self) -> None:
        """Fsync every interval, also when nobody publishes any more."""
        while not self._closing.wait(self._store.log.fsync_interval_ms / 1000):
            with self._lock:
                if self._is_closed:
                    return
                try:
                    self._commit.step()
                except StorageFailed:
                    return  # the next publish says so

    def __repr__(self) -> str:
        return "<Log closed>" if self._is_closed else f"<Log [{self.start}, {self.end})>"

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def start(self) -> Offset:
        """The first offset still in the log."""
        return self._store.start

    @property
    def end(self) -> Offset:
        """One past the last offset."""
        return self._store.end

    def now_ms(self) -> Millis:
        """Return the time this log goes by, for due times."""
        return self._clock.now_ms()

    def publish(self, messages: Sequence[Message], *, allow_duplicate: bool = False) -> Appended:
        """Write messages and return when they are durable, with the offset of each.

        A message whose id was published before is not written again, unless you allow it, and is
        answered with its first offset. A message without an id is given one.
        """
        entropy = os.urandom(UUID7_ENTROPY_BYTES)
        how = self._store.log.compression
        with self._lock:
            self._check_open()
            now_ms = self._clock.now_ms()
            batch = encode_batch(messages, LIMITS, now_ms=now_ms, compression=how, entropy=entropy)
            appended = self._store.append(batch, now_ms=now_ms, allow_duplicate=allow_duplicate)
            self._commit.wait_for(appended.durable_at)
        return appended

    def read(self, offset: int | None = None) -> Iterator[StoredMessage]:
        """Yield the deliverable messages from `offset`, or from the first, as far as they go now.

        Raises FrameDamaged where bytes are not what was written; read on behind its offsets.
        """
        self._check_open()
        start = self.start if offset is None else offset
        for frame in self._store.frames(start):
            if frame.header.is_deliverable:
                yield from stored_messages(frame, start)

    def scheduled(self) -> list[Scheduled]:
        """Return the open scheduled messages, the earliest due first."""
        self._check_open()
        offsets, due_ms = self._store.open_scheduled()
        order = np.lexsort((offsets, due_ms))
        return list(map(Scheduled, offsets[order].tolist(), due_ms[order].tolist()))

    def close(self) -> None:
        """Let the folder go. Again is harmless."""
        self._closing.set()
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._commit.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed("the log was closed: open it again")


def stored_messages(frame: Frame, start: int) -> Iterator[StoredMessage]:
    """Yield the messages of a frame of messages, from an offset on."""
    rows: pa.RecordBatch = decode(frame.header, frame.body)
    offsets = row_offsets(frame.header, rows).tolist()
    columns = (rows.column(name).to_pylist() for name in MESSAGES.names)
    for offset, id_, key, value, pairs, due_ms in zip(offsets, *columns, strict=True):
        if offset >= start:
            headers = None if pairs is None else dict(pairs)
            message = Message(value, key=key, message_id=id_, headers=headers, due_ms=due_ms)
            yield StoredMessage(offset, message)
