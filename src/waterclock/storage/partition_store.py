"""One partition's log on disk: append, read, and everything derived from it kept in step.

One thread owns a store and calls all of it, with exceptions made for slow work: `Sync.run` (the
fsync), `SaveJob.run` (side-cars) and `RewriteJob.run` (compaction) may run on another thread,
between a begin and a finish on the owner's. So the same code runs under an event loop, in a plain
loop, and, without any thread, on a simulated disk.

Nothing is acknowledged or readable before it is flushed, unless the policy is `interval`. A faulty
partition (see `opening`) is readable around its damage and takes no appends. Whether a message is
*due* is asked of the clock as it is, even where that clock has stepped back.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import numpy.ma  # np.unique and np.isin would import it in the middle of an append
import numpy.typing as npt
import pyarrow.compute  # noqa: F401 - and so would the first filter or take

from waterclock.log.append import Appended, PlannedFrame, answer, landed, split_by_due
from waterclock.log.batch import Batch
from waterclock.log.frame import FLAG_UNTRACKED, Frame, FrameType
from waterclock.log.id_index.dedup import Repeats, find_repeat, find_repeats
from waterclock.log.id_index.fingerprint import Fingerprints
from waterclock.log.id_index.index import IdIndex
from waterclock.log.recovery import Damage
from waterclock.log.scheduled import Promised, cancel_frame, fired_frame, gather, reschedule_frame
from waterclock.log.sidecars.due import DueDelta, NetDelta, endings_of, open_promises
from waterclock.log.sidecars.endings import Endings
from waterclock.model.errors import (
    BadInput,
    Closed,
    FrameDamaged,
    PartitionFaulty,
    StorageFailed,
    StorageFull,
)
from waterclock.model.ids import Epoch, Millis, Offset
from waterclock.model.sections import DedupConfig, LogConfig
from waterclock.storage.folders.folder import Folder
from waterclock.storage.jobs import SaveJob, Snapshot
from waterclock.storage.reader import Reader
from waterclock.storage.segment_file import SegmentFile
from waterclock.storage.writer import Sync, Writer

Int64s = npt.NDArray[np.int64]
READ_BYTES_MAX = 1 << 20
_NO_BODY = memoryview(b"")


class PartitionStore:
    """An open partition log. Open one with `waterclock.storage.opening.open_partition`."""

    def __init__(
        self,
        folder: Folder,
        *,
        log: LogConfig,
        dedup: DedupConfig,
        segments: list[SegmentFile],
        ids: IdIndex | None,
        deltas: dict[int, NetDelta],
        active_delta: DueDelta,
        faults: list[Damage],
    ) -> None:
        self.folder = folder
        self.log = log
        self.dedup = dedup
        self.segments = segments
        self.ids = ids
        self.deltas = deltas
        """Net effect on the open promises of each sealed segment, by base offset."""
        self.faults = faults
        """Stretches of acknowledged messages that cannot be read; not empty means faulty."""
        self.jobs: deque[SaveJob] = deque()
        """Work that may be done aside: run each, then finish it here; see `run_jobs`."""
        self.active_delta = active_delta
        self.reader = Reader(segments)
        self._writer = Writer(folder, log, segments, faults)
        self._checkpoint_position = segments[-1].end_position
        self._checkpoint: Snapshot | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        state = "faulty" if self.faults else self._writer.failure or "ok"
        return f"<PartitionStore [{self.start}, {self.end}) {len(self.segments)} segments, {state}>"

    # What is there

    @property
    def start(self) -> Offset:
        """The first offset still in the log."""
        return self.reader.start

    @property
    def end(self) -> Offset:
        """One past the last offset written, flushed or not."""
        return self.reader.end

    @property
    def acknowledged_end(self) -> Offset:
        """Messages below this may be acknowledged; reads end here."""
        return Offset(self._writer.plan.acknowledged_end)

    @property
    def flushed_end(self) -> Offset:
        """Everything below this is durable."""
        return Offset(self._writer.plan.flushed_end)

    @property
    def log_id(self) -> bytes:
        """The identity of this log, the same in all of its segments and replicas."""
        return self.segments[0].header.log_id

    @property
    def log_time_ms(self) -> Millis:
        """When the last frame was appended: the log's own time, which never steps back."""
        return self._writer.log_time_ms

    @property
    def epoch(self) -> Epoch:
        """The reign under which frames are written."""
        return self._writer.epoch

    def open_promises(self) -> tuple[Int64s, Int64s]:
        """Return (offsets, due times) of the promises neither fired nor cancelled."""
        return open_promises([*self.deltas.values(), self.active_delta.net()])

    def endings(self, offsets: Int64s) -> Endings:
        """Return how these ended that are not open, as far as that is remembered."""
        return endings_of([*self.deltas.values(), self.active_delta], offsets)

    # Appending

    def append(self, batch: Batch, *, now_ms: int, allow_duplicate: bool = False) -> Appended:
        """Write a batch; acknowledge it once `acknowledged_end` reaches the answer's `durable_at`.

        Messages whose id was published within the dedup window are not written again.
        """
        self.check_appendable()
        fps, repeats = self._repeats(batch, now_ms, allow_duplicate)
        fresh = batch
        if repeats is not None:
            is_new = repeats.is_new
            if not bool(is_new.any()):
                return answer(repeats, range(0), self.end)
            fresh = batch.select(is_new, self.log.compression)
            fps = None if fps is None else fps[is_new]
        flags = FLAG_UNTRACKED if allow_duplicate else 0
        parts = split_by_due(fresh, now_ms=now_ms, flags=flags, compression=self.log.compression)
        with self._in_step():
            base = self._write([part.frame for part in parts], now_ms)
            written = landed(parts, fresh.count, base)
            if self.ids is not None and fps is not None:
                self.ids.remember(fps, written, is_tracked=not allow_duplicate)
            if parts[-1].frame.kind is FrameType.PROMISE:
                self._promise(parts[-1].batch)
        return answer(repeats, written, self.end)

    @contextmanager
    def _in_step(self) -> Iterator[None]:
        """Write and note what was written, both or neither: cut short between, the store stops.

        Otherwise the log would hold, and acknowledge, what its own indexes do not know.
        """
        try:
            yield
        except (StorageFull, BadInput):
            raise  # before anything was written
        except BaseException as error:
            self.fail(error)
            raise

    def _repeats(
        self, batch: Batch, now_ms: int, allow_duplicate: bool
    ) -> tuple[Fingerprints | None, Repeats | None]:
        """Return the fingerprints to remember and the rows not to write."""
        if self.ids is None:
            return None, None
        if allow_duplicate and batch.count > 1:
            return self.ids.fingerprints(batch.ids), None
        oldest_ms = max(now_ms, self.log_time_ms) - self.dedup.window_ms
        stored = self.reader.ids
        if batch.count > 1:
            fps = self.ids.fingerprints(batch.ids)
            return fps, find_repeats(self.ids, batch.ids, fps, stored, oldest_ms=oldest_ms)
        # One message: NumPy's fixed costs would be most of the work.
        message_id = batch.ids[0].as_py()
        fp = self.ids.fingerprint(message_id)
        offset = None
        if not allow_duplicate:
            offset = find_repeat(self.ids, message_id, fp, stored, oldest_ms=oldest_ms)
        repeats = None if offset is None else Repeats(np.array([offset]), np.array([-1]))
        return np.array([fp], np.uint64), repeats

    def _promise(self, batch: Batch) -> None:
        """Note the promises just written: they are the last offsets of the log."""
        assert batch.due_ms is not None
        offsets = np.arange(self.end - batch.count, self.end, dtype=np.int64)
        # A copy: the column is a view that would keep the whole batch in memory.
        self.active_delta.open(offsets, batch.due_ms.copy())

    def fire(self, promises: Int64s | Promised, *, now_ms: int) -> Appended:
        """Write promises, open and due (by offset, or read already), as deliverable, in order."""
        self.check_appendable()
        if not isinstance(promises, Promised):
            promises = gather(self.reader.rows(promises), promises)
        frame = fired_frame(promises, self.log.compression)
        with self._in_step():
            base = self._write([frame], now_ms)
            self.active_delta.retire(promises.offsets.copy())
        return answer(None, range(base, self.end), self.end)

    def cancel(self, offsets: Int64s, *, now_ms: int, has_expired: bool = False) -> Offset:
        """Write that these open promises will not fire; return the offset to be flushed."""
        self.check_appendable()
        with self._in_step():
            self._write([cancel_frame(offsets, has_expired=has_expired)], now_ms)
            self.active_delta.cancel(offsets.copy(), has_expired=has_expired)
        return self.end

    def reschedule(self, offsets: Int64s, due_ms: Int64s, *, now_ms: int) -> Offset:
        """Write new due times for these open promises; return the offset to be flushed."""
        self.check_appendable()
        with self._in_step():
            self._write([reschedule_frame(offsets, due_ms)], now_ms)
            self.active_delta.move(offsets.copy(), due_ms.copy())
        return self.end

    def begin_epoch(self, epoch: Epoch, *, now_ms: int) -> Offset:
        """Begin a leader's reign with a frame of its own; return the offset to be flushed."""
        self.check_appendable()
        if epoch <= self.epoch:
            raise BadInput(f"epoch {epoch} is not after {self.epoch}")
        before, self._writer.epoch = self._writer.epoch, epoch
        try:
            self._write([PlannedFrame(FrameType.EPOCH, _NO_BODY, 1, 0, 0, 0)], now_ms)
        except StorageFull:
            self._writer.epoch = before
            raise
        return self.end

    def _write(self, frames: list[PlannedFrame], now_ms: int) -> Offset:
        if not self._writer.has_room(frames, now_ms):
            self.roll(now_ms)
        if self.log.fsync == "always":
            # Before the write: what is derived from the frames before it is complete here.
            self._take_checkpoint()
            self._save_checkpoint()
        return self._writer.write(frames, now_ms)

    def roll(self, now_ms: int) -> None:
        """Seal the active segment, if it holds anything, and begin the next."""
        self.check_appendable()
        sealed = self.segments[-1]
        if sealed.is_empty:
            return
        self._writer.roll(now_ms)
        snapshot = self._snapshot(sealed)
        self.jobs.append(SaveJob(self, snapshot, is_sealed=True))
        self.deltas[sealed.base_offset] = snapshot.due.net()
        base = self.segments[-1].base_offset
        self.active_delta = DueDelta(base)
        self._checkpoint = None
        self._checkpoint_position = self.segments[-1].end_position
        if self.ids is not None:
            self.ids.close_segment()
            self.ids.open_segment(base)
            self.trim_ids()

    def trim_ids(self) -> None:
        """Let go of ids that have left the window, and of the oldest beyond `dedup.ids_max`."""
        if self.ids is None:
            return
        # By the log's time, not the clock's: a clock that steps back must find them still here.
        oldest_ms = self.log_time_ms - self.dedup.window_ms
        for segment in self.segments[:-1]:
            if segment.last is not None and segment.last.append_ms < oldest_ms:
                self.ids.drop(segment.base_offset)
        self.ids.trim()

    def _snapshot(self, segment: SegmentFile) -> Snapshot:
        runs = None if self.ids is None else self.ids.active_runs()
        return Snapshot(segment.coverage, segment.index.copy(), runs, self.active_delta.frozen())

    def check_appendable(self) -> None:
        """Raise if nothing may be written: closed, failed or faulty."""
        if self._is_closed:
            raise Closed("the partition was closed")
        self._writer.check_usable()
        if self.faults:
            raise PartitionFaulty(
                f"{len(self.faults)} damaged stretches, first {self.faults[0]}: restore the files "
                "from a copy, or accept the loss with `waterclock log repair`"
            )

    # Flushing

    def begin_sync(self, now_ms: int) -> Sync | None:
        """Return the fsync to run now, if one is due and none is in flight.

        `now_ms` is of a clock that never steps back: it measures the interval between fsyncs.
        """
        sync = self._writer.begin_sync(now_ms)
        if sync is not None:
            # Taken now, saved when the fsync has succeeded: side-cars speak of durable frames only.
            self._take_checkpoint()
        return sync

    def finish_sync(self, sync: Sync, error: StorageFailed | None = None) -> None:
        """Tell how an fsync ended. You must report every one that was begun."""
        self._writer.finish_sync(sync, error)
        if error is None:
            self._save_checkpoint()

    def _take_checkpoint(self) -> None:
        segment = self.segments[-1]
        if segment.end_position - self._checkpoint_position >= self.log.checkpoint_every_bytes:
            self._checkpoint = self._snapshot(segment)
            self._checkpoint_position = segment.end_position

    def _save_checkpoint(self) -> None:
        if self._checkpoint is not None:
            self.jobs.append(SaveJob(self, self._checkpoint, is_sealed=False))
            self._checkpoint = None

    def sync(self) -> None:
        """Make everything written durable before returning."""
        self.check_appendable()
        self._writer.sync_now()

    def run_jobs(self) -> None:
        """Do, here and now, the work that could be done aside."""
        while self.jobs:
            job = self.jobs.popleft()
            try:
                job.run()
            except StorageFailed as error:
                self.fail(error)
                raise
            job.finish()

    def on_full(self, callback: Callable[[StorageFull], None]) -> None:
        """Call back when there was no room for something; whoever asked for it is told as well."""
        self._writer.on_full = callback

    def fail(self, error: BaseException) -> None:
        """Take no more appends: the disk, or what is kept beside it, cannot be trusted any more."""
        self._writer.failure = self._writer.failure or str(error) or type(error).__name__

    # Reading

    def read(self, offset: int, *, bytes_max: int = READ_BYTES_MAX) -> list[Frame]:
        """Return whole frames from the one that holds `offset`: at least one, if there is one."""
        frames: list[Frame] = []
        size = 0
        try:
            for frame in self.frames(offset):
                size += frame.header.size
                if frames and size > bytes_max:
                    break
                frames.append(frame)
        except FrameDamaged:
            if not frames:
                raise
        return frames

    def frames(self, offset: int, end: int | None = None) -> Iterator[Frame]:
        """Yield the frames from the one that holds `offset`, as far as they are acknowledged."""
        limit = self.acknowledged_end if end is None else min(end, self.acknowledged_end)
        return self.reader.frames(offset, limit)

    def offset_at(self, append_ms: int) -> Offset:
        """Return the first offset appended at or after a time, or the end of what is readable."""
        return min(self.reader.offset_at(append_ms), self.acknowledged_end)

    def frames_due(self, start_ms: int, end_ms: int) -> Iterator[Frame]:
        """Yield, in log order, the readable frames with a due time in [start_ms, end_ms)."""
        for frame in self.reader.frames_due(start_ms, end_ms):
            if frame.header.base_offset < self.acknowledged_end:
                yield frame

    # Ending

    def close(self, *, flush: bool = True) -> None:
        """Flush, save side-cars, let go of the folder. A store that failed only lets go.

        So does one that is not to `flush`: its files were replaced.
        """
        if self._is_closed:
            return
        try:
            if flush and self._writer.failure is None:
                self._writer.sync_now()
            if flush and self._writer.failure is None and not self.faults:
                self.jobs.append(SaveJob(self, self._snapshot(self.segments[-1]), is_sealed=False))
                self.run_jobs()
        finally:
            self._is_closed = True
            for segment in self.segments:
                segment.file.close()
            self.folder.close()
