"""Timers on disk: saved whole, believed only if the log bears them out.

Whatever is here is a cache of the log; nothing is lost with it but time.
"""

import logging
import threading
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from waterclock.log.frame import FrameType
from waterclock.log.rows import row_offsets
from waterclock.log.schema import decode, due_times
from waterclock.model.errors import Damaged, OffsetOutOfRange, StorageFull
from waterclock.model.ids import Offset
from waterclock.node.cancelled import Cancelled
from waterclock.schedule.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint
from waterclock.schedule.timers import Timers
from waterclock.storage.disk import Folder, write_whole
from waterclock.storage.partition_store import PartitionStore

Int64s = npt.NDArray[np.int64]

NAME = "timers"

log = logging.getLogger(__name__)


class Position(NamedTuple):
    """A point of a log, told so that it is recognised later."""

    log_id: bytes
    end_offset: Offset
    last_header_crc: int


def position_of(store: PartitionStore) -> Position:
    """Return where the log ends now."""
    crc = store.reader.fingerprint_before(store.end)
    # Nothing may be left before the end: retention took it, and the next opening looks at the log.
    return Position(store.log_id, store.end, crc or 0)


class TimerFiles:
    """The folder of a partition's saved timers."""

    def __init__(self, folder: Folder) -> None:
        folder.lock()
        self._folder = folder
        self._mutex = threading.Lock()

    def save(self, position: Position, offsets: Int64s, due_ms: Int64s) -> bool:
        """Write a checkpoint. What it holds must be durable in the log. May run on a thread."""
        data = encode_checkpoint(Checkpoint(*position, offsets, due_ms))
        try:
            with self._mutex:
                write_whole(self._folder, NAME, [data])
                self._folder.sync()
        except StorageFull as error:
            log.warning("timers_not_saved reason=%s", error)
            return False
        return True

    def load(self) -> Checkpoint | None:
        """Return the checkpoint, or None if there is no whole one."""
        if NAME not in self._folder.names():
            return None
        file = self._folder.open(NAME)
        checkpoint = decode_checkpoint(file.view(0, file.size()))
        file.close()
        return checkpoint

    def close(self) -> None:
        """Let go of the folder, once nobody writes to it."""
        with self._mutex:
            self._folder.close()


def opened_timers(
    store: PartitionStore, files: TimerFiles, *, now_ms: int, tick_ms: int, cancelled: Cancelled
) -> tuple[Timers, int]:
    """Return the timers of a store and up to which offset a checkpoint has them."""
    checkpoint = files.load()
    if checkpoint is not None and _is_borne_out(store, checkpoint):
        timers = Timers.restore((checkpoint.offsets, checkpoint.due_ms), now_ms, tick_ms)
        try:
            _replay(store, timers, checkpoint.end_offset, cancelled)
        except (Damaged, OffsetOutOfRange) as error:
            log.warning("timers_not_replayed reason=%s", error)
        else:
            return timers, checkpoint.end_offset
    return Timers.restore(store.open_promises(), now_ms, tick_ms), -1


def _is_borne_out(store: PartitionStore, checkpoint: Checkpoint) -> bool:
    if checkpoint.log_id != store.log_id:
        return False
    try:
        crc = store.reader.fingerprint_before(checkpoint.end_offset)
    except Damaged:
        return False
    return crc == checkpoint.last_header_crc


def _replay(store: PartitionStore, timers: Timers, start: int, cancelled: Cancelled) -> None:
    for frame in store.frames(start):
        header = frame.header
        if header.type is FrameType.PROMISE:
            rows = decode(header, frame.body)
            timers.open(row_offsets(header, rows), due_times(rows))
        elif header.type in (FrameType.FIRED, FrameType.CANCEL):
            ended = decode(header, frame.body).column("promise_offset").to_numpy()
            timers.retire(ended)
            if header.type is FrameType.CANCEL:
                cancelled.add(np.sort(ended))
        elif header.type is FrameType.RESCHEDULE:
            rows = decode(header, frame.body)
            timers.move(rows.column("promise_offset").to_numpy(), due_times(rows))
