"""The ids of one segment: sorted runs of 64-bit entries.

An *entry* is `fingerprint << 24 | relative offset`: sorting entries sorts by fingerprint, and equal
fingerprints by age. The entries of a fingerprint are those in `[key, key + 2^24)`, where its *key*
is `fingerprint << 24`.

A sealed segment is one sorted array, as in its side-car. A binary search in millions
of entries waits for memory twenty times in a row, so an `IdRun` adds a directory: for each value of
the high bits, where the entries with it begin. Fingerprints are evenly spread, so those are about a
dozen, and a search is one look into the directory and one at the short window it points to.

The active segment cannot afford to stay one array, so `IdRuns` is a small log-structured merge
tree (O'Neil and others, 1996): new entries join a young run, a full young run becomes a run of tier
0, and four runs of a tier become one of the next. Merging a million entries in one go would be
felt, so each added entry pays for merging a few, and the old runs serve until the new one is whole.
Entries that come one by one wait in a dict until they make a run.

A `.ids` side-car holds the entries of one segment as two sorted arrays (`IdEntries`): of the ids
that dedup remembers, and of those published with `allow_duplicate`, which it does not, but by which
somebody may want to cancel a message.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from waterclock.log.id_index.fingerprint import FINGERPRINT_BITS, Fingerprints

__all__ = [
    "OFFSET_BITS",
    "SEGMENT_OFFSETS_MAX",
    "Entries",
    "IdEntries",
    "IdPieces",
    "IdRun",
    "IdRuns",
    "Matches",
    "find_in_run",
    "merged",
    "ranges_in_run",
    "worth_a_look",
]

Entries: TypeAlias = npt.NDArray[np.uint64]

OFFSET_BITS: Final = 64 - FINGERPRINT_BITS
SEGMENT_OFFSETS_MAX: Final = 1 << OFFSET_BITS
_COUNT_BYTES: Final = 8

_DIRECTORY_IDS_MIN: Final = 131_072
"""A smaller run fits in the processor's cache, where binary search is quick."""
_DIRECTORY_STRIDE: Final = 8
"""Entries per value of the directory's high bits: from this many to twice as many, on average."""
_WINDOW_MAX: Final = 64
"""No directory for a run that needs a wider window: one id stored over and over makes one."""
_FEW: Final = 4
"""Up to so many fingerprints are sought in all runs at once by binary search, more by directory."""
_SINGLES_MAX: Final = 4_096
_YOUNG_IDS_MAX: Final = 16_384
_TIER_RUNS: Final = 4
_TIERS: Final = 4
"""The runs of the last tier, of a million entries, stay as they are until the segment is sealed."""
_MERGE_PACE: Final = 16
"""Entries merged for each one added, while there is something to merge. More leaves fewer runs to
search, fewer makes inserts during a merge cheaper; at the number of tiers merging falls behind."""
_MERGE_STEP_IDS: Final = 16_384

_SHIFT: Final = np.uint64(OFFSET_BITS)
_RELATIVE: Final = np.uint64(SEGMENT_OFFSETS_MAX - 1)
_NO_ENTRIES: Final = np.empty(0, np.uint64)


class Matches(NamedTuple):
    """Entries whose fingerprint was asked for: `entries[i]` answers `fps[rows[i]]`."""

    rows: npt.NDArray[np.int64]
    entries: Entries


_NO_MATCHES: Final = Matches(np.empty(0, np.int64), _NO_ENTRIES)


