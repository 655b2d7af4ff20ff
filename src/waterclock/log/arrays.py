"""Arrow columns as NumPy's arrays and back, from their buffers; and sets of ordered numbers.

`pa.array`, `pa.scalar`, `to_numpy` and `np.asarray` of a column import pandas wherever it is
installed, to ask whether what they were given is pandas'. That is seconds of a program's first
publish and of a node's first message, for nothing: so nothing here goes through them, nor does
`schema.py`, which makes columns of Python's values, nor anything outside: see
`tests/client/test_no_pandas.py`. Jobs on Spark may: pandas is there already.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_NUMPY: dict[pa.DataType, type[np.generic]] = {
    pa.int8(): np.int8, pa.int16(): np.int16, pa.int32(): np.int32, pa.int64(): np.int64,
    pa.uint8(): np.uint8, pa.uint16(): np.uint16, pa.uint32(): np.uint32, pa.uint64(): np.uint64,
}  # fmt: skip
_ARROW = {np.dtype(kind): arrow for arrow, kind in _NUMPY.items()}

Int64s = npt.NDArray[np.int64]


def from_numpy(values: npt.NDArray[Any]) -> pa.Array:
    """Return an array of whole numbers or truth values as a column without nulls."""
    if values.dtype == np.bool_:
        bits = pa.py_buffer(np.packbits(values, bitorder="little"))
        return pa.Array.from_buffers(pa.bool_(), len(values), [None, bits])
    buffer = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(_ARROW[values.dtype], len(values), [None, buffer])


def as_numpy(column: pa.Array | pa.ChunkedArray) -> npt.NDArray[Any]:
    """Return a column of whole numbers or truth values; it cannot be written to.

    Raises ValueError if there are nulls, TypeError for other types.
    """
    if isinstance(column, pa.ChunkedArray):
        parts = [as_numpy(chunk) for chunk in column.chunks]
        return parts[0] if len(parts) == 1 else np.concatenate([_empty(column.type), *parts])
    if column.null_count:
        raise ValueError(f"{column.null_count} of {len(column)} values are null")
    count, start = len(column), column.offset
    if not count:
        return _empty(column.type)
    data = column.buffers()[1]
    if pa.types.is_boolean(column.type):
        first, last = start // 8, (start + count + 7) // 8
        bits = np.unpackbits(np.frombuffer(data, np.uint8)[first:last], bitorder="little")
        return bits[start % 8 : start % 8 + count].view(np.bool_)
    kind = np.dtype(_numpy_kind(column.type))
    return np.frombuffer(data, kind, count=count, offset=start * kind.itemsize)


def filled(column: pa.Array, value: int | bool) -> pa.Array:
    """Return the column with a value in place of its nulls."""
    if not column.null_count:
        return column
    return column.fill_null(from_numpy(np.array([value], _numpy_kind(column.type)))[0])


def _empty(kind: pa.DataType) -> npt.NDArray[Any]:
    return np.zeros(0, _numpy_kind(kind))


def _numpy_kind(kind: pa.DataType) -> type[np.generic]:
    if pa.types.is_boolean(kind):
        return np.bool_
    found = _NUMPY.get(kind)
    if found is None:
        raise TypeError(f"{kind} is no whole number")
    return found


def distinct(values: Int64s) -> Int64s:
    """Return the values in order, each once; np.unique takes ten times as long (it hashes)."""
    ordered = np.sort(values)
    is_first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    return ordered[is_first]


def is_among(values: Int64s, ordered: Int64s) -> npt.NDArray[np.bool_]:
    """Tell which values are in an ordered array; its size costs next to nothing, unlike np.isin."""
    if not len(ordered):
        return np.zeros(len(values), np.bool_)
    at = np.searchsorted(ordered, values)
    at[at == len(ordered)] = 0
    return np.asarray(ordered[at] == values)
