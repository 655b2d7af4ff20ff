"""What a store of streams is: a few calls, and the guarantees all of them give.

A stream is a list of messages with the positions 1, 2, 3 ... Whatever the database, these hold:

- *Durable and in order*: when `store` returns, its records are there and stay there; positions are
  dense and follow the order of storing, however many nodes write to the stream at once.
- *Once*: an id is stored once while its message can be read; repeats are answered with its first
  position. From its `expires_ms` on the id is new, and what is stored under it has a position of
  its own.
- *Nothing appears in the past*: a reader that has seen position n finds no smaller one later.
- *Expired is gone*: no message is read from its `expires_ms` on. Positions are never given twice.
- *Patient*: a database that cannot be reached is `StoreUnavailable`; when it is back, the same
  object works again by itself. What a failed call did is not known; repeating it is safe.

Names and ids are any text, compared by their bytes. Therefore every store keeps them as bytes.
`tests/stores` proves all of this for each store, against the real server.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from waterclock.model.errors import BadInput
from waterclock.model.limits import check
from waterclock.model.units import MIB

STREAM_BYTES_MAX = 512
MESSAGE_ID_BYTES_MAX = 256
BODY_BYTES_MAX = 10 * MIB
CALL_BYTES_MAX = 64 * MIB
"""Bodies of one call of `store`: it is one transaction, and one frame of the log."""
READ_BYTES_MAX = 16 * MIB
END = 1 << 62
"""A position behind all others."""
EXPIRES_MS_MAX = (1 << 63) - 1
"""What a signed 64-bit column holds."""


class Record(NamedTuple):
    """A message to be stored."""

    message_id: str
    body: bytes
    expires_ms: int | None = None
    """It is of no use from then on, by the wall clock."""


class Stored(NamedTuple):
    """What became of a record."""

    position: int
    """1, 2, 3 ... in its stream."""
    is_new: bool
    """If not, this id was stored before and this is its first position."""


class StoredMessage(NamedTuple):
    """A message as it is read."""

    position: int
    message_id: str
    body: bytes
    stored_ms: int
    expires_ms: int | None


class Page(NamedTuple):
    """Some messages of a stream, by ascending position."""

    messages: list[StoredMessage]
    last: int
    """The last position ever given out in this stream, 0 if none."""


class StreamStore(Protocol):
    """A place for stored streams. Any number of calls may be under way at once."""

    is_shared: bool
    """Other nodes may store to the same streams."""

    async def open(self) -> None:
        """Connect, and create or migrate the schema. Several nodes may do so at once."""
        ...

    async def store(self, stream: str, records: Sequence[Record], *, now_ms: int) -> list[Stored]:
        """Store all of them in order. They are durable on return.

        If it fails, some may be stored: none, all, or, where a database must cut a long call into
        several, the first ones. Repeating it is safe.
        """
        ...

    async def read(
        self, stream: str, *, after: int, limit: int, now_ms: int, bytes_max: int = READ_BYTES_MAX
    ) -> Page:
        """Give messages at positions > `after`: at least one if there is one.

        No more than `limit`, and no more than fit into `bytes_max` of bodies beyond the first.
        """
        ...

    async def delete(self, stream: str, *, older_than_ms: int | None = None) -> int:
        """Remove the messages stored before then, or all; say how many. Positions go on."""
        ...

    async def purge(self, *, now_ms: int, limit: int = 1_000) -> int:
        """Remove expired messages, at most so many; say how many. Call it now and then."""
        ...

    async def close(self) -> None:
        """Let go of connections and files."""
        ...


class Placed(NamedTuple):
    """The answer to a call, and what it has to write."""

    stored: list[Stored]
    new_rows: list[int]
    """The records to write, in order: they get the positions behind the last one."""
    last: int
    """The last position once they are written."""


def place(keys: Sequence[bytes], known: Mapping[bytes, int], last: int) -> Placed:
    """Give each id its first position: a known one, one of this call, or the next.

    Every store that counts positions itself asks this, inside the transaction that holds the
    stream's counter: what is known of the ids is true until it ends.
    """
    positions = dict(known)
    stored: list[Stored] = []
    new_rows: list[int] = []
    for row, key in enumerate(keys):
        position = positions.get(key)
        if position is None:
            last += 1
            positions[key] = last
            new_rows.append(row)
            stored.append(Stored(last, is_new=True))
        else:
            stored.append(Stored(position, is_new=False))
    return Placed(stored, new_rows, last)


def stream_key(stream: str) -> bytes:
    """Give the bytes of a stream's name, or raise BadInput."""
    return _key("stream", stream, STREAM_BYTES_MAX)


def message_key(message_id: str) -> bytes:
    """Give the bytes of a message's id, or raise BadInput."""
    return _key("message_id", message_id, MESSAGE_ID_BYTES_MAX)


def check_records(records: Sequence[Record]) -> list[bytes]:
    """Give the bytes of the ids, or raise BadInput if a record cannot be stored."""
    check("bodies of one call", sum(len(record.body) for record in records), CALL_BYTES_MAX)
    for record in records:
        check("body", len(record.body), BODY_BYTES_MAX)
        if record.expires_ms is not None and not 0 <= record.expires_ms <= EXPIRES_MS_MAX:
            raise BadInput(f"expires_ms must be 0 to {EXPIRES_MS_MAX} (got {record.expires_ms})")
    return [message_key(record.message_id) for record in records]


def _key(field: str, text: str, limit: int) -> bytes:
    if text.isascii() and 0 < len(text) <= limit:
        return text.encode()
    try:
        key = text.encode()
    except UnicodeEncodeError as error:
        raise BadInput(f"{field} holds half of a surrogate pair, which is no text") from error
    if not key:
        raise BadInput(f"{field} is empty")
    check(field, len(key), limit)
    return key
