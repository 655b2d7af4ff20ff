"""Fingerprints: 40 bits that stand for a message id.

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
"""

from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["FINGERPRINT_BITS", "Fingerprints", "fingerprint", "fingerprints"]

Fingerprints: TypeAlias = npt.NDArray[np.uint64]
"""Unsigned 64-bit numbers below 2^40."""

FINGERPRINT_BITS: Final = 40

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
    if not count:
        return np.empty(0, np.uint64)
    _, ends_buffer, data = ids.buffers()
    ends = np.frombuffer(ends_buffer, np.int32, count + 1, ids.offset * 4)
    sizes = ends[1:] - ends[:-1]
    size = int(sizes[0])
    if np.count_nonzero(sizes != size):
        return _finished(_sums_of_ragged(data, ends, seed))
    lanes = _lanes_of_equal(data, start=int(ends[0]), count=count, size=size)
    return _finished(_sums_of_equal(lanes, size, seed))


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
    mixed = lanes * _SPREAD_U64
    mixed ^= mixed >> _HALF_U64
    total: npt.NDArray[np.uint64] = mixed @ multipliers[1 : lanes.shape[1] + 1]
    total += np.uint64(size * scalars[0] & _MASK64)
    return total


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
    return max(64, 1 << ((size + 7) >> 3).bit_length())


@lru_cache(maxsize=8192)
def _multipliers(seed: int, count: int) -> tuple[tuple[int, ...], npt.NDArray[np.uint64]]:
    values = tuple(_splitmix64(seed, index) | 1 for index in range(count))
    return values, np.array(values, np.uint64)


def _splitmix64(seed: int, index: int) -> int:
    z = (seed + (index + 1) * _SPREAD) & _MASK64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK64
    return z ^ (z >> 31)
