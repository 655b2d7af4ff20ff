"""Retention and compaction on disk: closed segments rewritten, swapped whole, or removed.

Both are one mechanism: `rewrites` yields a job for each closed segment that may have something to
give up. A job writes the segment anew into another file (aside, if the owner likes: a closed
segment does not change), then swaps it in by renaming; readers of the old file go on undisturbed.
Segments come oldest first, and each swap is durable before the next is planned:
`waterclock.log.compaction` says why. A first segment that holds nothing any more is removed, and
the log starts later.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from waterclock.log.compaction import Rewriter, Survivors, latest_offsets
from waterclock.log.derived import Derived
from waterclock.log.due import NetDelta, is_among
from waterclock.log.frame import Frame, FrameType, encode_header
from waterclock.log.id_runs import Entries
from waterclock.log.recovery import header_crc
from waterclock.log.retention import SegmentFacts, expired_end
from waterclock.log.segment import HEADER_BYTES, encode_segment_header, segment_name
from waterclock.log.sidecar import SidecarKind, sidecar_name
from waterclock.model.errors import StorageFull
from waterclock.model.ids import Offset
from waterclock.model.sections import RetentionConfig
from waterclock.model.units import DAY_MS
from waterclock.storage.disk import TEMPORARY, Bytes, File, create_temporary
from waterclock.storage.segment_file import SegmentFile
from waterclock.storage.sidecar_files import load_due, save_sidecars

if TYPE_CHECKING:
    from waterclock.storage.partition_store import PartitionStore

Int64s = npt.NDArray[np.int64]

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
    config: RetentionConfig,
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


def rewrites(
    store: "PartitionStore", wanted: Wanted, *, now_ms: int, latest: Int64s | None = None
) -> Iterator["RewriteJob"]:
    """Yield one job for each closed segment in question. You must finish each before the next.

    If one fails, the pass ends: what is dropped from later segments counts on it. With `by_key`,
    `latest` spares reading the whole log here: the offsets of the latest message of each key, true
    for all messages below `keep_from`.
    """
    # A promise counts as over only once the frame that ended it is durable: otherwise a crash could
    # take that frame after the rewrite took the promise.
    store.sync()
    opened, _ = store.open_promises()
    if wanted.by_key and latest is None:
        latest = latest_offsets(store.frames(store.start))
    bases = [s.base_offset for s in store.segments[:-1]]
    for base in bases:
        store.run_jobs()
        segment = next((s for s in store.segments if s.base_offset == base), None)
        if segment is None:  # it was hollow, and went with the one before it
            continue
        if wanted.by_key or segment.end_offset <= wanted.keep_from:
            survivors = _survivors(store, segment, wanted, opened, now_ms)
            job = RewriteJob(store, segment, replace(survivors, latest=latest))
            yield job
            if not job.is_finished:
                return


def _survivors(
    store: "PartitionStore", segment: SegmentFile, wanted: Wanted, opened: Int64s, now_ms: int
) -> Survivors:
    """Return what must be left of a segment, given the promises open when the pass began."""
    earlier = [net.opened for base, net in store.deltas.items() if base < segment.base_offset]
    written = np.concatenate([*earlier, np.zeros(0, dtype=np.int64)])
    return Survivors(
        keep_from=wanted.keep_from,
        open_promises=opened,
        dead_promises=written[~is_among(written, opened)],
        seen_from_ms=None if store.ids is None else store.log_time_ms - store.dedup.window_ms,
        tombstones_from_ms=now_ms - wanted.tombstone_grace_ms,
    )


class RewriteJob:
    """Write one closed segment anew and swap it in."""

    def __init__(self, store: "PartitionStore", segment: SegmentFile, survivors: Survivors) -> None:
        self._store = store
        self._old = segment
        self._survivors = survivors
        self._fresh: SegmentFile | None = None
        self._ids: Entries | None = None
        self._due: NetDelta | None = None
        self.freed_bytes = 0
        """How much smaller the segment has become; less than nothing if it has grown."""
        self.is_changed = False
        self.is_finished = False

    def __repr__(self) -> str:
        return f"<RewriteJob of segment {self._old.base_offset}, {self.freed_bytes} B freed>"

    def run(self) -> None:
        """Write the new file; may run on another thread. It counts for nothing until `finish`."""
        old, store = self._old, self._store
        header = old.header._replace(generation=old.header.generation + 1)
        seed = None if store.ids is None else store.ids.seed
        derived = Derived(old.base_offset, every_bytes=store.log.index_every_bytes, seed=seed)
        file = create_temporary(store.folder, segment_name(old.base_offset))
        fresh = SegmentFile(file, header, derived.index, store.faults)
        try:
            file.allocate(HEADER_BYTES)
            file.write(0, [encode_segment_header(header)])
            self._copy(fresh, derived)
            file.sync()
        except StorageFull:
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
                self._due = load_due(store.folder, fresh.coverage) or self._due

    def _copy(self, fresh: SegmentFile, derived: Derived) -> None:
        compression = self._store.log.compression
        rewriter = Rewriter(self._survivors, compression)
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
        fresh, store = self._fresh, self._store
        assert fresh is not None, "run it first"
        name = segment_name(fresh.base_offset)
        if not self.is_changed:
            fresh.file.close()
            store.folder.remove(name + TEMPORARY)
        else:
            try:
                store.folder.rename(name + TEMPORARY, name)
            except StorageFull:
                fresh.file.close()
                store.folder.remove(name + TEMPORARY)
                raise
            store.folder.sync()
            fresh.file.name = name
            self._take_place(fresh)
        _remove_hollow(store)
        self.is_finished = True

    def _take_place(self, fresh: SegmentFile) -> None:
        store = self._store
        assert self._due is not None
        store.segments[store.segments.index(self._old)] = fresh
        store.deltas[fresh.base_offset] = self._due
        if store.ids is not None and self._ids is not None:
            store.ids.replace(fresh.base_offset, self._ids)
        self._old.file.close()


def _write(file: File, position: int, parts: list[Bytes], end: int) -> None:
    if parts:
        file.allocate(end)
        file.write(position, parts)


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
