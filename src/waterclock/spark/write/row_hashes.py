"""A 128-bit hash of each row's content: whole columns at once, whatever batch a row comes in.

Spark may compute a batch of rows again after a failure, in another order and cut another way; what
stays is what a row says. So this hash knows nothing of a row's neighbours or position.

A column of bytes is read as 64-bit little-endian lanes, the last one of a row padded with zeros, as
`log/id_index/fingerprint.py` does. With `L` the length, `x_i` the i-th lane, all modulo 2^64:

    mix(x) = y ^ (y >> 32)  where  y = x * SPREAD
    h      = finish(L * m_0  +  sum of mix(x_i) * m_(i+1))

with odd multipliers `m` drawn from a seed, twice, for two halves of 64 bits. Each column has a seed
of its own, so that columns cannot trade places; a null has a value of its own, so that it is not
the empty string. The rows' halves are the finished sums over the columns. Headers are a sum over
finished pairs: a map has no order, and Spark guarantees none.

The seed comes from the name of the write. Who does not know that cannot choose rows that collide.
"""

from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Uint64s = npt.NDArray[np.uint64]
Int64s = npt.NDArray[np.int64]

_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)
_FINISH_1: Final = np.uint64(0xFF51AFD7ED558CCD)
_FINISH_2: Final = np.uint64(0xC4CEB9FE1A85EC53)
_HALF: Final = np.uint64(32)
_LANE: Final = np.dtype("<u8")
_LANE_BYTES: Final = 8
_MASK64: Final = (1 << 64) - 1
_CHUNK_BYTES: Final = 1 << 20
"""Bytes hashed at a time: what is computed for each lane stays in the processor's cache."""
_LANES_MIN: Final = 64
_COLUMNS_MAX: Final = 16
"""Seeds are spaced so that those of columns, and of the parts of headers, never meet."""


class Hashes(NamedTuple):
    """Both halves, row by row."""

    first: Uint64s
    second: Uint64s


def row_hashes(rows: pa.RecordBatch, seed: int) -> Hashes:
    """Return the hash of each row over all its columns, in their order.

    Columns are binary, int32, int64, or a map of string to binary.
    """
    total = np.zeros((rows.num_rows, 2), np.uint64)
    for number, column in enumerate(rows.columns):
        total += _column_hashes(column, seed + number * _COLUMNS_MAX)
    _finish(total)
    return Hashes(np.ascontiguousarray(total[:, 0]), np.ascontiguousarray(total[:, 1]))


def _column_hashes(column: pa.Array, seed: int) -> Uint64s:
    count = len(column)
    if column.null_count == count:
        return np.broadcast_to(_of_null(seed), (count, 2))
    if pa.types.is_map(column.type):
        found = _map_hashes(column, seed)
    elif pa.types.is_integer(column.type):
        found = _number_hashes(column, seed)
    else:
        found = binary_hashes(column, seed)
    if column.null_count:
        found[np.asarray(column.is_null())] = _of_null(seed)
    return found


def _of_null(seed: int) -> Uint64s:
    found: Uint64s = _multipliers(seed + 1, _LANES_MIN)[0]
    return found


def _number_hashes(column: pa.Array, seed: int) -> Uint64s:
    filled = column.fill_null(0) if column.null_count else column
    lanes = np.asarray(filled.to_numpy()).astype(np.int64).view(np.uint64)[:, None]
    return _of_lanes(lanes, np.uint64(_LANE_BYTES), seed)


def _map_hashes(column: pa.MapArray, seed: int) -> Uint64s:
    bounds = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)
    start, end = int(bounds[0]), int(bounds[-1])
    pairs = binary_hashes(column.keys.slice(start, end - start).cast(pa.binary()), seed + 2)
    pairs += _column_hashes(column.items.slice(start, end - start), seed + 4)
    _finish(pairs)
    sums = np.zeros((len(pairs) + 1, 2), np.uint64)
    np.cumsum(pairs, axis=0, out=sums[1:])
    total: Uint64s = sums[bounds[1:] - start] - sums[bounds[:-1] - start]
    total += (bounds[1:] - bounds[:-1]).astype(np.uint64)[:, None] * _multipliers(seed, 64)[0]
    _finish(total)
    return total


