"""Until when a message is of use: the header `wc-expires-ms`, milliseconds since 1970 in decimal.

A message that is late by then is not fired any more, nor handed out. Few messages have the header,
so a frame says in its flags whether one may; only then does anybody look inside, and then at the
whole column at once.

How long a message is of use counts from when it is due. So if it is given another due time, its end
moves along (`moved`), by as much.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.log.arrays import as_numpy, filled, from_numpy
from waterclock.log.schema import text_scalar
from waterclock.model.errors import BadBatch
from waterclock.model.message import Message

Int64s = npt.NDArray[np.int64]

HEADER = "wc-expires-ms"
NEVER = 0
END_MS_MAX = 10**18 - 1

_NAME = text_scalar(HEADER)

_NUMBER = "^[0-9]{1,18}$"


def expiring(message: Message, until_ms: int) -> Message:
    """Return the message, of use until then."""
    return replace(message, headers={**(message.headers or {}), HEADER: b"%d" % until_ms})


def expires_ms(rows: pa.RecordBatch) -> Int64s:
    """Return until when each message is of use, 0 for ever; raise BadBatch if one says nonsense."""
    found = np.zeros(len(rows), np.int64)
    headers = rows.column("headers")
    row, at = _named(headers)
    if not len(row):
        return found
    import pyarrow.compute as pc  # as below

    texts = headers.items.take(from_numpy(at))
    if texts.null_count or not pc.all(pc.match_substring_regex(texts, _NUMBER)).as_py():
        raise BadBatch(HEADER, "must be milliseconds since 1970, as up to 18 decimal digits")
    found[row] = as_numpy(texts.cast(pa.string()).cast(pa.int64()))
    return found


def may_expire(rows: pa.RecordBatch) -> bool:
    """Tell whether some message says until when it is of use; raise BadBatch for nonsense."""
    headers = rows.column("headers")
    if headers.null_count == len(headers):
        return False
    return bool(expires_ms(rows).any())


def moved(rows: pa.RecordBatch, by_ms: Int64s) -> pa.RecordBatch:
    """Return the messages with the end of each so much later, or earlier; that of none stays."""
    headers = rows.column("headers")
    row, at = _named(headers)
    ends = expires_ms(rows)[row]
    is_moved = (ends != NEVER) & (by_ms[row] != 0)
    if not is_moved.any():
        return rows
    import pyarrow.compute as pc  # as below

    # Not 1970, which would be for ever, nor before; and no more digits than can be read.
    ends = np.clip(ends + by_ms[row], 1, END_MS_MAX)[is_moved]
    mask = np.zeros(len(headers.items), np.bool_)
    mask[at[is_moved]] = True
    texts = from_numpy(ends).cast(pa.string()).cast(pa.binary())
    items = pc.replace_with_mask(headers.items, from_numpy(mask), texts)
    kind = headers.type
    pairs = pa.StructArray.from_arrays(
        [headers.keys, items], fields=[kind.key_field, kind.item_field]
    )
    column = pa.Array.from_buffers(
        kind,
        len(headers),
        headers.buffers()[:2],
        offset=headers.offset,
        children=[pairs],
    )
    number = rows.schema.get_field_index("headers")
    return rows.set_column(number, rows.schema.field(number), column)


def _named(headers: pa.MapArray) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return the rows that have the header, and where in the items each of them says it."""
    # Here and not above: it takes long to load, and clients want only the name of the header.
    import pyarrow.compute as pc

    is_named = pc.equal(headers.keys, _NAME)
    at = np.flatnonzero(as_numpy(filled(is_named, False)))
    if not len(at):
        return at, at
    # Positions count from the start of the column's own buffer, also where the column is a slice.
    bounds = np.frombuffer(headers.buffers()[1], np.int32, len(headers) + 1, headers.offset * 4)
    row = bounds.searchsorted(at, side="right") - 1
    is_ours = (row >= 0) & (row < len(headers))
    is_ours[is_ours] = as_numpy(headers.is_valid())[row[is_ours]]
    return row[is_ours], at[is_ours]
