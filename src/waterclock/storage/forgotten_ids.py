"""Ids that the index has forgotten, but whose messages may still be pending.

The index of ids in memory spans the dedup window, and holds so many at most. A message may be
scheduled for longer than that; a cancel by its id is answered from the side-cars: those of old
segments still list the ids, sorted. They are mapped when they are asked for, and searched only
where scheduled messages may be open. A segment may have no side-car, not yet or not any more: then
it is read.
"""

from typing import NamedTuple

from waterclock.log.id_index.runs import Entries, IdEntries
from waterclock.log.segment import HEADER_BYTES
from waterclock.log.sidecars.derived import Derived
from waterclock.storage.partition_store import PartitionStore
from waterclock.storage.segment_file import SegmentFile
from waterclock.storage.sidecar_files import load_ids


class Forgotten(NamedTuple):
    """A segment of whose ids the index lacks some."""

    segment: SegmentFile
    data: memoryview
    """Its bytes: they stay, also if it is rewritten before they are read."""
    has_tracked: bool
    """The index has those that dedup remembers."""

    def missing(self, entries: IdEntries) -> list[Entries]:
        """Return of all entries of the segment those that the index lacks."""
        return [entries.untracked] if self.has_tracked else [*entries]


class ForgottenIds:
    """Knows the ids of segments that the index of a store does not cover any more."""

    def __init__(self, store: PartitionStore) -> None:
        self._store = store
        self._mapped: dict[tuple[int, int], IdEntries] = {}
        """Entries by base offset and generation of the segment."""

    def segments(self) -> list[Forgotten]:
        """Return the segments that opened scheduled messages and of whose ids the index lacks
        some."""
        ids, deltas = self._store.ids, self._store.deltas
        assert ids is not None
        found = []
        for segment in self._store.segments[:-1]:
            base = segment.base_offset
            has_tracked = ids.knows(base)
            has_all = has_tracked and not ids.untracked.has_dropped(base)
            if len(deltas[base].opened) and not has_all:
                found.append(Forgotten(segment, segment.view(), has_tracked))
        kept = {_key(each.segment) for each in found}
        self._mapped = {key: run for key, run in self._mapped.items() if key in kept}
        return found

    def mapped(self, forgotten: Forgotten) -> IdEntries | None:
        """Return the entries of a segment as they lie in its side-car; None: you must `derive`."""
        key = _key(forgotten.segment)
        entries = self._mapped.get(key)
        if entries is None:
            entries = load_ids(self._store.folder, forgotten.segment.coverage)
            # That there is none is not for ever: it may be about to be saved.
            if entries is not None:
                self._mapped[key] = entries
        return entries

    def derive(self, forgotten: Forgotten) -> IdEntries:
        """Read the entries from the segment itself; slow, and may be done on another thread."""
        store, segment = self._store, forgotten.segment
        assert store.ids is not None
        derived = Derived(
            segment.base_offset, every_bytes=store.log.index_every_bytes, seed=store.ids.seed
        )
        position = HEADER_BYTES
        for frame in segment.frames(position, data=forgotten.data):
            derived.add(frame, position)
            position += frame.header.size
        return derived.entries()


def _key(segment: SegmentFile) -> tuple[int, int]:
    return segment.base_offset, segment.header.generation