def binary_hashes(column: pa.BinaryArray, seed: int) -> Uint64s:
    """Return the hash of each value of a binary column as a row of two; nulls count as empty."""
    count = len(column)
    if not count:
        return np.zeros((0, 2), np.uint64)
    if column.null_count:
        column = column.fill_null(b"")
    _, ends_buffer, data = column.buffers()
    ends = np.frombuffer(ends_buffer, np.int32, count + 1, column.offset * 4)
    sizes = ends[1:] - ends[:-1]
    size = int(sizes[0])
    if size and bool((sizes == size).all()):
        return _equal_hashes(data, int(ends[0]), count, size, seed)
    return _ragged_hashes(data, ends, sizes, seed)


def _equal_hashes(data: pa.Buffer, start: int, count: int, size: int, seed: int) -> Uint64s:
    found = np.empty((count, 2), np.uint64)
    step = max(1, _CHUNK_BYTES // size)
    for first in range(0, count, step):
        rows = min(step, count - first)
        lanes = _equal_lanes(data, start + first * size, rows, size)
        found[first : first + rows] = _of_lanes(lanes, np.uint64(size), seed)
    return found


def _equal_lanes(data: pa.Buffer, start: int, count: int, size: int) -> Uint64s:
    lanes, beyond = divmod(size, _LANE_BYTES)
    if not beyond:
        return np.frombuffer(data, _LANE, count * lanes, start).reshape(count, lanes)
    padded = np.zeros((count, (lanes + 1) * _LANE_BYTES), np.uint8)
    padded[:, :size] = np.frombuffer(data, np.uint8, count * size, start).reshape(count, size)
    return padded.view(_LANE)


def _ragged_hashes(
    data: pa.Buffer | None, ends: npt.NDArray[np.int32], sizes: npt.NDArray[np.int32], seed: int
) -> Uint64s:
    """Hash together what has equally many lanes: each such row is one copy of so many bytes."""
    first, last = int(ends[0]), int(ends[-1])
    bytes_ = b"" if data is None else memoryview(data)[first:last].tobytes()
    window = bytes_ + bytes(_LANE_BYTES)
    counts = (sizes + 7) >> 3
    order = np.argsort(counts, kind="stable")
    changes = np.flatnonzero(np.diff(counts[order])) + 1
    found = np.empty((len(sizes), 2), np.uint64)
    for group in np.split(order, changes):
        lanes = int(counts[group[0]])
        step = max(1, _CHUNK_BYTES // max(1, lanes * _LANE_BYTES))
        for at in range(0, len(group), step):
            rows = group[at : at + step]
            mine = _collected(window, ends[rows] - first, sizes[rows], lanes)
            found[rows] = _of_lanes(mine, sizes[rows].astype(np.uint64)[:, None], seed)
    return found


def _collected(
    window: bytes, starts: npt.NDArray[np.int32], sizes: npt.NDArray[np.int32], lanes: int
) -> Uint64s:
    if not lanes:
        return np.empty((len(starts), 0), np.uint64)
    size = lanes * _LANE_BYTES
    every_start = np.ndarray((len(window) - size + 1,), f"V{size}", window, strides=(1,))
    found = every_start[starts].view(_LANE).reshape(len(starts), lanes)
    # The last lane of a row read on into its neighbour: shift those bytes out.
    foreign_bits = ((size - sizes) << 3).astype(np.uint64)
    found[:, -1] = found[:, -1] << foreign_bits >> foreign_bits
    return found


def _of_lanes(lanes: Uint64s, size: np.uint64 | Uint64s, seed: int) -> Uint64s:
    count = lanes.shape[1]
    multipliers = _multipliers(seed, _table_size(count))
    mixed = lanes * _SPREAD
    mixed ^= mixed >> _HALF
    found = np.empty((len(lanes), 2), np.uint64)
    for half in (0, 1):
        found[:, half] = mixed @ np.ascontiguousarray(multipliers[1 : count + 1, half])
    found += size * multipliers[0]
    _finish(found)
    return found


def _finish(h: Uint64s) -> None:
    h ^= h >> _HALF
    h *= _FINISH_1
    h ^= h >> _HALF
    h *= _FINISH_2
    h ^= h >> _HALF


def _table_size(lanes: int) -> int:
    """Return a power of two above the number of lanes: few tables serve values of every length."""
    return max(_LANES_MIN, 1 << (lanes + 1).bit_length())


@lru_cache(maxsize=256)
def _multipliers(seed: int, count: int) -> Uint64s:
    """Return odd numbers, one row of two for each lane; a longer table begins as a shorter one."""
    number = np.arange(1, 2 * count + 1, dtype=np.uint64)
    z = np.uint64(seed * 0xD1342543DE82EF95 & _MASK64) + number * _SPREAD
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return (z | np.uint64(1)).reshape(count, 2)
