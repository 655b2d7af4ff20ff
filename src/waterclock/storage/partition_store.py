"""One partition's log on disk: append, flush, read, and all that is derived from it kept in step.

One thread owns a store and calls all of it, with exceptions made for slow work: `Sync.run` (the
fsync), `SaveJob.run` (side-cars) and `RewriteJob.run` (compaction) may run on another thread,
between a begin and a finish on the owner's. So the same code runs under an event loop, in a plain
loop, and, without any thread, on a simulated disk.

Nothing is acknowledged or readable before it is flushed, unless the policy is `interval`. A faulty
partition (see `opening`) is readable around its damage and takes no appends. Whether a message is
*due* is asked of the clock as it is, even where that clock has stepped back.

The rules of writing:
- Frames written together share a segment and one system call.
- Append times never step back, so that time can be searched by bisection.
- A segment is begun only after the one before it is durable, whole: so only the last can be torn.
- After any failed fsync, or a failed write that cannot be undone, nothing is written any more: the
  kernel may have dropped the pages, so trying again would only look like success.
"""

from collections import deque
from collections.abc import Callable, Iterator

import numpy as np
import numpy.ma  # np.unique and np.isin would import it in the middle of an append
import numpy.typing as npt
import pyarrow.compute  # noqa: F401 - and so would the first filter or take

from waterclock.log.append import (
    Appended,
    Part,
    PlannedFrame,
    appended_of,
    assigned_offsets,
    repeats_in,
    split_by_due,
)
from waterclock.log.batch import Batch
from waterclock.log.frame import FLAG_UNTRACKED, Frame, FrameHeader, FrameType, encode_header
from waterclock.log.frame import HEADER_BYTES as FRAME_HEADER_BYTES
from waterclock.log.id_index.index import IdIndex
from waterclock.log.recovery import Damage
from waterclock.log.scheduled import (
    ScheduledRows,
    cancel_frame,
    fired_frame,
    reschedule_frame,
    scheduled_rows,
)
from waterclock.log.segment import SegmentHeader
from waterclock.log.sidecars.due import DueDelta, NetDelta, endings_of, open_scheduled
from waterclock.log.sidecars.endings import Endings
from waterclock.log.sidecars.sparse_index import SparseIndex
from waterclock.model.errors import (
    BadInput,
    Closed,
    PartitionFaulty,
    StorageFailed,
    StorageFull,
)
from waterclock.model.ids import Epoch, Millis, Offset
from waterclock.model.sections import DedupConfig, LogConfig
from waterclock.storage.flush import FlushPlan
from waterclock.storage.folders.folder import Bytes, Folder
from waterclock.storage.fsyncs import Sync
from waterclock.storage.jobs import SaveJob, Snapshot
from waterclock.storage.lone_append import append_lone
from waterclock.storage.reader import READ_BYTES_MAX, Reader
from waterclock.storage.segment_file import Guard, SegmentFile, create_segment

