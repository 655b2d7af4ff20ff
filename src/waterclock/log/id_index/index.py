"""The index of message ids of one partition log: which offsets may hold this id?

Derived from the log and kept per segment: the sealed ones are sorted arrays of entries (after a
restart, mapped from their side-cars), the active one is an `IdRuns`; `runs.py` tells what an entry
is. In front of them stands one `IdFilter`, so that a batch of new ids costs one look into it.

Two rules. The answer to `lookup` is complete: every offset inserted under a fingerprint and not
dropped since is in it, so a known id is never taken for new. And it is only a list of *candidates*:
two ids may share a fingerprint, so the caller compares the stored id before it says "duplicate".

The filter cannot forget. Ids of dropped segments stay in it, cost a useless search now and then,
and count until it is full. Then a successor is sized for twice the ids that are left and filled
little by little (`Succession`), so no lookup ever waits or misses.

Beside it, and of no concern to dedup, are the ids published with `allow_duplicate`: `untracked`.
They come and go with the segments, and as many of them are kept at most.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.log.id_index.fingerprint import (
    FEW_IDS,
    STEP_IDS,
    Fingerprints,
    IdFilter,
    Succession,
    fingerprint,
    fingerprints,
)
from waterclock.log.id_index.runs import (
    OFFSET_BITS,
    SEGMENT_OFFSETS_MAX,
    Entries,
    IdEntries,
    IdPieces,
    IdRun,
    IdRuns,
    Matches,
    worth_a_look,
)
from waterclock.log.id_index.untracked import UntrackedIds

__all__ = ["Candidates", "IdIndex", "first_occurrence"]

_FILTER_IDS_MIN: Final = 4_096
"""A node may have a thousand partitions with a few ids each, and each has such a filter: 8 KiB."""
_FILTER_GROWTH: Final = 2
_FILTER_SHRINK: Final = 8

_SHIFT: Final = np.uint64(OFFSET_BITS)
_RELATIVE: Final = np.uint64(SEGMENT_OFFSETS_MAX - 1)


class Candidates(NamedTuple):
    """Offsets that may hold the ids of a batch, by row, and oldest first within a row."""

    rows: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]


_NO_CANDIDATES: Final = Candidates(np.empty(0, np.int64), np.empty(0, np.int64))


def first_occurrence(fps: Fingerprints) -> npt.NDArray[np.int64] | None:
    """Give for each row the first row with the same fingerprint, or None if all are distinct."""
    if len(fps) <= FEW_IDS and len(set(fps.tolist())) == len(fps):
        return None
    ordered = np.sort(fps)
    if not (ordered[1:] == ordered[:-1]).any():
        return None
    order = np.argsort(fps, kind="stable")
    ordered = fps[order]
    is_first = np.concatenate((np.ones(1, np.bool_), ordered[1:] != ordered[:-1]))
    first = np.empty(len(fps), np.int64)
    first[order] = order[is_first][np.cumsum(is_first) - 1]
    return first


class IdIndex:
    """Fingerprints of message ids, and the offsets they were stored at."""

    def __init__(self, seed: int, ids_max: int) -> None:
        self.seed: Final = seed
        self.ids_max: Final = ids_max
        self._sealed: dict[int, IdRun] = {}
        self._unsealed: dict[int, IdRuns] = {}
        self._active: IdRuns | None = None
        self._active_base = 0
        self._filter = IdFilter(_FILTER_IDS_MIN)
        self._succession: Succession | None = None
        self._is_filter_complete = True
        self.untracked: Final = UntrackedIds()

    def __len__(self) -> int:
        return sum(len(segment) for _, segment in self._segments())

    def fingerprints(self, ids: pa.BinaryArray) -> Fingerprints:
        """Give the fingerprints of a column of ids under this index's seed."""
        return fingerprints(ids, self.seed)

    def fingerprint(self, message_id: bytes) -> int:
        """Give the fingerprint of one id under this index's seed."""
        return fingerprint(message_id, self.seed)

    # Segments

    def load(self, base_offset: int, entries: IdEntries) -> None:
        """Add a sealed segment from its side-car; at start-up, in order, before any is opened."""
        self._check_is_newest(base_offset)
        self._sealed[base_offset] = IdRun(entries.tracked)
        self.untracked.load(base_offset, entries.untracked)
        # The filter is made over all of them at once, when the last is known.
        self._is_filter_complete = False

    def open_segment(self, base_offset: int) -> None:
        """Start the segment that takes all inserts from now on; close the one before it first."""
        assert self._active is None, "close the active segment first"
        self._check_is_newest(base_offset)
        self._complete_filter()
        self._active, self._active_base = IdRuns(), base_offset
        self._unsealed[base_offset] = self._active

    def resume(self, entries: IdEntries) -> None:
        """Add what a side-car knew of the active segment; at start-up, as it may take a while."""
        assert self._active is not None, "no segment is open"
        tracked = entries.tracked
        self.untracked.resume(self._active_base, entries.untracked)
        self._active.add_sorted(tracked)
        if self._filter.count + len(tracked) <= self._filter.capacity:
            self._filter.add_sorted(tracked >> _SHIFT)
        else:
            self._filter, self._succession = self._successor().finish(), None

    def active_runs(self) -> IdPieces:
        """Give sorted runs with all entries of the active segment so far; they do not change."""
        assert self._active is not None, "no segment is open"
        return IdPieces(self._active.runs(), self.untracked.runs(self._active_base))

    def close_segment(self) -> IdRuns:
        """End the active segment. You must `replace` it by the `sealed()` entries of the answer.

        To sort and write them takes a while and may happen in a thread; lookups go on meanwhile.
        """
        assert self._active is not None, "no segment is open"
        closed, self._active = self._active, None
        closed.freeze()
        return closed

    def seal(self) -> Entries:
        """End the active segment and give its sorted entries, for the side-car; all in one go."""
        run = self.close_segment().sealed()
        self.replace(self._active_base, run)
        return run

    def replace(
        self, base_offset: int, run: Entries | IdRun, untracked: Entries | None = None
    ) -> None:
        """Take these entries, all or a part of those it had, as those of a closed segment.

        A segment dropped in the meantime stays dropped. Of millions, give an `IdRun` that was made
        on another thread: its directory takes a while.
        """
        assert self._active is None or base_offset != self._active_base, "the segment is active"
        if base_offset in self._sealed or base_offset in self._unsealed:
            self._unsealed.pop(base_offset, None)
            self._sealed[base_offset] = run if isinstance(run, IdRun) else IdRun(run)
            if untracked is not None and not self.untracked.has_dropped(base_offset):
                self.untracked.load(base_offset, untracked)

    def drop(self, base_offset: int) -> None:
        """Forget the ids of a closed segment, if they are not forgotten already."""
        assert self._active is None or base_offset != self._active_base, "the segment is active"
        self._sealed.pop(base_offset, None)
        self._unsealed.pop(base_offset, None)
        self.untracked.drop(base_offset)
        if self._filter.capacity > _FILTER_SHRINK * max(len(self), _FILTER_IDS_MIN):
            self._succession = self._successor()

    def sealed_runs(self) -> list[Entries]:
        """Give the entries of the sealed segments that dedup remembers."""
        return [run.entries for run in self._sealed.values()]

    def knows(self, base_offset: int) -> bool:
        """Tell whether the ids of a segment are here."""
        return base_offset in self._sealed or base_offset in self._unsealed

    def trim(self) -> None:
        """Forget the oldest ids beyond `ids_max`: those of dedup, and the untracked for themselves.

        So a flood of untracked ids costs dedup nothing.
        """
        for base in self.overflow():
            self.drop(base)
        self.untracked.trim(self.ids_max, before=self._active_base)

    def overflow(self) -> list[int]:
        """Give the base offsets of the oldest segments: dropped, they leave at most `ids_max`.

        The active segment is never among them, even where it alone is above the limit.
        """
        excess = len(self) - self.ids_max
        bases = []
        for base, segment in sorted(self._segments()):
            if excess <= 0 or segment is self._active:
                break
            bases.append(base)
            excess -= len(segment)
        return bases

    # Ids

    def lookup(self, fps: Fingerprints) -> Candidates:
        """Find every offset that may hold one of the ids. You must compare the stored ids."""
        self._complete_filter()
        if len(fps) <= FEW_IDS and not any(map(self._filter.might_contain_one, fps.tolist())):
            return _NO_CANDIDATES
        suspects = np.flatnonzero(self._filter.might_contain(fps))
        if not len(suspects):
            return _NO_CANDIDATES
        rows, offsets = [], []
        for base, match in self._find(fps[suspects]):
            if len(match.rows):
                rows.append(suspects[match.rows])
                offsets.append((match.entries & _RELATIVE).view(np.int64) + base)
        if not rows:
            return _NO_CANDIDATES
        row, offset = np.concatenate(rows), np.concatenate(offsets)
        order = np.lexsort((offset, row))
        return Candidates(row[order], offset[order])

    def pieces(self) -> list[tuple[int, Entries]]:
        """Give sorted arrays that hold every entry there is now, tracked or not, and their base.

        They do not change, so a search in them may take its time.
        """
        found = [(base, run.entries) for base, run in self._sealed.items()]
        for base, segment in self._unsealed.items():
            found += [(base, run) for run in segment.runs()]
        return found + self.untracked.pieces()

    def might_know(self, fp: int) -> bool:
        """Say whether the id may have been inserted; False is certain."""
        if not self._is_filter_complete:
            self._complete_filter()
        return self._filter.might_contain_one(fp)

    def lookup_one(self, fp: int) -> list[int]:
        """Find every offset that may hold the id, oldest first. You must compare the stored id."""
        if not self.might_know(fp):
            return []
        offsets: list[int] = self.lookup(np.array([fp], np.uint64)).offsets.tolist()
        return offsets

    def remember(
        self, fps: Fingerprints, offsets: range | npt.NDArray[np.int64], *, is_tracked: bool
    ) -> None:
        """Record the ids just written at these offsets: for dedup, or if not `is_tracked` aside."""
        assert self._active is not None, "no segment is open"
        if len(fps) <= FEW_IDS:
            for fp, offset in zip(fps.tolist(), offsets, strict=True):
                self.remember_one(fp, int(offset), is_tracked=is_tracked)
            return
        places = offsets.start if isinstance(offsets, range) else offsets
        if is_tracked:
            self.insert(fps, places)
        else:
            self.untracked.insert(self._active_base, fps, self._relative(places, len(fps)))

    def remember_one(self, fp: int, offset: int, *, is_tracked: bool) -> None:
        """Record the id just written at this offset; the scalar twin."""
        if is_tracked:
            self.insert_one(fp, offset)
        else:
            self.untracked.insert_one(self._active_base, fp, offset - self._active_base)

    def insert(self, fps: Fingerprints, offsets: int | npt.NDArray[np.int64]) -> None:
        """Record the ids at these offsets, or at consecutive ones from the first offset given."""
        assert self._active is not None, "no segment is open"
        if not len(fps):
            return
        self._active.add(fps, self._relative(offsets, len(fps)))
        self._filter.add(fps)
        if self._succession is not None:
            self._succession.add(fps)
        self._tend_filter()

    def insert_one(self, fp: int, offset: int) -> None:
        """Record one id at this offset."""
        relative = offset - self._active_base
        assert self._active is not None, "no segment is open"
        assert 0 <= relative < SEGMENT_OFFSETS_MAX, "offset outside the active segment"
        self._active.add_one(fp, relative)
        filter_ = self._filter
        filter_.add_one(fp)
        if self._succession is not None:
            self._succession.add_one(fp)
            self._tend_filter()
        elif filter_.count > filter_.capacity:
            self._tend_filter()

    def _relative(self, offsets: int | npt.NDArray[np.int64], count: int) -> npt.NDArray[np.uint64]:
        if isinstance(offsets, int):
            first = offsets - self._active_base
            assert 0 <= first <= SEGMENT_OFFSETS_MAX - count, "offsets outside the active segment"
            return np.arange(first, first + count, dtype=np.uint64)
        assert len(offsets) == count, "an offset for each fingerprint"
        # An offset below the base wraps to a large number.
        relative = (offsets - self._active_base).astype(np.uint64)
        assert int(relative.max()) < SEGMENT_OFFSETS_MAX, "offsets outside the active segment"
        return relative

    def _find(self, fps: Fingerprints) -> Iterator[tuple[int, Matches]]:
        bases = [base for base, run in self._sealed.items() if len(run)]
        runs = [self._sealed[base] for base in bases]
        for index in worth_a_look(runs, fps):
            yield bases[index], runs[index].find(fps)
        for base, segment in self._unsealed.items():
            yield base, segment.find(fps)

    def _segments(self) -> list[tuple[int, IdRun | IdRuns]]:
        return [*self._sealed.items(), *self._unsealed.items()]

    def _check_is_newest(self, base_offset: int) -> None:
        assert all(base < base_offset for base, _ in self._segments()), "segments out of order"

    # The filter and its successor

    def _complete_filter(self) -> None:
        if self._is_filter_complete:
            return
        self._filter = self._successor().finish()
        self._is_filter_complete = True

    def _tend_filter(self) -> None:
        if self._succession is not None:
            successor = self._succession.advance()
            if successor is not None:
                self._filter, self._succession = successor, None
        elif self._filter.count > self._filter.capacity:
            self._succession = self._successor()

    def _successor(self) -> Succession:
        parts = (
            run[start : start + STEP_IDS] >> _SHIFT
            for run in self._runs()
            for start in range(0, len(run), STEP_IDS)
        )
        return Succession(max(_FILTER_IDS_MIN, len(self) * _FILTER_GROWTH), parts)

    def _runs(self) -> list[Entries]:
        runs = [run.entries for run in self._sealed.values()]
        for segment in self._unsealed.values():
            runs += segment.runs()
        return runs

    def check_invariants(self) -> None:
        """Fail if a segment is out of order or an id is not in the filter. Slow."""
        for _, segment in self._segments():
            segment.check_invariants()
        self._complete_filter()
        for run in self._runs():
            assert bool(self._filter.might_contain(run >> _SHIFT).all()), "the filter misses an id"

    def __repr__(self) -> str:
        return (
            f"<IdIndex {len(self)} of {self.ids_max} ids in {len(self._segments())} segments, "
            f"{self._filter!r}>"
        )
