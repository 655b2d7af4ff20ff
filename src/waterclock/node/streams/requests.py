"""What nodes ask the leader of a partition of `__streams`, in msgpack.

Every request is an array that begins with its name. Answers are what the calls of a store return;
`docs/formats/streams.md` has both.
"""

from typing import Final

import msgspec

from waterclock.model.errors import BadInput
from waterclock.stores.base import Record
from waterclock.stores.log.rows import Row

METHOD: Final = "Nodes/Streams"
"""Of nodes only, among their calls of each other."""


class _Request(msgspec.Struct, frozen=True, array_like=True):
    pass


class StoreRecords(_Request, frozen=True, tag="store"):
    """Store messages in a stream; the answer is a list of `Stored`."""

    partition: int
    stream: str
    records: list[Record]
    now_ms: int


class ReadPage(_Request, frozen=True, tag="read"):
    """Read a stream; the answer is a `Page`."""

    partition: int
    stream: str
    after: int
    limit: int
    now_ms: int
    bytes_max: int


class DeleteMessages(_Request, frozen=True, tag="delete"):
    """Remove messages of a stream; the answer is how many."""

    partition: int
    stream: str
    older_than_ms: int | None


class TakeOver(_Request, frozen=True, tag="takeOver"):
    """Write rows of a log that a node had to itself; the answer is nothing."""

    partition: int
    rows: list[Row]


class BroughtOver(_Request, frozen=True, tag="broughtOver"):
    """Tell the leader of `__meta` that a node has brought all its rows; the answer is nothing."""

    node: str


Request = StoreRecords | ReadPage | DeleteMessages | TakeOver | BroughtOver

encode = msgspec.msgpack.encode
_DECODER: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)


def decode_request(data: bytes) -> Request:
    """Read a request of another node."""
    try:
        return _DECODER.decode(data)
    except msgspec.MsgspecError as error:
        raise BadInput(f"{METHOD}: {error}") from None
