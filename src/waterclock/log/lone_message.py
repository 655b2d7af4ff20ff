"""One message, as the bytes of a batch: what a publish of a single one is, and what a batch over
very many partitions falls into.

Arrow takes 40 us to encode such a batch and as long to prove that one is sound. But a message with
an id, a value and perhaps a key, and neither headers nor a due time, is always the same bytes but
for these three and their lengths. So the lengths are written into a copy of a message that Arrow
has encoded, and the copy is kept for the next of these lengths; a message is put together with it,
and one that comes is compared: what is byte for byte what we would have written needs no proof. All
other batches are left to Arrow. Layout: Arrow columnar format, `Message.fbs`.
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

_BYTE_COLUMNS: Final = 3
"""Id, key and value; each has a validity, which is empty if it has a value, two offsets, and its
bytes."""
_COLUMN_BUFFERS: Final = 3 * _BYTE_COLUMNS
_ID, _KEY, _VALUE = 2, 5, 8
"""Which of the buffers has the bytes of a column."""
_KEY_VALIDITY: Final = 3
_PAIR: Final = struct.Struct("<qq")
"""Position and length of a buffer."""
_BUFFERS: Final = struct.Struct("<40q")
"""A batch of messages has 20."""
_ID_BUFFERS: Final = struct.Struct("<4q")
"""The offsets of the id, and its bytes."""
_OFFSETS: Final = struct.Struct("<ii")
_LENGTH: Final = struct.Struct("<q")
_PADDING: Final = [bytes(-size % 8) for size in range(8)]


class _Template(NamedTuple):
    """The message of a row whose id and value are empty, and its key too or null."""

    metadata: bytes
    """All before its body."""
    body_length_at: int
    buffers_at: int
    """Where the metadata has the position and the length of each buffer, end to end."""
    fixed: tuple[bytes, ...]
    """What of it is the same for every such row."""
    validities: tuple[tuple[int, bytes], ...]
    """Of the three columns: how long it is, and its bytes with what fills them up."""
    rest: bytes
    """The body behind the three columns."""
    rest_buffers: tuple[tuple[int, int], ...]
    """Position and length of the buffers in there; positions count from its beginning."""


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

    def __init__(
        self,
        body: memoryview,
        first_id: bytes,
        key: bytes | None,
        rows: pa.RecordBatch | None = None,
    ) -> None:
        set_once = object.__setattr__
        set_once(self, "body", body)
        set_once(self, "first_id", first_id)
        set_once(self, "key", key)
        set_once(self, "_rows", rows)

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
    buffers_at = _template(has_key=True).buffers_at
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


def lone_id(body: memoryview) -> bytes | None:
    """Return the id in the body of a frame of one message with a key; None if Arrow must be asked.

    Many a log is nothing but such frames, and all of them are read after a crash.
    """
    place = _id_place(bytes(body[: len(_template(has_key=True).metadata)]))
    if place is None:
        return None
    ends_at, ids_at, size = place
    # A body that ends early has not the bytes of its last buffers.
    if ends_at + _OFFSETS.size > len(body) or ids_at + size > len(body):
        return None
    start, end = _OFFSETS.unpack_from(body, ends_at)
    return bytes(body[ids_at + start : ids_at + end]) if 0 <= start <= end <= size else None


@lru_cache(maxsize=_SHAPES_MAX)
def _id_place(metadata: bytes) -> tuple[int, int, int] | None:
    """Return where a message with this before its body has its two offsets, its id and how long
    that may be, all counted from the first byte; None if Arrow must be asked."""
    template = _template(has_key=True)
    body_at, buffers_at = len(template.metadata), template.buffers_at
    if _fixed(metadata, template.body_length_at, buffers_at) != template.fixed:
        return None
    ends_at, _, ids_at, size = _ID_BUFFERS.unpack_from(metadata, buffers_at + _PAIR.size)
    return None if min(ends_at, ids_at, size) < 0 else (body_at + ends_at, body_at + ids_at, size)


@lru_cache(maxsize=_SHAPES_MAX)
def _shape(id_bytes: int, key_bytes: int | None, value_bytes: int) -> Shape:
    template = _template(has_key=key_bytes is not None)
    numbers: list[int] = []
    between: list[bytes] = []
    starts: list[int] = []
    at, padding = 0, b""
    sizes = (id_bytes, key_bytes or 0, value_bytes)
    for size, (validity_bytes, validity) in zip(sizes, template.validities, strict=True):
        between.append(padding + validity + _OFFSETS.pack(0, size))
        padding = _PADDING[size % 8]
        numbers += (at, validity_bytes)
        at += len(validity)
        numbers += (at, _OFFSETS.size, at + _OFFSETS.size, size)
        starts.append(len(template.metadata) + at + _OFFSETS.size)
        at += _OFFSETS.size + size + len(padding)
    for position, size in template.rest_buffers:
        numbers += (at + position, size)
    length = at + len(template.rest)
    metadata = bytearray(template.metadata)
    _BUFFERS.pack_into(metadata, template.buffers_at, *numbers)
    _LENGTH.pack_into(metadata, template.body_length_at, length)
    return Shape(
        bytes(metadata) + between[0],
        between[1],
        between[2],
        padding + template.rest,
        (starts[0], starts[1], starts[2]),
        len(metadata) + length,
    )


@lru_cache(maxsize=2)
def _template(*, has_key: bool) -> _Template:
    key = b"" if has_key else None
    data = bytes(encode(from_messages([Message(b"", key=key, message_id=b"")])))
    places = places_in(data)
    numbers = _BUFFERS.unpack_from(data, places.buffers_at)
    buffers = list(zip(numbers[::2], numbers[1::2], strict=True))
    body, rest_at = data[places.body_at :], buffers[_COLUMN_BUFFERS][0]
    metadata = data[: places.body_at]
    return _Template(
        metadata,
        places.body_length_at,
        places.buffers_at,
        _fixed(metadata, places.body_length_at, places.buffers_at),
        tuple(
            (buffers[first][1], body[buffers[first][0] : buffers[first + 1][0]])
            for first in range(0, _COLUMN_BUFFERS, 3)
        ),
        body[rest_at:],
        tuple((position - rest_at, size) for position, size in buffers[_COLUMN_BUFFERS:]),
    )


def _fixed(metadata: bytes, body_length_at: int, buffers_at: int) -> tuple[bytes, ...]:
    """Return all of it but the lengths and positions that differ from row to row."""
    return (
        metadata[:body_length_at],
        metadata[body_length_at + _LENGTH.size : buffers_at],
        metadata[buffers_at + _BUFFERS.size :],
    )
