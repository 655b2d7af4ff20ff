"""Until when a message is of use: the header `wc-expires-ms`, milliseconds since 1970 in decimal.

A message that is late by then is not fired any more, nor handed out. Few messages have the header,
so a frame says in its flags whether one may; only then does anybody look inside, and then at the
whole column at once.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from waterclock.model.errors import BadBatch

Int64s = npt.NDArray[np.int64]

HEADER = "wc-expires-ms"
NEVER = 0

_NUMBER = "^[0-9]{1,18}$"


def expires_ms(rows: pa.RecordBatch) -> Int64s:
    """Return until when each message is of use, 0 for ever; raise BadBatch if one says nonsense."""
    found = np.zeros(len(rows), np.int64)
    row, texts = _named(rows.column("headers"))
    if not len(row):
        return found
    if texts.null_count or not pc.all(pc.match_substring_regex(texts, _NUMBER)).as_py():
        raise BadBatch(HEADER, "must be milliseconds since 1970, as up to 18 decimal digits")
    found[row] = texts.cast(pa.string()).cast(pa.int64()).to_numpy()
    return found


def may_expire(rows: pa.RecordBatch) -> bool:
    """Tell whether some message says until when it is of use; raise BadBatch for nonsense."""
    headers = rows.column("headers")
    if headers.null_count == len(headers):
        return False
    return bool(expires_ms(rows).any())


def _named(headers: pa.MapArray) -> tuple[npt.NDArray[np.intp], pa.BinaryArray]:
    """Return the rows that have the header, and what each of them says."""
    is_named = pc.equal(headers.keys, HEADER)
    at = np.flatnonzero(is_named.to_numpy(zero_copy_only=False))
    if not len(at):
        return at, headers.items[:0]
    # Positions count from the start of the column's own buffer, also where the column is a slice.
    bounds = np.frombuffer(headers.buffers()[1], np.int32, len(headers) + 1, headers.offset * 4)
    row = bounds.searchsorted(at, side="right") - 1
    is_ours = (row >= 0) & (row < len(headers))
    is_ours[is_ours] = headers.is_valid().to_numpy(zero_copy_only=False)[row[is_ours]]
    return row[is_ours], headers.items.take(pa.array(at[is_ours]))
