"""Retention and compaction on disk: closed segments rewritten, swapped whole, or removed.

Both are one mechanism: a pass yields a job for each closed segment that may have something to give
up. A job finds out what must live, writes the segment anew into another file (both in the
background, if the owner likes: a closed segment does not change), then swaps it in by renaming;
readers of the old file go on undisturbed. Segments come oldest first, and each swap is durable
before the next is planned: `waterclock.log.compaction` says why. A first segment that holds nothing
any more is removed, and the log starts later.

Scheduled messages may pin a segment for months. So a segment that retention has been over is left
alone until a good part of what was left may go: see `Thinned`.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from waterclock.log.arrays import distinct, is_among
from waterclock.log.compaction import Rewriter, Survivors, latest_offsets
from waterclock.log.frame import Frame, FrameType, encode_header
from waterclock.log.id_index.runs import IdEntries
from waterclock.log.recovery import header_crc
from waterclock.log.retention import Bounds, SegmentFacts, expired_end
from waterclock.log.segment import HEADER_BYTES, encode_segment_header, segment_name
from waterclock.log.sidecars.derived import Derived
from waterclock.log.sidecars.due import NetDelta, open_scheduled
from waterclock.log.sidecars.sidecar import SidecarKind, sidecar_name
from waterclock.model.errors import Damaged, StorageFull
from waterclock.model.ids import Offset
from waterclock.model.units import DAY_MS
from waterclock.storage.folders.folder import TEMPORARY, Bytes, File, create_temporary
from waterclock.storage.folders.write_out import write_in_steps
from waterclock.storage.segment_file import SegmentFile
from waterclock.storage.sidecar_files import load_due, load_ids, save_sidecars

if TYPE_CHECKING:
    from waterclock.storage.partition_store import PartitionStore

Int64s = npt.NDArray[np.int64]
Thinned = WeakKeyDictionary[SegmentFile, bool]
"""Segments from which retention has taken all messages: what is left are scheduled messages, words
about scheduled messages, and ids; of these False says that some may still have to be remembered."""

AGAIN_PART = 4
"""A thinned segment is written anew once one in so many of what was left in it may go."""
_WRITE_BYTES = 8 << 20
_HOLLOW = frozenset({FrameType.NOOP, FrameType.EPOCH})


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a pass over the closed segments must leave."""

    keep_from: Offset
    """Messages from here on are kept, whatever else is said."""
    by_key: bool = False
    """Below that, keep the latest message of each key instead of nothing."""
    tombstone_grace_ms: int = DAY_MS
    """How long a tombstone stays, so that everyone who saw the key sees it go."""


def retained_from(
    store: "PartitionStore",
    config: Bounds,
    *,
    now_ms: int,
    consumed_end: int | None,
    below: int = 0,
) -> Offset:
    """Return the first offset that retention must keep, given what every group has consumed."""
    *closed, active = store.segments
    facts = [
        SegmentFacts(s.end_offset, s.end_position, 0 if s.last is None else s.last.append_ms)
        for s in closed
    ]
    return Offset(
        expired_end(
            facts,
            config,
            start=store.start,
            active_bytes=active.end_position,
            now_ms=now_ms,
            consumed_end=consumed_end,
            below=below,
        )
    )


