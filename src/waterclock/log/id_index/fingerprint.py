"""Fingerprints: 40 bits that stand for a message id, and a filter of them.

An id is any string of bytes; the index of ids keeps only 40 bits of a hash of it. Equal ids have
equal fingerprints whatever batch they came in; unequal ids may share one (about one pair in 10^12),
so a match is a *candidate* which the caller confirms against the stored id.

The hash reads an id as 64-bit little-endian lanes, the last one padded with zeros. With `L` the
length in bytes, `x_i` the i-th lane and every operation modulo 2^64:

    mix(x) = y ^ (y >> 32)  where  y = x * SPREAD
    h      = L * multiplier_0  +  sum of mix(x_i) * multiplier_(i+1)

A sum does not care how its terms are grouped, so one id, a column of equally long ids and a ragged
column come to the same value by different vector code. The odd multipliers are drawn from the
seed: each lane has its own, so lanes cannot trade places, and ids that collide under one seed do
not under another (multilinear hashing; Lemire and Kaser, "Strongly universal string hashing is
fast", 2014). The inner mix brings the high bits of a lane down, whence the multiplication carries
them up again; a murmur finaliser spreads the sum, and its top 40 bits are the fingerprint.

Entries in side-cars hold fingerprints: a change of this hash is a change of that format.

The filter says "certainly new" of almost every new id, at the price of one memory read. It is
a blocked Bloom filter (Putze, Sanders, Singler, "Cache-, hash- and space-efficient Bloom filters",
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
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = [
    "FEW_IDS",
    "FINGERPRINT_BITS",
    "STEP_IDS",
    "Fingerprints",
    "IdFilter",
    "Succession",
    "fingerprint",
    "fingerprints",
    "fingerprints_by_seed",
]

Fingerprints: TypeAlias = npt.NDArray[np.uint64]
"""Unsigned 64-bit numbers below 2^40."""

FINGERPRINT_BITS: Final = 40
FEW_IDS: Final = 8
"""So many ids or fewer are dealt with one by one: a batch of any size takes some thirty calls of
NumPy. Measured: to look up and remember four ids takes 31 us, not 86, and as long at eleven."""

_MASK64: Final = (1 << 64) - 1
_SPREAD: Final = 0x9E3779B97F4A7C15
_FINISH_1: Final = 0xFF51AFD7ED558CCD
_FINISH_2: Final = 0xC4CEB9FE1A85EC53
_DROPPED_BITS: Final = 64 - FINGERPRINT_BITS

_SPREAD_U64: Final = np.uint64(_SPREAD)
_FINISH_1_U64: Final = np.uint64(_FINISH_1)
_FINISH_2_U64: Final = np.uint64(_FINISH_2)
_DROPPED_U64: Final = np.uint64(_DROPPED_BITS)
_HALF_U64: Final = np.uint64(32)
_LANE: Final = np.dtype("<u8")
_LANE_BYTES: Final = 8


def fingerprint(message_id: bytes, seed: int) -> int:
    """Give the fingerprint of one id, as `fingerprints` would; faster below a dozen ids."""
    size = len(message_id)
    multipliers, _ = _multipliers(seed, _table_size(size))
    total = size * multipliers[0]
    rest = int.from_bytes(message_id, "little")
    for lane in range(1, ((size + 7) >> 3) + 1):
        x = (rest & _MASK64) * _SPREAD & _MASK64
        total += (x ^ (x >> 32)) * multipliers[lane]
        rest >>= 64
    h = total & _MASK64
    h = (h ^ (h >> 32)) * _FINISH_1 & _MASK64
    h = (h ^ (h >> 32)) * _FINISH_2 & _MASK64
    return h >> _DROPPED_BITS


def fingerprints(ids: pa.BinaryArray, seed: int) -> Fingerprints:
    """Give the fingerprint of each id of the column, which must hold no nulls."""
    assert ids.null_count == 0, "a message id is never null"
    count = len(ids)
    if count <= FEW_IDS:
        return np.array([fingerprint(id_, seed) for id_ in ids.to_pylist()], np.uint64)
    _, ends_buffer, data = ids.buffers()
    ends = np.frombuffer(ends_buffer, np.int32, count + 1, ids.offset * 4)
    sizes = ends[1:] - ends[:-1]
    size = int(sizes[0])
    if np.count_nonzero(sizes != size):
        return _finished(_sums_of_ragged(data, ends, seed))
    lanes = _lanes_of_equal(data, start=int(ends[0]), count=count, size=size)
    return _finished(_sums_of_equal(lanes, size, seed))


def fingerprints_by_seed(ids: pa.BinaryArray, seeds: Sequence[int]) -> Fingerprints:
    """Give the fingerprint of each id of the column under a seed of its own."""
    assert len(ids) == len(seeds), "a seed for each id"
    _, ends_buffer, data = ids.buffers()
    ends = np.frombuffer(ends_buffer, np.int32, len(ids) + 1, ids.offset * 4)
    sizes = ends[1:] - ends[:-1]
    size = int(sizes[0])
    if np.count_nonzero(sizes != size):
        pairs = zip(ids.to_pylist(), seeds, strict=True)
        return np.array([fingerprint(each, seed) for each, seed in pairs], np.uint64)
    lanes = _lanes_of_equal(data, start=int(ends[0]), count=len(ids), size=size)
    table = _table_size(size)
    tables = np.concatenate([_multipliers(seed, table)[1] for seed in seeds]).reshape(-1, table)
    terms = _mixed(lanes)
    terms *= tables[:, 1 : lanes.shape[1] + 1]
    total: npt.NDArray[np.uint64] = terms.sum(axis=1, dtype=np.uint64)
    total += tables[:, 0] * np.uint64(size)
    return _finished(total)


def _lanes_of_equal(
    data: pa.Buffer | None, *, start: int, count: int, size: int
) -> npt.NDArray[np.uint64]:
    if size == 0 or data is None:
        return np.empty((count, 0), np.uint64)
    lanes, beyond = divmod(size, _LANE_BYTES)
    if not beyond:
        return np.frombuffer(data, _LANE, count * lanes, start).reshape(count, lanes)
    # Bytes cast to longer bytes are padded with zeros.
    rows = np.frombuffer(data, f"S{size}", count, start)
    return rows.astype(f"S{(lanes + 1) * _LANE_BYTES}").view(_LANE).reshape(count, lanes + 1)


def _sums_of_equal(lanes: npt.NDArray[np.uint64], size: int, seed: int) -> npt.NDArray[np.uint64]:
    scalars, multipliers = _multipliers(seed, _table_size(size))
    total: npt.NDArray[np.uint64] = _mixed(lanes) @ multipliers[1 : lanes.shape[1] + 1]
    total += np.uint64(size * scalars[0] & _MASK64)
    return total


def _mixed(lanes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    mixed = lanes * _SPREAD_U64
    mixed ^= mixed >> _HALF_U64
    return mixed


def _sums_of_ragged(
    data: pa.Buffer, ends: npt.NDArray[np.int32], seed: int
) -> npt.NDArray[np.uint64]:
    bounds = ends.astype(np.int64)
    starts, sizes = bounds[:-1], np.diff(bounds)
    _, multipliers = _multipliers(seed, _table_size(int(sizes.max())))
    lane_counts = (sizes + 7) >> 3
    lane_bounds = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(lane_counts, out=lane_bounds[1:])
    # For each lane of the column: which lane of its id it is, and where it lies.
    lane = np.arange(lane_bounds[-1]) - np.repeat(lane_bounds[:-1], lane_counts)
    first, last = int(bounds[0]), int(bounds[-1])
    window = memoryview(data)[first:last].tobytes() + bytes(_LANE_BYTES)
    words = np.ndarray((last - first + 1,), _LANE, window, strides=(1,))
    lanes = words[np.repeat(starts - first, lane_counts) + (lane << 3)]
    # The last lane of an id read on into its neighbour: shift those bytes out.
    filled = lane_counts > 0
    tails = lane_bounds[1:][filled] - 1
    foreign_bits = (((lane_counts << 3) - sizes)[filled] << 3).astype(np.uint64)
    lanes[tails] = lanes[tails] << foreign_bits >> foreign_bits
    lanes *= _SPREAD_U64
    lanes ^= lanes >> _HALF_U64
    lanes *= multipliers[lane + 1]
    sums = np.zeros(len(lanes) + 1, np.uint64)
    np.cumsum(lanes, out=sums[1:])
    total: npt.NDArray[np.uint64] = sums[lane_bounds[1:]] - sums[lane_bounds[:-1]]
    total += sizes.astype(np.uint64) * multipliers[0]
    return total


def _finished(h: npt.NDArray[np.uint64]) -> Fingerprints:
    h ^= h >> _HALF_U64
    h *= _FINISH_1_U64
    h ^= h >> _HALF_U64
    h *= _FINISH_2_U64
    h >>= _DROPPED_U64
    return h


def _table_size(size: int) -> int:
    """Give a power of two above the number of lanes: few tables serve ids of every length."""
    return max(4, 1 << ((size + 7) >> 3).bit_length())


@lru_cache(maxsize=8192)
def _multipliers(seed: int, count: int) -> tuple[tuple[int, ...], npt.NDArray[np.uint64]]:
    values = tuple(_splitmix64(seed, index) | 1 for index in range(count))
    return values, np.array(values, np.uint64)


def _splitmix64(seed: int, index: int) -> int:
    z = (seed + (index + 1) * _SPREAD) & _MASK64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK64
    return z ^ (z >> 31)


# The filter

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
    z *= _SPREAD_U64
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
        self._word_view: Final = self._words.data
        """The same words: NumPy takes its time to get or set a single one."""

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
        return self._word_view[at] & mask == mask

    def add_one(self, fp: int) -> None:
        at = (fp >> _LOW_BITS) * self._word_count >> _HIGH_BITS
        self._word_view[at] |= _MASK_LIST[fp & _MASK_INDEX]
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
