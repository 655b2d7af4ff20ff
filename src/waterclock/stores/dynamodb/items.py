"""The items of streams in a DynamoDB table: their keys, their fields, and how bodies are cut.

    pk                sk               what
    s<stream>         h                head: last, and first of the latest transaction
    s<stream>         m<position>      message: id, token, at, until, shard; body, or ref and parts
    s<stream>         i<message id>    id: position, token
    p<ref>            <number>         part of a body too large for its message
    p<ref>            claim            the parts belong to no message (yet): until, shard

Keys are bytes, positions eight of them, big-endian, so that their order is that of the numbers.
What expires has a `shard` and so stands in the index `expiry`, by `until`.
"""

import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from waterclock.model.units import HOUR_MS, KIB, MIB
from waterclock.stores.base import StoredMessage
from waterclock.stores.write_queue import Entry

Item = dict[str, dict[str, Any]]
TransactItem = dict[str, dict[str, Any]]

INLINE_BYTES_MAX = 256 * KIB
PART_BYTES = 384 * KIB
"""An item holds 400 KB, its keys and names included."""
ACTIONS_MAX = 100
"""Of one transaction, by DynamoDB's rules, as is its size of 4 MB."""
TRANSACTION_BYTES_MAX = 3 * MIB
ITEM_BYTES = 2 * KIB
"""What a message takes at most besides its body, its id's item included."""
CLAIM_MS = HOUR_MS
"""So long after a call was made it will not finish any more: its parts are swept."""
SHARDS = 4
"""Of the index of what expires: DynamoDB limits what one key of it can take."""

INDEX = "expiry"
KEYS = [{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}]
TABLE: dict[str, Any] = {
    "AttributeDefinitions": [
        {"AttributeName": "pk", "AttributeType": "B"},
        {"AttributeName": "sk", "AttributeType": "B"},
        {"AttributeName": "shard", "AttributeType": "N"},
        {"AttributeName": "until", "AttributeType": "N"},
    ],
    "KeySchema": KEYS,
    "BillingMode": "PAY_PER_REQUEST",
    "GlobalSecondaryIndexes": [
        {
            "IndexName": INDEX,
            "KeySchema": [
                {"AttributeName": "shard", "KeyType": "HASH"},
                {"AttributeName": "until", "KeyType": "RANGE"},
            ],
            "Projection": {
                "ProjectionType": "INCLUDE",
                "NonKeyAttributes": ["id", "ref", "parts"],
            },
        }
    ],
}

HEAD, CLAIM = b"h", b"claim"
SCHEMA_KEY: Item = {"pk": {"B": b"v"}, "sk": {"B": b"v"}}


class Head(NamedTuple):
    """How far a stream is."""

    first: int
    """The first position of the latest transaction."""
    last: int


class Body(NamedTuple):
    """Where a body is that does not fit into its message."""

    ref: bytes
    parts: int


def number(value: int) -> dict[str, str]:
    """Give a number as DynamoDB writes it."""
    return {"N": str(value)}


def stream_item(stream: bytes, sk: bytes) -> Item:
    """Give the key of an item of a stream."""
    return {"pk": {"B": b"s" + stream}, "sk": {"B": sk}}


def message_sk(position: int) -> bytes:
    """Give the sort key of a message."""
    return b"m" + position.to_bytes(8, "big")


def part_key(ref: bytes, index: int) -> Item:
    return {"pk": {"B": b"p" + ref}, "sk": {"B": index.to_bytes(2, "big")}}


def claim_key(ref: bytes) -> Item:
    """Give the key of the claim on parts."""
    return {"pk": {"B": b"p" + ref}, "sk": {"B": CLAIM}}


def claim_item(ref: bytes, parts: int, until: int) -> Item:
    """Give the item that has parts swept from then on."""
    expiry = {"until": number(until), "shard": number(_shard(ref))}
    return {**claim_key(ref), **expiry, "ref": {"B": ref}, "parts": number(parts)}


def head_of(item: Item | None) -> Head:
    """Read a head; without one the stream is empty."""
    return Head(int(item["first"]["N"]), int(item["last"]["N"])) if item else Head(1, 0)


def position_of(item: Item) -> int:
    """Give the position of a message."""
    sk: bytes = item["sk"]["B"]
    return int.from_bytes(sk[1:], "big")


def message_item(stream: bytes, position: int, entry: Entry, body: Body | None) -> Item:
    item = {
        **stream_item(stream, message_sk(position)),
        "id": {"B": entry.key},
        "token": {"B": entry.token},
        "at": number(entry.now_ms),
        "size": number(len(entry.record.body)),
    }
    if entry.record.expires_ms is not None:
        shard = _shard(stream + entry.key)
        item |= {"until": number(entry.record.expires_ms), "shard": number(shard)}
    if body is None:
        item["body"] = {"B": entry.record.body}
    else:
        item |= {"ref": {"B": body.ref}, "parts": number(body.parts)}
    return item


def message_of(item: Item, body: bytes) -> StoredMessage:
    """Read the item of a message."""
    message_id: bytes = item["id"]["B"]
    until = int(item["until"]["N"]) if "until" in item else None
    at = int(item["at"]["N"])
    return StoredMessage(position_of(item), message_id.decode(), body, at, until)


def is_expired(item: Item, now_ms: int) -> bool:
    """Tell whether a message is of no use any more."""
    return "until" in item and int(item["until"]["N"]) <= now_ms


def body_of(item: Item) -> Body | None:
    """Tell where the body is, if it is not in the item."""
    return Body(item["ref"]["B"], int(item["parts"]["N"])) if "ref" in item else None


def cut(body: bytes) -> list[bytes]:
    """Cut a body into parts."""
    return [body[start : start + PART_BYTES] for start in range(0, len(body), PART_BYTES)]


def in_transactions(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    """Cut a list of entries into those that fit into one transaction each."""
    start, actions, size = 0, 1, 0
    for row, entry in enumerate(entries):
        is_inline = len(entry.record.body) <= INLINE_BYTES_MAX
        its_actions = 2 if is_inline else 3
        its_size = ITEM_BYTES + (len(entry.record.body) if is_inline else 0)
        is_full = actions + its_actions > ACTIONS_MAX or size + its_size > TRANSACTION_BYTES_MAX
        if row > start and is_full:
            yield entries[start:row]
            start, actions, size = row, 1, 0
        actions += its_actions
        size += its_size
    if start < len(entries):
        yield entries[start:]


def _shard(key: bytes) -> int:
    return zlib.crc32(key) % SHARDS