class Pass:
    """One pass over the closed segments of a store, as they are when this is made.

    Everything below `end` must be durable before the first job: a scheduled message counts as over
    only once the frame that ended it cannot be lost any more in a crash, after the rewrite took the
    scheduled message. In a replicated log it can be lost with its leader until it is committed: a
    pass over what is not has no jobs.
    """

    def __init__(
        self,
        store: "PartitionStore",
        wanted: Wanted,
        *,
        now_ms: int,
        thinned: Thinned | None = None,
    ) -> None:
        store.check_appendable()
        self.end = store.end
        self.wanted = wanted
        self.tombstones_from_ms = now_ms - wanted.tombstone_grace_ms
        # What by_key keeps is not told by scheduled messages and ids.
        self.thinned: Thinned = Thinned() if thinned is None or wanted.by_key else thinned
        self.store = store
        self._bases = [segment.base_offset for segment in store.segments[:-1]]
        self._deltas = [*store.deltas.values()]
        self._active_delta = store.active_delta.frozen()
        views = [(segment, segment.view()) for segment in store.segments if wanted.by_key]
        self._frames = (frame for s, view in views for frame in s.frames(HEADER_BYTES, data=view))

    def jobs(self) -> Iterator["RewriteJob"]:
        """Yield one job for each closed segment in question. You must finish each before the next.

        If one fails, the pass ends: what is dropped from later segments counts on it.
        """
        store, wanted = self.store, self.wanted
        if store.flushed_end < self.end:
            store.sync()
        if store.acknowledged_end < self.end:
            return
        for base in self._bases:
            segment = next((s for s in store.segments if s.base_offset == base), None)
            if segment is None:  # it was hollow, and went with the one before it
                continue
            if wanted.by_key or segment.end_offset <= wanted.keep_from:
                if any(job.base_offset == base for job in store.jobs):
                    store.run_jobs()  # or it would overwrite what the rewrite saves
                job = RewriteJob(store, segment, self)
                yield job
                if not job.is_finished:
                    return

    # Asked by jobs, perhaps elsewhere: only of what does not change any more

    @cached_property
    def open_scheduled(self) -> Int64s:
        """The scheduled messages that were open when the pass began, sorted."""
        return open_scheduled([*self._deltas, self._active_delta.net()])[0]

    @cached_property
    def cancelled(self) -> Int64s:
        """The scheduled messages that had been cancelled when the pass began, sorted."""
        active = self._active_delta.net()
        return distinct(np.concatenate([net.cancelled for net in (*self._deltas, active)]))

    @cached_property
    def expired(self) -> Int64s:
        """The scheduled messages that had been let expire when the pass began, sorted."""
        active = self._active_delta.net()
        return distinct(np.concatenate([net.expired for net in (*self._deltas, active)]))

    @cached_property
    def latest(self) -> Int64s | None:
        """The offset of the latest message of each key, true for all of the pass."""
        return latest_offsets(self._frames) if self.wanted.by_key else None


def rewrites(
    store: "PartitionStore", wanted: Wanted, *, now_ms: int, thinned: Thinned | None = None
) -> Iterator["RewriteJob"]:
    """Yield the jobs of a pass that begins now; see `Pass.jobs`."""
    yield from Pass(store, wanted, now_ms=now_ms, thinned=thinned).jobs()


