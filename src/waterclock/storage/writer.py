"""Writing frames at the end of a log and making them durable.

The rules:
- Frames written together share a segment and one system call.
- Append times never step back, so that time can be searched by bisection.
- A segment is begun only after the one before it is durable, whole: so only the last can be torn.
- After any failed fsync, or a failed write that cannot be undone, nothing is written any more: the
  kernel may have dropped the pages, so trying again would only look like success.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from waterclock.log.append import PlannedFrame
from waterclock.log.flush import FlushPlan
from waterclock.log.frame import HEADER_BYTES, FrameHeader, encode_header, header_of
from waterclock.log.recovery import Damage
from waterclock.log.segment import SegmentHeader
from waterclock.log.sidecars.sparse_index import SparseIndex
from waterclock.model.errors import Closed, StorageFailed, StorageFull
from waterclock.model.ids import Epoch, Millis, Offset
from waterclock.model.sections import LogConfig
from waterclock.storage.folders.folder import Bytes, File, Folder
from waterclock.storage.segment_file import SegmentFile, create_segment


class Sync:
    """One fsync: begun and finished by the owner, run by anyone, once.

    The kernel tells of a failed write-back once and then forgets it. So whoever must know that the
    disk is sound hears the fsync in flight first, instead of asking the disk again.
    """

    def __init__(self, file: File, end: int) -> None:
        self.file = file
        self.end = end
        # Not a plain lock: a simulated disk calls back into the owner in the middle of an fsync.
        self._lock = threading.RLock()
        self._is_over = False
        self._error: StorageFailed | None = None

    def __repr__(self) -> str:
        return f"<Sync of {self.file.name} up to {self.end}>"

    def run(self) -> None:
        """Wait for the disk; raise StorageFailed if it failed, also to those who ask later."""
        with self._lock:
            if not self._is_over:
                self._sync()
                self._is_over = True
        if self._error is not None:
            raise StorageFailed(str(self._error)) from self._error

    def _sync(self) -> None:
        try:
            # A segment closed meanwhile was rewritten: sealed, and so durable, before that.
            with suppress(Closed):
                self.file.sync()
        except StorageFailed as error:
            self._error = error


class Writer:
    """Appends to the last of a list of segments."""

    def __init__(
        self, folder: Folder, config: LogConfig, segments: list[SegmentFile], faults: list[Damage]
    ) -> None:
        last = next((s.last for s in reversed(segments) if s.last is not None), None)
        self.epoch = Epoch(0) if last is None else last.epoch
        self.failure: str | None = None
        self.on_full: Callable[[StorageFull], None] = lambda error: None
        self.plan = FlushPlan(
            config.fsync, interval_ms=config.fsync_interval_ms, end=segments[-1].end_offset
        )
        self._folder = folder
        self._config = config
        self._segments = segments
        self._faults = faults
        self._in_flight: Sync | None = None
        self.log_time_ms = Millis(0) if last is None else last.append_ms
        self._preallocate_bytes = min(config.preallocate_bytes, config.segment_bytes)

    def check_usable(self) -> None:
        """Raise StorageFailed if the disk has failed us before."""
        if self.failure is not None:
            raise StorageFailed(f"the log stopped after: {self.failure}; restart the node")

    def has_room(self, frames: list[PlannedFrame], now_ms: int) -> bool:
        """Tell whether frames belong into the active segment or into a new one."""
        segment = self._segments[-1]
        if segment.is_empty:
            return True
        size = span = 0
        for frame in frames:
            size += HEADER_BYTES + len(frame.body)
            span += frame.span
        if now_ms >= segment.header.created_ms + self._config.segment_age_ms:
            return False
        return segment.has_room(size, span, segment_bytes=self._config.segment_bytes)

    def write(self, frames: list[PlannedFrame], now_ms: int) -> Offset:
        """Write frames as one; return the offset of the first."""
        segment = self._segments[-1]
        base = offset = segment.end_offset
        append_ms = Millis(max(now_ms, self.log_time_ms))
        parts: list[Bytes] = []
        headers: list[FrameHeader] = []
        for frame in frames:
            header = self._header(frame, offset, append_ms, segment.log_tag)
            headers.append(header)
            parts += (encode_header(header), frame.body)
            offset = header.end_offset
        with self._stopping_on_failure():
            segment.append(parts, preallocate_bytes=self._preallocate_bytes)
        for header, raw in zip(headers, parts[::2], strict=True):
            segment.accept(header, int.from_bytes(raw[-4:], "little"))
        self.log_time_ms = append_ms
        self.plan.appended_end = offset
        if self.plan.policy == "always":
            self.sync_now()
        return base

    def _header(
        self, frame: PlannedFrame, offset: Offset, append_ms: Millis, log_tag: int
    ) -> FrameHeader:
        due_now = 0 if frame.is_control else append_ms
        return header_of(
            frame.kind,
            frame.body,
            base_offset=offset,
            span=frame.span,
            rows=frame.rows,
            log_tag=log_tag,
            append_ms=append_ms,
            epoch=self.epoch,
            flushed_end=self.plan.flushed_end,
            min_due_ms=frame.min_due_ms or due_now,
            max_due_ms=frame.max_due_ms or due_now,
            flags=frame.flags,
        )

    def roll(self, now_ms: int) -> None:
        """Seal the active segment and begin the next."""
        sealed = self._segments[-1]
        # By the log's time, so that a clock that stepped back leaves segments in order of time.
        created_ms = Millis(max(now_ms, self.log_time_ms))
        header = SegmentHeader(sealed.header.log_id, sealed.end_offset, 0, created_ms)
        index = SparseIndex(self._config.index_every_bytes)
        with self._stopping_on_failure():
            self._hear_fsync()
            sealed.seal()
            self.plan.advance(sealed.end_offset)
            segment = create_segment(self._folder, header, index, self._faults)
        self._segments.append(segment)

    def begin_sync(self, now_ms: int) -> Sync | None:
        """Return the fsync to run now, if one is due and none is in flight.

        Raises StorageFailed after a failure: who waits for an fsync would wait for ever.
        """
        self.check_usable()
        if not self.plan.wants_sync(now_ms):
            return None
        end = self.plan.start(now_ms)
        self._in_flight = Sync(self._segments[-1].file, end)
        return self._in_flight

    def finish_sync(self, sync: Sync, error: StorageFailed | None = None) -> None:
        """Tell how an fsync ended. You must report every one that was begun."""
        self._in_flight = None
        if error is not None:
            self.failure = str(error)
            return
        self.plan.finish(sync.end)

    def sync_now(self) -> None:
        """Make everything written durable before returning."""
        with self._stopping_on_failure():
            self._hear_fsync()
            self._segments[-1].file.sync()
        self.plan.advance(self.plan.appended_end)

    def _hear_fsync(self) -> None:
        """Learn how the fsync in flight ends before asking the disk for another one."""
        if self._in_flight is not None:
            self._in_flight.run()

    @contextmanager
    def _stopping_on_failure(self) -> Iterator[None]:
        """Run something after whose failure nothing may be written; a full disk is no failure."""
        self.check_usable()
        try:
            yield
        except StorageFull as error:
            self.on_full(error)
            raise
        except (StorageFailed, Closed) as error:
            self.failure = str(error)
            raise
