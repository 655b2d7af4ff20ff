"""The cold timers follow the segments of the log: sealed, written anew, mapped, removed.

A store changes its segments in the middle of other calls (an append seals one, the log cleaner
swaps one), and tells nobody. Instead, the tables are compared now and then, and what is new is
taken in. In between nothing is missing: until its segment is folded in, a cold timer is in the
overflow.
"""

from collections.abc import Iterator
from typing import NamedTuple

from waterclock.log.sidecars.due import NetDelta
from waterclock.schedule.checkpoint import Checkpoint, SavedSegment
from waterclock.schedule.cold_timers import ColdTimers, SegmentChanges
from waterclock.storage.folders import memory
from waterclock.storage.partition_store import PartitionStore
from waterclock.storage.segment_file import SegmentFile


class LogTimers(NamedTuple):
    """What a log says of its timers at one moment: it may grow while that is read."""

    segments: list[SegmentFile]
    deltas: dict[int, NetDelta]
    active: NetDelta

    @classmethod
    def of(cls, store: PartitionStore) -> "LogTimers":
        """Return those of a store as it is now."""
        return cls(list(store.segments), dict(store.deltas), store.active_delta.net())


class ColdSegments:
    """Keeps `cold` in step with a store."""

    def __init__(self, store: PartitionStore) -> None:
        self.cold = ColdTimers()
        self.is_saved = False
        """The last checkpoint tells of the segments as they are."""
        self.is_torn = False
        """A segment is taken in by half: what is known of timers must not be saved, nor can it be
        taken in anew. For a moment, or for good if that was cut short; the log has all of it."""
        self._store = store
        self._known: dict[int, NetDelta] = {}

    def open(self, checkpoint: Checkpoint | None, found: LogTimers) -> None:
        """Take in all that the log says, at the start, helped by a checkpoint if it is true."""
        deltas = found.deltas
        saved = [] if checkpoint is None else self._borne_out(checkpoint, found)
        for base, segment in zip(deltas, saved, strict=False):
            self.cold.restore(base, _changes(deltas[base]), segment.opened, segment.moved)
            self._known[base] = deltas[base]
        for base, delta in list(deltas.items())[len(saved) :]:
            for _ in self.cold.fold(base, _changes(delta)):
                pass
            self._known[base] = delta
        self.is_saved = len(saved) == len(deltas)
        self.cold.begin()
        active = found.active
        self.cold.retire(active.retired)
        was_open = self.cold.retire(active.moved)
        self.cold.open(active.moved[was_open], active.moved_due[was_open])
        self.cold.open(active.opened, active.opened_due)

    def _borne_out(self, checkpoint: Checkpoint, found: LogTimers) -> list[SavedSegment]:
        """Return what a checkpoint says of the first segments; nothing if it is not of this log."""
        start = found.segments[0].base_offset
        saved = [s for s in checkpoint.segments if s.base_offset >= start]
        if checkpoint.log_id != self._store.log_id or len(saved) > len(found.deltas):
            return []
        for segment, was in zip(found.segments, saved, strict=False):
            delta = found.deltas[segment.base_offset]
            place = segment.base_offset, segment.header.generation, segment.last_header_crc
            if place != was[:3] or not _fits(delta, was):
                return []
        return saved

    @property
    def is_behind(self) -> bool:
        """Some segment is not the one that is known."""
        deltas = self._store.deltas
        return len(deltas) != len(self._known) or any(
            self._known.get(base) is not delta for base, delta in deltas.items()
        )

    def follow(self) -> Iterator[None]:
        """Take in what has become of the segments, yielding between parts."""
        assert not self.is_torn, "half of a segment would be folded twice"
        for base in [base for base in self._known if base not in self._store.deltas]:
            self.cold.drop(base)
            del self._known[base]
        for base, delta in list(self._store.deltas.items()):
            if base not in self._known:
                self.is_torn = True
                yield from self.cold.fold(base, _changes(delta))
                self.is_torn = False
            elif delta is not self._known[base]:
                self.cold.refit(base, _changes(delta))
            else:
                continue
            self._known[base] = delta
            self.is_saved = False

    def release_pages(self) -> None:
        """Leave the side-cars to the page cache."""
        for delta in self._store.deltas.values():
            memory.release_pages(delta.opened)
        for run in [] if self._store.ids is None else self._store.ids.sealed_runs():
            memory.release_pages(run)

    def checkpoint(self) -> Checkpoint:
        """Return what is known of the sealed segments, all of which are durable."""
        segments = []
        for segment in self._store.segments:
            base = segment.base_offset
            if base in self._known and base in self._store.deltas:
                place = base, segment.header.generation, segment.last_header_crc
                segments.append(SavedSegment(*place, *self.cold.open_flags(base)))
        return Checkpoint(self._store.log_id, segments)


def _changes(delta: NetDelta) -> SegmentChanges:
    return SegmentChanges(
        delta.opened, delta.opened_due, delta.retired, delta.moved, delta.moved_due
    )


def _fits(delta: NetDelta, saved: SavedSegment) -> bool:
    return len(saved.opened) == len(delta.opened) and len(saved.moved) == len(delta.moved)