class RewriteJob:
    """Write one closed segment anew and swap it in."""

    def __init__(self, store: "PartitionStore", segment: SegmentFile, of: Pass) -> None:
        self._store = store
        self._old = segment
        self._pass = of
        self._delta = store.deltas[segment.base_offset]
        deltas = store.deltas.items()
        self._earlier = [net.opened for base, net in deltas if base < segment.base_offset]
        self._seen_from_ms = (
            None if store.ids is None else store.log_time_ms - store.dedup.window_ms
        )
        self._forgot_ids = of.thinned.get(segment)
        """So it was when it was thinned; None: it never was."""
        self._fresh: SegmentFile | None = None
        self._ids: IdEntries | None = None
        self._due: NetDelta | None = None
        self.freed_bytes = 0
        """How much smaller the segment has become; less than nothing if it has grown."""
        self.is_changed = False
        self.has_run = False
        self.is_finished = False

    def __repr__(self) -> str:
        return f"<RewriteJob of segment {self._old.base_offset}, {self.freed_bytes} B freed>"

    def run(self) -> None:
        """Write the new file; may run on another thread. It counts for nothing until `finish`."""
        survivors = self._survivors()
        if self._is_worthwhile(survivors):
            self._write_anew(survivors)
        self.has_run = True

    def _survivors(self) -> Survivors:
        """Return what must be left of the segment, given the scheduled messages open when the pass
        began."""
        retired = self._delta.retired
        is_standing = np.zeros(len(retired), np.bool_)
        for opened in self._earlier:
            is_standing |= is_among(retired, opened)
        return Survivors(
            keep_from=self._pass.wanted.keep_from,
            open_scheduled=self._pass.open_scheduled,
            ended_scheduled=retired[is_standing],
            seen_from_ms=self._seen_from_ms,
            cancelled=self._pass.cancelled,
            expired=self._pass.expired,
            latest=self._pass.latest,
            tombstones_from_ms=self._pass.tombstones_from_ms,
        )

    @property
    def _forgets_ids(self) -> bool:
        """No id of the segment has to be remembered any more."""
        last = self._old.last
        since = self._seen_from_ms
        return since is None or last is None or last.append_ms < since

    def _is_worthwhile(self, survivors: Survivors) -> bool:
        """Tell whether much may go; of what nobody has thinned yet, it may."""
        if self._forgot_ids is None or (self._forgets_ids and not self._forgot_ids):
            return True
        net = self._delta
        before = len(net.opened) + len(net.moved) + len(net.retired)
        left = int(is_among(net.opened, survivors.open_scheduled).sum())
        left += int(is_among(net.moved, survivors.open_scheduled).sum())
        left += len(survivors.ended_scheduled)
        return 0 < before <= AGAIN_PART * (before - left)

    def _write_anew(self, survivors: Survivors) -> None:
        old, store = self._old, self._store
        header = old.header._replace(generation=old.header.generation + 1)
        seed = None if store.ids is None else store.ids.seed
        derived = Derived(old.base_offset, every_bytes=store.log.index_every_bytes, seed=seed)
        file = create_temporary(store.folder, segment_name(old.base_offset))
        fresh = SegmentFile(file, header, derived.index, store.faults)
        try:
            file.allocate(HEADER_BYTES)
            file.write(0, [encode_segment_header(header)])
            self._copy(fresh, derived, survivors)
            file.sync()
        except (StorageFull, Damaged):
            file.close()
            store.folder.remove(segment_name(old.base_offset) + TEMPORARY)
            raise
        assert fresh.end_offset == old.end_offset
        self._fresh = fresh
        self._due = derived.due.net()
        self._ids = None if seed is None else derived.entries()
        self.freed_bytes = old.end_position - fresh.end_position
        if self.is_changed:
            # Of a generation that is not there yet: until the swap they count for nothing.
            with suppress(StorageFull):
                save_sidecars(
                    store.folder, fresh.coverage, index=fresh.index, ids=self._ids, due=self._due
                )
                # The files' pages instead of memory of our own.
                self._due = load_due(store.folder, fresh.coverage) or self._due
                if self._ids is not None:
                    self._ids = load_ids(store.folder, fresh.coverage) or self._ids

    def _copy(self, fresh: SegmentFile, derived: Derived, survivors: Survivors) -> None:
        rewriter = Rewriter(survivors, self._store.log.compression)
        parts: list[Bytes] = []
        position = written = HEADER_BYTES
        for header, body in rewriter.rewrite(self._old.frames(HEADER_BYTES)):
            raw = encode_header(header)
            derived.add(Frame(header, body, body), position)
            position += header.size
            parts += (raw, body)
            fresh.end_offset, fresh.end_position = header.end_offset, position
            fresh.last, fresh.last_header_crc = header, header_crc(memoryview(raw), 0)
            if position - written >= _WRITE_BYTES:
                _write(fresh.file, written, parts, position)
                parts, written = [], position
        _write(fresh.file, written, parts, position)
        self.is_changed = rewriter.is_changed

    def finish(self) -> None:
        """Swap the new file in, or remove what is hollow; on the owner's thread."""
        assert self.has_run, "run it first"
        if self._fresh is not None:
            self._swap(self._fresh)
            left = self._fresh if self.is_changed else self._old
            self._pass.thinned[left] = self._forgets_ids
            _remove_hollow(self._store)
        self.is_finished = True

    def _swap(self, fresh: SegmentFile) -> None:
        folder, name = self._store.folder, segment_name(fresh.base_offset)
        if not self.is_changed:
            fresh.file.close()
            folder.remove(name + TEMPORARY)
            return
        try:
            folder.rename(name + TEMPORARY, name)
        except StorageFull:
            fresh.file.close()
            folder.remove(name + TEMPORARY)
            raise
        folder.sync()
        fresh.file.name = name
        self._take_place(fresh)

    def _take_place(self, fresh: SegmentFile) -> None:
        store = self._store
        assert self._due is not None
        store.segments[store.segments.index(self._old)] = fresh
        store.deltas[fresh.base_offset] = self._due
        if store.ids is not None and self._ids is not None:
            store.ids.replace(fresh.base_offset, *self._ids)
        self._old.file.close()


def _write(file: File, position: int, parts: list[Bytes], end: int) -> None:
    if parts:
        file.allocate(end)
        write_in_steps(file, position, parts)


def _remove_hollow(store: "PartitionStore") -> None:
    """Remove the first segments as long as they hold nothing.

    One frame must be left, even if hollow: it carries the log's epoch and time through a restart.
    """
    while len(store.segments) > 1 + store.segments[-1].is_empty and _is_hollow(store.segments[0]):
        segment = store.segments.pop(0)
        base = segment.base_offset
        store.deltas.pop(base)
        if store.ids is not None:
            store.ids.drop(base)
        names = store.folder.names()
        for kind in SidecarKind:
            if sidecar_name(base, kind) in names:
                store.folder.remove(sidecar_name(base, kind))
        # The segment last: an opening takes side-cars without it for the trace of a loss.
        store.folder.sync()
        store.folder.remove(segment_name(base))
        store.folder.sync()
        segment.file.close()


def _is_hollow(segment: SegmentFile) -> bool:
    return all(frame.header.type in _HOLLOW for frame in segment.frames(HEADER_BYTES))