Int64s = npt.NDArray[np.int64]
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
        """Net effect on the open scheduled messages of each sealed segment, by base offset."""
        self.faults = faults
        """Stretches of acknowledged messages that cannot be read; not empty means faulty."""
        self.jobs: deque[SaveJob] = deque()
        """Work for the background: run each, then finish it here; see `run_jobs`."""
        self.active_delta = active_delta
        self.reader = Reader(segments)
        self.on_full: Callable[[StorageFull], None] = lambda error: None
        """Called when there was no room for something; the caller gets the error as well."""
        last = next((s.last for s in reversed(segments) if s.last is not None), None)
        self.log_time_ms = Millis(0) if last is None else last.append_ms
        """When the last frame was appended: the log's own time, which never steps back."""
        self.epoch = Epoch(0) if last is None else last.epoch
        """The leader epoch under which frames are written."""
        self.plan = FlushPlan(
            log.fsync, interval_ms=log.fsync_interval_ms, end=segments[-1].end_offset
        )
        """How far it is written, flushed and committed; changed here only."""
        self._preallocate_bytes = min(log.preallocate_bytes, log.segment_bytes)
        self.in_flight: Sync | None = None
        """The fsync that was begun and not finished."""
        self._failure: str | None = None
        self._checkpoint_position = segments[-1].end_position
        self._checkpoint: Snapshot | None = None
        self._is_closed = False
        # What passes is raised before anything was written.
        self.in_step = Guard(self.fail, passing=(StorageFull, BadInput))
        """In here write and note what was written, both or neither: else the log would hold, and
        acknowledge, what its own indexes do not know. Cut short between, the store stops."""
        self._io = Guard(self._note_failure)
        """After what fails in here nothing may be written; a full disk is no failure."""

    def __repr__(self) -> str:
        state = "faulty" if self.faults else self._failure or "ok"
        return f"<PartitionStore [{self.start}, {self.end}) {len(self.segments)} segments, {state}>"

    # What is there

    @property
    def start(self) -> Offset:
        """The first offset still in the log."""
        return self.segments[0].base_offset

    @property
    def end(self) -> Offset:
        """One past the last offset written, flushed or not."""
        return self.segments[-1].end_offset

    @property
    def acknowledged_end(self) -> Offset:
        """Messages below this may be acknowledged; reads end here."""
        return Offset(self.plan.acknowledged_end)

    def commit(self, end: int) -> None:
        """Show readers what is committed below `end`; from the first call on, nothing above it.

        You must call it before anybody reads a replicated log, and step its `FlushQueue` after it.
        """
        self.plan.commit(end)

    @property
    def has_failed(self) -> bool:
        """The disk did, and nothing can be written any more."""
        return self._failure is not None

    @property
    def flushed_end(self) -> Offset:
        """Everything below this is durable here; in a replicated log not yet committed."""
        return Offset(self.plan.flushed_end)

    @property
    def log_id(self) -> bytes:
        """The identity of this log, the same in all of its segments and replicas."""
        return self.segments[0].header.log_id

    def open_scheduled(self) -> tuple[Int64s, Int64s]:
        """Return (offsets, due times) of the scheduled messages neither fired nor cancelled."""
        return open_scheduled([*self.deltas.values(), self.active_delta.net()])

    def endings(self, offsets: Int64s) -> Endings:
        """Return how these ended that are not open, as far as that is remembered."""
        return endings_of([*self.deltas.values(), self.active_delta], offsets)

    # Appending

    def append(self, batch: Batch, *, now_ms: int, allow_duplicate: bool = False) -> Appended:
        """Write a batch; acknowledge it once `acknowledged_end` reaches the answer's `durable_at`.

        Messages whose id was published within the dedup window are not written again.
        """
        self.check_appendable()
        if batch.count == 1 and batch.due_ms is None:
            return append_lone(self, batch, now_ms=now_ms, allow_duplicate=allow_duplicate)
        fps, repeats = None, None
        if self.ids is not None:
            oldest_ms = max(now_ms, self.log_time_ms) - self.dedup.window_ms
            fps, repeats = repeats_in(
                batch,
                self.ids,
                self.reader.ids,
                oldest_ms=oldest_ms,
                allow_duplicate=allow_duplicate,
            )
        fresh = batch
        if repeats is not None:
            is_new = repeats.is_new
            if not bool(is_new.any()):
                return appended_of(repeats, range(0), self.end)
            fresh = batch.select(is_new, self.log.compression)
            fps = None if fps is None else fps[is_new]
        flags = FLAG_UNTRACKED if allow_duplicate else 0
        parts = split_by_due(fresh, now_ms=now_ms, flags=flags, compression=self.log.compression)
        with self.in_step:
            base = self._write([part.frame for part in parts], now_ms)
            written = assigned_offsets(parts, fresh.count, base)
            if self.ids is not None and fps is not None:
                self.ids.remember(fps, written, is_tracked=not allow_duplicate)
            scheduled = self._schedule(parts[-1])
        return appended_of(repeats, written, self.end, scheduled)

    def _schedule(self, part: Part) -> tuple[Int64s, Int64s] | None:
        """Note the messages just written, the last of the log, if they are for later."""
        if part.frame.kind is not FrameType.SCHEDULED:
            return None
        assert part.batch.due_ms is not None
        offsets = np.arange(self.end - part.batch.count, self.end, dtype=np.int64)
        # A copy: the column is a view that would keep the whole batch in memory.
        due_ms = part.batch.due_ms.copy()
        self.active_delta.open(offsets, due_ms)
        return offsets, due_ms

    def fire(self, scheduled: Int64s | ScheduledRows, *, now_ms: int) -> Appended:
        """Write scheduled messages (by offset, or read already) as deliverable, in this order."""
        self.check_appendable()
        if not isinstance(scheduled, ScheduledRows):
            scheduled = scheduled_rows(self.reader.rows(scheduled), scheduled)
        frame = fired_frame(scheduled, self.log.compression)
        with self.in_step:
            base = self._write([frame], now_ms)
            self.active_delta.retire(scheduled.offsets.copy())
        return appended_of(None, range(base, self.end), self.end)

    def cancel(self, offsets: Int64s, *, now_ms: int, has_expired: bool = False) -> Offset:
        """Write that these open messages will not fire; return the offset to be flushed."""
        self.check_appendable()
        with self.in_step:
            self._write([cancel_frame(offsets, has_expired=has_expired)], now_ms)
            self.active_delta.cancel(offsets.copy(), has_expired=has_expired)
        return self.end

    def reschedule(self, offsets: Int64s, due_ms: Int64s, *, now_ms: int) -> Offset:
        """Write new due times for these open messages; return the offset to be flushed."""
        self.check_appendable()
        with self.in_step:
            self._write([reschedule_frame(offsets, due_ms)], now_ms)
            self.active_delta.move(offsets.copy(), due_ms.copy())
        return self.end

    def begin_epoch(self, epoch: Epoch, *, now_ms: int) -> Offset:
        """Begin a leader epoch with a frame of its own; return the offset to be flushed."""
        self.check_appendable()
        if epoch <= self.epoch:
            raise BadInput(f"epoch {epoch} is not after {self.epoch}")
        before, self.epoch = self.epoch, epoch
        try:
            self._write([PlannedFrame(FrameType.EPOCH, _NO_BODY, 1, 0, 0, 0)], now_ms)
        except StorageFull:
            self.epoch = before
            raise
        return self.end

    def _write(self, frames: list[PlannedFrame], now_ms: int) -> Offset:
        """Write frames as one; return the offset of the first."""
        size = span = 0
        for frame in frames:
            size += FRAME_HEADER_BYTES + len(frame.body)
            span += frame.span
        self.make_room(size, span, now_ms)
        base = offset = self.end
        append_ms = Millis(max(now_ms, self.log_time_ms))
        headers: list[FrameHeader] = []
        parts: list[Bytes] = []
        for frame in frames:
            header = frame.header_at(
                offset,
                append_ms=append_ms,
                log_tag=self.segments[-1].log_tag,
                epoch=self.epoch,
                flushed_end=self.plan.flushed_end,
            )
            headers.append(header)
            parts += (encode_header(header), frame.body)
            offset = header.end_offset
        self.write_frames(headers, parts)
        return base

    def make_room(self, size: int, span: int, now_ms: int) -> None:
        """Begin a segment, if frames of this size do not belong into the active one."""
        segment, log = self.segments[-1], self.log
        is_young = now_ms < segment.header.created_ms + log.segment_age_ms
        if is_young and segment.has_room(size, span, segment_bytes=log.segment_bytes):
            return
        if not segment.is_empty:
            self.roll(now_ms)

    def write_lone(self, raw: bytes, append_ms: Millis) -> None:
        """Write a whole frame of one message, of the present epoch, into the active segment."""
        is_always = self.log.fsync == "always"
        if is_always:
            self._take_checkpoint()
            self._save_checkpoint()
        segment = self.segments[-1]
        try:
            segment.append_lone(raw, append_ms, preallocate_bytes=self._preallocate_bytes)
        except BaseException as error:
            self._note_failure(error)
            raise
        self.log_time_ms = append_ms
        self.plan.appended_end = segment.end_offset
        if is_always:
            self._sync()

    def write_frames(self, headers: list[FrameHeader], parts: list[Bytes]) -> None:
        """Write frames, header and body in turn, into the active segment with one system call."""
        is_always = self.log.fsync == "always"
        if is_always:
            # Before the write: what is derived from the frames before it is complete here.
            self._take_checkpoint()
            self._save_checkpoint()
        segment = self.segments[-1]
        with self._io:
            segment.append(parts, preallocate_bytes=self._preallocate_bytes)
        for header, raw in zip(headers, parts[::2], strict=True):
            segment.accept(header, int.from_bytes(raw[-4:], "little"))
        self.log_time_ms, self.epoch = headers[-1].append_ms, headers[-1].epoch
        self.plan.appended_end = segment.end_offset
        if is_always:
            self._sync()

    def roll(self, now_ms: int) -> None:
        """Seal the active segment, if it holds anything, and begin the next."""
        self.check_appendable()
        sealed = self.segments[-1]
        if sealed.is_empty:
            return
        # By the log's time, so that a clock that stepped back leaves segments in order of time.
        created_ms = Millis(max(now_ms, self.log_time_ms))
        header = SegmentHeader(sealed.header.log_id, sealed.end_offset, 0, created_ms)
        index = SparseIndex(self.log.index_every_bytes)
        with self._io:
            self._await_fsync()
            sealed.seal()
            self.plan.advance(sealed.end_offset)
            self.segments.append(create_segment(self.folder, header, index, self.faults))
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
        self._check_usable()
        if self.faults:
            raise PartitionFaulty(
                f"{len(self.faults)} damaged stretches, first {self.faults[0]}: restore the files "
                "from a copy, or accept the loss with `waterclock log repair`"
            )

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise StorageFailed(f"the log stopped after: {self._failure}; restart the node")

    # Flushing

    def begin_sync(self, now_ms: int) -> Sync | None:
        """Return the fsync to run now, if one is due and none is in flight.

        `now_ms` is of a monotonic clock: it measures the interval between fsyncs. Raises
        StorageFailed after a failure: a caller that waits for an fsync would wait for ever.
        """
        self._check_usable()
        plan = self.plan
        if not plan.wants_sync(now_ms):
            return None
        self.in_flight = sync = Sync(self.segments[-1].file, plan.start(now_ms))
        # Taken now, saved when the fsync has succeeded: side-cars speak of durable frames only.
        self._take_checkpoint()
        return sync

    def finish_sync(self, sync: Sync, error: StorageFailed | None = None) -> None:
        """Tell how an fsync ended. You must report every one that was begun."""
        self.in_flight = None
        if error is not None:
            self._failure = str(error)
            return
        self.plan.finish(sync.end)
        self._save_checkpoint()

    def sync(self) -> None:
        """Make everything written durable before returning."""
        self.check_appendable()
        self._sync()

    def _sync(self) -> None:
        with self._io:
            self._await_fsync()
            self.segments[-1].file.sync()
        self.plan.advance(self.plan.appended_end)

    def _await_fsync(self) -> None:
        """Learn how the fsync in flight ends before asking the disk for another one."""
        if self.in_flight is not None:
            self.in_flight.run()

    def _note_failure(self, error: BaseException) -> None:
        if isinstance(error, StorageFull):
            self.on_full(error)
        elif isinstance(error, StorageFailed | Closed):
            self._failure = str(error)

    def _take_checkpoint(self) -> None:
        segment = self.segments[-1]
        if segment.end_position - self._checkpoint_position >= self.log.checkpoint_every_bytes:
            self._checkpoint = self._snapshot(segment)
            self._checkpoint_position = segment.end_position

    def _save_checkpoint(self) -> None:
        if self._checkpoint is not None:
            self.jobs.append(SaveJob(self, self._checkpoint, is_sealed=False))
            self._checkpoint = None

    def run_jobs(self) -> None:
        """Do, here and now, the work for the background."""
        while self.jobs:
            job = self.jobs.popleft()
            try:
                job.run()
            except StorageFailed as error:
                self.fail(error)
                raise
            job.finish()

    def fail(self, error: BaseException) -> None:
        """Take no more appends: the disk, or what is kept beside it, cannot be trusted any more."""
        self._failure = self._failure or str(error) or type(error).__name__

    # Reading

    def read(self, offset: int, *, bytes_max: int = READ_BYTES_MAX) -> list[Frame]:
        """Return whole frames from the one that holds `offset`: at least one, if there is one."""
        return self.reader.read(offset, self.acknowledged_end, bytes_max=bytes_max)

    def frames(self, offset: int, end: int | None = None) -> Iterator[Frame]:
        """Yield the frames from the one that holds `offset`, as far as they are acknowledged."""
        limit = self.acknowledged_end if end is None else min(end, self.acknowledged_end)
        return self.reader.frames(offset, limit)

    def offset_at(self, append_ms: int) -> Offset:
        """Return the first offset appended at or after a time, or the end of what is readable."""
        return min(self.reader.offset_at(append_ms), self.acknowledged_end)

    # Ending

    def close(self, *, flush: bool = True) -> None:
        """Flush, save side-cars, let go of the folder. A store that failed only lets go.

        So does one that is not to `flush`: its files were replaced.
        """
        if self._is_closed:
            return
        try:
            if flush and self._failure is None:
                self._sync()
            if flush and self._failure is None and not self.faults:
                self.jobs.append(SaveJob(self, self._snapshot(self.segments[-1]), is_sealed=False))
                self.run_jobs()
        finally:
            self._is_closed = True
            for segment in self.segments:
                segment.file.close()
            self.folder.close()