class Ranges(NamedTuple):
    """Where in a sorted array the entries of fingerprints are: `[starts[i], ends[i])`."""

    rows: npt.NDArray[np.int64]
    """Which fingerprints; only those that are there, in ascending order."""
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]

    def matches(self, run: Entries) -> Matches:
        """Return the entries, laid end to end."""
        counts = self.ends - self.starts
        steps = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
        return Matches(np.repeat(self.rows, counts), run[np.repeat(self.starts, counts) + steps])

    def parts(self, entries_max: int) -> Iterator["Ranges"]:
        """Cut them into parts of at most so many entries, in the same order."""
        ends = (self.ends - self.starts).cumsum()
        shift = self.starts - np.concatenate(([0], ends[:-1]))
        for begin in range(0, int(ends[-1]) if len(ends) else 0, entries_max):
            first, last = ends.searchsorted([begin, begin + entries_max - 1], "right").tolist()
            part = slice(first, last + 1)
            yield Ranges(
                self.rows[part],
                np.maximum(self.starts[part], begin + shift[part]),
                np.minimum(self.ends[part], begin + entries_max + shift[part]),
            )


def ranges_in_run(run: Entries, fps: Fingerprints) -> Ranges:
    """Find where in a sorted array the entries of the fingerprints are, by binary search."""
    if not len(run):
        return _NO_RANGES
    keys = fps << _SHIFT
    starts = run.searchsorted(keys)
    # Past the end, `clip` gives an entry below the key: the difference wraps and is no match.
    rows = np.flatnonzero(run.take(starts, mode="clip") - keys <= _RELATIVE)
    if not len(rows):
        return _NO_RANGES
    return Ranges(rows, starts[rows], run.searchsorted(keys[rows] | _RELATIVE, "right"))


_NO_RANGES: Final = Ranges(*[np.empty(0, np.int64)] * 3)


def find_in_run(run: Entries, fps: Fingerprints) -> Matches:
    """Find all entries of a sorted array that have one of the fingerprints, by binary search."""
    found = ranges_in_run(run, fps)
    return found.matches(run) if len(found.rows) else _NO_MATCHES


