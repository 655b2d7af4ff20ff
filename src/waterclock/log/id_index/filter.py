"""A filter that says "certainly new" of almost every new id, at the price of one memory read.

A blocked Bloom filter (Putze, Sanders, Singler, "Cache-, hash- and space-efficient Bloom filters",
2007) whose block is a single 64-bit word. The high bits of a fingerprint name a word and its low
bits a mask of six bits; it may be in the filter only if all six are set in the word. At capacity
there are 16 bits per id and fewer than 1 % of new ids are taken for known; half full, 0.06 %.

The rule it keeps: *never* a false "new". A scatter such as `words[at] |= masks` keeps only one
of several updates to the same word, so `add` looks again and repeats until every bit is there.

A filter neither grows nor forgets. One that is full, or full of what was dropped, gets a successor:
`Succession` fills it from the known ids a step at a time, each new id paying for sixteen old ones,
while the old filter serves on. New ids wait for their turn after the old ones: to touch the
successor's memory in random places while it is fresh would be a page fault for each.
"""

from array import array
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from waterclock.log.id_index.fingerprint import FINGERPRINT_BITS, Fingerprints

__all__ = ["STEP_IDS", "IdFilter", "Succession"]

_BITS_PER_ID: Final = 16
_BITS_PER_MASK: Final = 6
_MASK_INDEX_BITS: Final = 14

STEP_IDS: Final = 16_384
"""Ids carried over in one step of a succession: some hundred microseconds."""
_PACE: Final = 16
"""Old ids carried over for each new one. More ends a succession sooner, and makes inserts dearer
while it lasts; the old filter meanwhile gets 1/16 over its capacity."""


def _drawn_masks() -> npt.NDArray[np.uint64]:
    """Give 2^14 words with six bits set, now and then five, drawn by splitmix64.

    A table of 128 KiB: one read from it is cheaper than to set six bits by six shifts.
    """
    z = np.arange(1, (1 << _MASK_INDEX_BITS) + 1, dtype=np.uint64)
    z *= np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    masks = np.zeros_like(z)
    for field in range(_BITS_PER_MASK):
        masks |= np.uint64(1) << ((z >> np.uint64(6 * field + 28)) & np.uint64(63))
    return masks


_MASKS: Final = _drawn_masks()
_MASK_LIST: Final[list[int]] = _MASKS.tolist()
_MASK_INDEX: Final = (1 << _MASK_INDEX_BITS) - 1
_MASK_INDEX_U64: Final = np.uint64(_MASK_INDEX)

# A word is chosen by the fingerprint's high 32 bits, as a fraction: bits * words / 2^32.
_HIGH_BITS: Final = 32
_LOW_BITS: Final = FINGERPRINT_BITS - _HIGH_BITS
_HIGH_BITS_U64: Final = np.uint64(_HIGH_BITS)
_LOW_BITS_U64: Final = np.uint64(_LOW_BITS)


class IdFilter:
    """A set of fingerprints that errs on one side only: it may claim to contain a stranger."""

    def __init__(self, capacity: int) -> None:
        self.capacity: Final = capacity
        self.count = 0
        """How many fingerprints were added; above `capacity` strangers pass more often."""
        self._word_count: Final = max(1, capacity * _BITS_PER_ID // 64)
        self._word_count_u64: Final = np.uint64(self._word_count)
        self._words: Final = np.zeros(self._word_count, np.uint64)

    def might_contain(self, fps: Fingerprints) -> npt.NDArray[np.bool_]:
        """Say of each fingerprint whether it may have been added; False is certain."""
        at, masks = self._places(fps)
        found: npt.NDArray[np.bool_] = (self._words.take(at) & masks) == masks
        return found

    def add(self, fps: Fingerprints) -> None:
        at, masks = self._places(fps)
        self.count += len(fps)
        words = self._words
        while len(at):
            words[at] = words.take(at) | masks
            lost = np.flatnonzero((words.take(at) & masks) != masks)
            at, masks = at[lost], masks[lost]

    def might_contain_one(self, fp: int) -> bool:
        """Say whether the fingerprint may have been added; False is certain."""
        mask = _MASK_LIST[fp & _MASK_INDEX]
        at = (fp >> _LOW_BITS) * self._word_count >> _HIGH_BITS
        return self._words.item(at) & mask == mask

    def add_one(self, fp: int) -> None:
        at = (fp >> _LOW_BITS) * self._word_count >> _HIGH_BITS
        self._words[at] = self._words.item(at) | _MASK_LIST[fp & _MASK_INDEX]
        self.count += 1

    def add_sorted(self, fps: Fingerprints) -> None:
        """Add fingerprints in ascending order: several times faster than `add` on many."""
        if not len(fps):
            return
        at, masks = self._places(fps)
        self.count += len(fps)
        starts = np.flatnonzero(at[1:] != at[:-1]) + 1
        starts = np.concatenate((np.zeros(1, starts.dtype), starts))
        # The ids of one word stand together, so each word is written once.
        self._words[at[starts]] |= np.bitwise_or.reduceat(masks, starts)

    def _places(self, fps: Fingerprints) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
        at = fps >> _LOW_BITS_U64
        at *= self._word_count_u64
        at >>= _HIGH_BITS_U64
        return at.view(np.int64), _MASKS.take((fps & _MASK_INDEX_U64).view(np.int64))

    def __repr__(self) -> str:
        return f"<IdFilter {self.count} of {self.capacity} ids, {self._words.nbytes >> 10} KiB>"


class Succession:
    """A filter on its way to take the place of another."""

    def __init__(self, capacity: int, parts: Iterator[Fingerprints]) -> None:
        """Begin; `parts` gives all ids known by now, each part sorted and of `STEP_IDS` at most."""
        self._filter: Final = IdFilter(capacity)
        self._parts: Final = parts
        self._late = array("Q")
        self._late_start = 0
        self._credit = 0

    def add(self, fps: Fingerprints) -> None:
        """Add new ids; the filter in office must get them as well."""
        self._late.frombytes(fps.tobytes())
        self._credit += len(fps) * _PACE

    def add_one(self, fp: int) -> None:
        """Add one new id; the filter in office must get it as well."""
        self._late.append(fp)
        self._credit += _PACE

    def advance(self) -> IdFilter | None:
        """Carry over what the new ids have paid for; give the successor once it knows every id."""
        while self._credit >= STEP_IDS:
            self._credit -= STEP_IDS
            if self._is_complete_after_step():
                return self._filter
        return None

    def finish(self) -> IdFilter:
        """Carry over everything at once, and give the successor."""
        while not self._is_complete_after_step():
            pass
        return self._filter

    def _is_complete_after_step(self) -> bool:
        part = next(self._parts, None)
        if part is not None:
            self._filter.add_sorted(part)
            return False
        late = self._late[self._late_start : self._late_start + STEP_IDS]
        self._late_start += len(late)
        self._filter.add(np.array(late, np.uint64))
        return self._late_start == len(self._late)
