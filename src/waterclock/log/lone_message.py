"""One message, as the bytes of a batch: what a publish of a single one is.

Arrow takes 40 us to encode such a batch and as long to prove that one is sound. But a message with
an id, a value and perhaps a key, and neither headers nor a due time, is always the same bytes but
for these three, if their lengths are the same. So Arrow encodes one of each such shape, which is
kept; the next is put together, and one that comes is compared: what is byte for byte what we would
have written needs no proof. All other batches are left to Arrow.
"""

import struct
from functools import lru_cache
from typing import Final, NamedTuple

import pyarrow as pa

from waterclock.log.batch import Batch, decode_untrusted, parse_batch, places_in
from waterclock.log.schema import encode, from_messages
from waterclock.model.errors import LimitExceeded
from waterclock.model.limits import Limits
from waterclock.model.message import Message

BYTES_MAX: Final = 64 << 10
"""Of a larger one, its own bytes are the cost."""
_SHAPES_MAX: Final = 1_024
"""Each takes 1 KiB. Producers have ids of one length, and values of a few."""

_PAIR: Final = struct.Struct("<qq")
_ID, _KEY, _VALUE = 2, 5, 8
"""Which of the buffers has the bytes of a column."""
_KEY_VALIDITY: Final = 3


class Shape(NamedTuple):
    """What stands before the id, the key and the value of such a batch, and behind them."""

    before: bytes
    then: bytes
    last: bytes
    behind: bytes
    starts: tuple[int, int, int]
    """Where the three begin."""
    size: int


class LoneMessage(Batch):
    """A batch of one message; Arrow is asked for its row only if somebody wants it."""

    __slots__ = ("_rows", "first_id", "key")

    _rows: pa.RecordBatch | None
    first_id: bytes
    key: bytes | None
    due_ms = None
    may_expire = False
    count = 1

    def __init__(self, body: memoryview, first_id: bytes, key: bytes | None) -> None:
        set_once = object.__setattr__
        set_once(self, "body", body)
        set_once(self, "first_id", first_id)
        set_once(self, "key", key)
        set_once(self, "_rows", None)

    @property
    def rows(self) -> pa.RecordBatch:
        """Read only where somebody looks: few do."""
        if self._rows is None:
            object.__setattr__(self, "_rows", decode_untrusted(self.body))
        return self._rows


def encode_lone(message_id: bytes, key: bytes | None, value: bytes) -> bytes:
    """Return the batch of one message, as Arrow would encode it."""
    shape = _shape(len(message_id), None if key is None else len(key), len(value))
    return b"".join(
        (shape.before, message_id, shape.then, key or b"", shape.last, value, shape.behind)
    )


def parse_any(body: bytes | memoryview, limits: Limits, *, now_ms: int) -> Batch:
    """Check a producer's bytes; raise BadBatch or LimitExceeded naming the field."""
    is_small = isinstance(body, bytes) and len(body) <= BYTES_MAX
    found = _lone(bytes(body)) if is_small else None
    if found is None:
        return parse_batch(body, limits, now_ms=now_ms)
    message_id, key, value_bytes = found
    key_bytes = 0 if key is None else len(key)
    for field, size, limit in (
        ("batch bytes", len(body), limits.batch_bytes_max),
        ("message_id bytes", len(message_id), limits.message_id_bytes_max),
        ("key bytes", key_bytes, limits.key_bytes_max),
        ("message bytes", len(message_id) + key_bytes + value_bytes, limits.message_bytes_max),
    ):
        if size > limit:
            raise LimitExceeded(field, limit, got=size)
    return LoneMessage(memoryview(body), message_id, key)


def _lone(body: bytes) -> tuple[bytes, bytes | None, int] | None:
    """Return the id, the key, and the bytes of the value, if these are such a batch of ours."""
    buffers_at = _buffers_at()
    if len(body) < buffers_at + _PAIR.size * (_VALUE + 1):
        return None
    id_bytes, key_bytes, value_bytes, validity_bytes = (
        _PAIR.unpack_from(body, buffers_at + _PAIR.size * number)[1]
        for number in (_ID, _KEY, _VALUE, _KEY_VALIDITY)
    )
    size = len(body)
    if not (0 < id_bytes < size and 0 <= key_bytes < size and 0 <= value_bytes < size):
        return None
    if validity_bytes and key_bytes:
        return None
    shape = _shape(id_bytes, None if validity_bytes else key_bytes, value_bytes)
    if shape.size != size:
        return None
    id_at, key_at, value_at = shape.starts
    is_same = (
        body.startswith(shape.before)
        and body[id_at + id_bytes : key_at] == shape.then
        and body[key_at + key_bytes : value_at] == shape.last
        and body.endswith(shape.behind)
    )
    if not is_same:
        return None
    key = None if validity_bytes else body[key_at : key_at + key_bytes]
    return body[id_at : id_at + id_bytes], key, value_bytes


@lru_cache(maxsize=_SHAPES_MAX)
def _shape(id_bytes: int, key_bytes: int | None, value_bytes: int) -> Shape:
    key = None if key_bytes is None else bytes(key_bytes)
    message = Message(bytes(value_bytes), key=key, message_id=bytes(id_bytes))
    data = bytes(encode(from_messages([message])))
    places = places_in(data)
    id_at, key_at, value_at = (
        places.body_at + _PAIR.unpack_from(data, places.buffers_at + _PAIR.size * number)[0]
        for number in (_ID, _KEY, _VALUE)
    )
    return Shape(
        data[:id_at],
        data[id_at + id_bytes : key_at],
        data[key_at + (key_bytes or 0) : value_at],
        data[value_at + value_bytes :],
        (id_at, key_at, value_at),
        len(data),
    )


@lru_cache(maxsize=1)
def _buffers_at() -> int:
    """Where such a batch has the positions and lengths of its buffers."""
    return places_in(bytes(encode(from_messages([Message(b"", message_id=b"x")])))).buffers_at