class IdRun:
    """A sorted array of entries, and for a large one its directory."""

    def __init__(self, entries: Entries) -> None:
        # A plain array: indexing `np.memmap` makes an object of that class each time.
        self.entries: Final = np.asarray(entries)
        self._windows: Entries | None = None
        if len(entries) < _DIRECTORY_IDS_MIN:
            return
        high_bits = (len(entries) // _DIRECTORY_STRIDE).bit_length() - 1
        self._high_shift: Final = np.uint64(64 - high_bits)
        edges = np.arange(1 << high_bits, dtype=np.uint64) << self._high_shift
        starts = self.entries.searchsorted(edges)
        widest = int(np.diff(starts, append=len(entries)).max())
        if widest <= _WINDOW_MAX:
            self._starts: Final = np.minimum(starts, len(entries) - widest).astype(np.uint32)
            self._windows = np.lib.stride_tricks.sliding_window_view(self.entries, widest)

    def __len__(self) -> int:
        return len(self.entries)

    def find(self, fps: Fingerprints) -> Matches:
        """Find all entries that have one of the fingerprints, oldest first for each."""
        if self._windows is None:
            return find_in_run(self.entries, fps)
        keys = fps << _SHIFT
        gaps = self._windows[self._starts[(keys >> self._high_shift).view(np.int64)]]
        gaps -= keys[:, np.newaxis]
        hits = np.flatnonzero(gaps <= _RELATIVE)
        if not len(hits):
            return _NO_MATCHES
        rows = hits // gaps.shape[1]
        return Matches(rows, keys[rows] + gaps.ravel()[hits])

    def check_invariants(self) -> None:
        """Fail if the entries are out of order."""
        assert bool((self.entries[1:] >= self.entries[:-1]).all()), "a run is out of order"

    def __repr__(self) -> str:
        return f"<IdRun {len(self)} ids{'' if self._windows is None else ' with directory'}>"


def worth_a_look(runs: Sequence[IdRun], fps: Fingerprints) -> Sequence[int]:
    """Give the indices of the runs, none of them empty, in which to `find` the fingerprints.

    For a few fingerprints, such as a filter's false alarms, one look at all runs together costs
    less than to find nothing in each.
    """
    if len(fps) > _FEW or not runs:
        return range(len(runs))
    keys = fps << _SHIFT
    nearest = [run.entries.take(run.entries.searchsorted(keys), mode="clip") for run in runs]
    gaps = np.concatenate(nearest).reshape(len(runs), len(fps)) - keys
    hits = np.flatnonzero(gaps <= _RELATIVE)
    return sorted(set((hits // len(fps)).tolist()))


def merged(runs: Sequence[Entries]) -> Entries:
    """Merge sorted arrays into a new one: timsort finds them end to end, and merges them."""
    together = np.concatenate([_NO_ENTRIES, *runs])
    together.sort(kind="stable")
    return together


class IdRuns:
    """The entries of the active segment."""

    def __init__(self) -> None:
        self._singles: dict[int, list[int]] = {}
        self._single_count = 0
        self._young = IdRun(_NO_ENTRIES)
        self._tiers: list[list[IdRun]] = [[] for _ in range(_TIERS)]
        self._merges: list[_Merge | None] = [None] * _TIERS
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, fps: Fingerprints, relative_offsets: npt.NDArray[np.uint64]) -> None:
        """Add an entry for each fingerprint."""
        entries = fps << _SHIFT
        entries |= relative_offsets
        entries.sort()
        self.add_sorted(entries)

    def add_sorted(self, entries: Entries) -> None:
        """Add ready entries, in ascending order."""
        self._count += len(entries)
        self._add_run(entries)

    def add_one(self, fp: int, relative_offset: int) -> None:
        self._singles.setdefault(fp, []).append(fp << OFFSET_BITS | relative_offset)
        self._count += 1
        self._single_count += 1
        if self._single_count >= _SINGLES_MAX:
            self._flush_singles()

    def find(self, fps: Fingerprints) -> Matches:
        """Find all entries that have one of the fingerprints, in no particular order."""
        runs = self._runs()
        matches = [runs[index].find(fps) for index in worth_a_look(runs, fps)]
        if self._singles:
            matches.append(self._find_singles(fps))
        matches = [match for match in matches if len(match.rows)]
        if not matches:
            return _NO_MATCHES
        return Matches(
            np.concatenate([match.rows for match in matches]),
            np.concatenate([match.entries for match in matches]),
        )

    def runs(self) -> list[Entries]:
        """Give sorted arrays that together hold every entry; they never change."""
        self._flush_singles()
        return [run.entries for run in self._runs()]

    def freeze(self) -> None:
        """Take no more entries. From now on `sealed` only reads, so a thread may call it."""
        self._flush_singles()
        self._merges = [None] * _TIERS

    def sealed(self) -> Entries:
        """Give all entries as one sorted array: what the side-car holds. Slow for millions."""
        return merged(self.runs())

    def _runs(self) -> list[IdRun]:
        runs = [run for tier in reversed(self._tiers) for run in tier]
        if len(self._young):
            runs.append(self._young)
        return runs

    def _find_singles(self, fps: Fingerprints) -> Matches:
        rows: list[int] = []
        entries: list[int] = []
        for row, fp in enumerate(fps.tolist()):
            same = self._singles.get(fp, ())
            rows.extend([row] * len(same))
            entries.extend(same)
        return Matches(np.array(rows, np.int64), np.array(entries, np.uint64))

    def _flush_singles(self) -> None:
        if not self._singles:
            return
        entries = np.array([entry for same in self._singles.values() for entry in same], np.uint64)
        entries.sort()
        self._singles = {}
        self._single_count = 0
        self._add_run(entries)

    def _add_run(self, entries: Entries) -> None:
        self._young = IdRun(merged([self._young.entries, entries]))
        if len(self._young) >= _YOUNG_IDS_MAX:
            self._tiers[_tier_of(len(self._young))].append(self._young)
            self._young = IdRun(_NO_ENTRIES)
        self._merge_some(len(entries) * _MERGE_PACE)

    def _merge_some(self, budget: int) -> None:
        """Go on with the merges, those of small runs first."""
        tier = 0
        while budget > 0 and tier < _TIERS - 1:
            merge = self._merges[tier]
            if merge is None and len(self._tiers[tier]) >= _TIER_RUNS:
                merge = _Merge([run.entries for run in self._tiers[tier][:_TIER_RUNS]])
                self._merges[tier] = merge
            if merge is None:
                tier += 1
                continue
            budget -= merge.step()
            if merge.is_done:
                self._merges[tier] = None
                self._tiers[tier] = self._tiers[tier][_TIER_RUNS:]
                self._tiers[tier + 1].append(IdRun(merge.result))

    def check_invariants(self) -> None:
        """Fail if a run is out of order or the count is not the sum of the parts."""
        for run in self._runs():
            run.check_invariants()
        singles = sum(len(same) for same in self._singles.values())
        assert singles == self._single_count, "single entries miscounted"
        assert sum(map(len, self._runs())) + singles == self._count, "entries lost or doubled"

    def __repr__(self) -> str:
        return f"<IdRuns {self._count} ids in {len(self._runs())} runs>"


def _tier_of(count: int) -> int:
    """Give the tier whose runs are of about this size: each holds four times the one before."""
    return min(_TIERS - 1, (count // _YOUNG_IDS_MAX).bit_length() - 1 >> 1)


class _Merge:
    """Sorted arrays on their way to become one."""

    def __init__(self, runs: list[Entries]) -> None:
        self._rests = runs
        self._done_count = 0
        self.result: Final[Entries] = np.empty(sum(map(len, runs)), np.uint64)

    @property
    def is_done(self) -> bool:
        return self._done_count == len(self.result)

    def step(self) -> int:
        """Merge the next few thousand entries, and say how many they were."""
        share = _MERGE_STEP_IDS // _TIER_RUNS
        # Every entry not yet merged and beyond the heads is at least `bound`.
        bound = min(rest[min(share, len(rest)) - 1] for rest in self._rests)
        counts = [int(rest[:share].searchsorted(bound, "right")) for rest in self._rests]
        start, end = self._done_count, self._done_count + sum(counts)
        pairs = list(zip(self._rests, counts, strict=True))
        self.result[start:end] = merged([rest[:count] for rest, count in pairs])
        self._rests = [rest[count:] for rest, count in pairs if count < len(rest)]
        self._done_count = end
        return end - start


class IdEntries(NamedTuple):
    """The sorted entries of one segment, as its `.ids` side-car holds them."""

    tracked: Entries
    untracked: Entries

    def encode(self) -> list[memoryview]:
        """Return the body of the `.ids` side-car, in parts: it may be too large to be copied."""
        count = np.array([len(self.tracked)], np.uint64)
        return [part.view(np.uint8).data for part in (count, self.tracked, self.untracked)]

    @classmethod
    def decode(cls, body: memoryview) -> "IdEntries | None":
        """Return the entries in a side-car's body, as they lie there; None if it cannot be one."""
        if len(body) < _COUNT_BYTES or len(body) % _COUNT_BYTES:
            return None
        values = np.frombuffer(body, np.uint64)
        count = int(values[0])
        if count >= len(values):
            return None
        return cls(values[1 : 1 + count], values[1 + count :])


class IdPieces(NamedTuple):
    """Sorted arrays that together hold all entries of a segment so far; they do not change."""

    tracked: list[Entries]
    untracked: list[Entries]

    def merged(self) -> IdEntries:
        """Merge them; slow for millions, and may be done on another thread."""
        return IdEntries(_one(self.tracked), _one(self.untracked))


def _one(runs: list[Entries]) -> Entries:
    # What is one already stays where it lies: a side-car's memory map, most often.
    return runs[0] if len(runs) == 1 else merged(runs)
