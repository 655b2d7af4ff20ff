"""Ids that dedup has forgotten, but whose messages may still be pending.

The index of ids in memory spans the dedup window. A message may be promised for longer than that;
who wants to cancel it by its id is helped by the side-cars: those of old segments still list the
ids, sorted. They are mapped when somebody asks, and searched only where promises may be open.
"""

import numpy as np
import numpy.typing as npt

from waterclock.log.fingerprint import Fingerprints
from waterclock.log.id_entries import IdEntries
from waterclock.log.id_runs import SEGMENT_OFFSETS_MAX, Entries, find_in_run
from waterclock.log.ids import Candidates
from waterclock.storage.partition_store import PartitionStore
from waterclock.storage.segment_file import SegmentFile
from waterclock.storage.sidecar_files import load_ids

_RELATIVE = np.uint64(SEGMENT_OFFSETS_MAX - 1)
_NOTHING = IdEntries(np.empty(0, np.uint64), np.empty(0, np.uint64))


class ForgottenIds:
    """Searches the side-cars of segments that the index of a store does not cover any more."""

    def __init__(self, store: PartitionStore) -> None:
        self._store = store
        self._mapped: dict[tuple[int, int], IdEntries] = {}
        """Entries by base offset and generation of the segment."""

    def lookup(self, fps: Fingerprints) -> Candidates:
        """Find offsets that may hold one of the ids. You must compare the stored ids."""
        rows: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)]
        offsets = rows.copy()
        segments = self._forgotten()
        kept = {(s.base_offset, s.header.generation) for s in segments}
        self._mapped = {key: run for key, run in self._mapped.items() if key in kept}
        for segment in segments:
            for entries in self._missing(segment):
                match = find_in_run(entries, fps)
                rows.append(np.asarray(match.rows, np.int64))
                relative = (match.entries & _RELATIVE).astype(np.int64)
                offsets.append(relative + segment.base_offset)
        return Candidates(np.concatenate(rows), np.concatenate(offsets))

    def _forgotten(self) -> list[SegmentFile]:
        """Return the segments that opened promises and whose ids are not in the index."""
        ids, deltas = self._store.ids, self._store.deltas
        assert ids is not None
        return [
            segment
            for segment in self._store.segments[:-1]
            if len(deltas[segment.base_offset].opened)
            and (
                not ids.knows(segment.base_offset) or ids.untracked.has_dropped(segment.base_offset)
            )
        ]

    def _missing(self, segment: SegmentFile) -> list[Entries]:
        """Return the entries of a segment that the index does not have."""
        assert self._store.ids is not None
        tracked, untracked = self._entries(segment)
        # Of untracked ids it may have forgotten more.
        return [untracked] if self._store.ids.knows(segment.base_offset) else [tracked, untracked]

    def _entries(self, segment: SegmentFile) -> IdEntries:
        key = segment.base_offset, segment.header.generation
        entries = self._mapped.get(key)
        if entries is None:
            found = load_ids(self._store.folder, segment.coverage)
            entries = self._mapped[key] = _NOTHING if found is None else found
        return entries
