"""The tables of streams in Cassandra, and the statements on them.

    streams    by stream             last, first, stamp, floor, pending: the head, only ever changed
                                     by Paxos; the name FF holds the version of the schema
    messages   by (stream, bucket)   a thousand positions a partition, so that none grows for ever
    ids        by (stream, id)       position of each id
    parts      by ref                bodies too large for a message, in pieces
    expiries   by (slot, shard)      what expires in each minute; slot -1 lists the slots there are

Every row of `messages`, `ids` and `expiries` is written with the *stamp* of the head that brought
it, and removed with the next microsecond. Whoever writes it again later, because it was slow,
changes nothing: what was removed stays removed.
"""

import zlib
from typing import Any, NamedTuple

from waterclock.model.units import HOUR_MS, KIB, MINUTE_MS

BUCKET = 1_000
"""Positions of one partition: with inline bodies, 32 MB at most."""
INLINE_BYTES_MAX = 32 * KIB
PART_BYTES = 512 * KIB
IDS_AT_ONCE = 10
"""Ids looked up or written by one request: as many as servers take without a warning."""
SLOT_MS = MINUTE_MS
SHARDS = 4
CLAIM_MS = HOUR_MS
SCHEMA_KEY = b"\xff"
"""No stream has this name: it is no text."""
SLOTS = -1
"""The slot in which the slots are listed."""

_KEYSPACE = """CREATE KEYSPACE IF NOT EXISTS {keyspace} WITH replication =
{{'class': 'NetworkTopologyStrategy', 'replication_factor': {replication}}}"""
_PENDING = "frozen<list<frozen<tuple<blob, blob, bigint, bigint, blob, blob, int, int>>>>"
_TABLES = (
    f"""streams (stream blob PRIMARY KEY, last bigint, first bigint, stamp bigint, floor bigint,
    pending {_PENDING})""",
    """messages (stream blob, bucket bigint, position bigint, id blob, call blob, at bigint,
    until bigint, body blob, ref blob, parts int, size int,
    PRIMARY KEY ((stream, bucket), position))""",
    """ids (stream blob, id blob, position bigint, call blob, PRIMARY KEY ((stream, id)))""",
    """parts (ref blob, number int, body blob, PRIMARY KEY (ref, number))""",
    """expiries (slot bigint, shard int, until bigint, stream blob, position bigint, ref blob,
    id blob, parts int, PRIMARY KEY ((slot, shard), until, stream, position, ref))
    WITH gc_grace_seconds = 3600""",
)
_STATEMENTS = {
    "head": "SELECT last, first, stamp, floor FROM {k}.streams WHERE stream = ?",
    "whole": "SELECT last, first, stamp, floor, pending FROM {k}.streams WHERE stream = ?",
    "begin": """INSERT INTO {k}.streams (stream, last, first, stamp, floor, pending)
        VALUES (?, ?, ?, ?, 0, ?) IF NOT EXISTS""",
    "move": """UPDATE {k}.streams SET last = ?, first = ?, stamp = ?, pending = ?
        WHERE stream = ? IF stamp = ?""",
    "settle": """UPDATE {k}.streams SET stamp = ?, floor = ?, pending = null
        WHERE stream = ? IF stamp = ?""",
    "ids": "SELECT id, position, call FROM {k}.ids WHERE stream = ? AND id IN ?",
    "add_id": """INSERT INTO {k}.ids (stream, id, position, call) VALUES (?, ?, ?, ?)
        USING TIMESTAMP ?""",
    "drop_id": "DELETE FROM {k}.ids USING TIMESTAMP ? WHERE stream = ? AND id = ?",
    "add_message": """INSERT INTO {k}.messages (stream, bucket, position, id, call, at, until,
        body, ref, parts, size) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ?""",
    "messages": """SELECT position, id, at, until, body, ref, parts, size FROM {k}.messages
        WHERE stream = ? AND bucket = ? AND position > ? AND position <= ? LIMIT ?""",
    "removable": """SELECT position, id, at, until, ref, parts, writetime(at) FROM {k}.messages
        WHERE stream = ? AND bucket = ? AND position > ? AND position <= ?""",
    "drop_message": """DELETE FROM {k}.messages USING TIMESTAMP ?
        WHERE stream = ? AND bucket = ? AND position = ?""",
    "message_ref": """SELECT ref FROM {k}.messages WHERE stream = ? AND bucket = ?
        AND position = ?""",
    "add_part": "INSERT INTO {k}.parts (ref, number, body) VALUES (?, ?, ?)",
    "part": "SELECT body FROM {k}.parts WHERE ref = ? AND number = ?",
    "drop_parts": "DELETE FROM {k}.parts WHERE ref = ?",
    "add_expiry": """INSERT INTO {k}.expiries (slot, shard, until, stream, position, ref, id, parts)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ?""",
    "drop_expiry": """DELETE FROM {k}.expiries USING TIMESTAMP ? WHERE slot = ? AND shard = ?
        AND until = ? AND stream = ? AND position = ? AND ref = ?""",
    "expiries": """SELECT until, stream, position, ref, id, parts, writetime(id) FROM {k}.expiries
        WHERE slot = ? AND shard = ? AND until <= ? LIMIT ?""",
}
SERIAL = {"whole"}
"""Reads that see what Paxos has decided, and not only what a quorum was told of it."""


class Head(NamedTuple):
    """How far a stream is."""

    last: int
    first: int
    """The first position of the latest batch, which may not be in `messages` yet."""
    stamp: int
    """Microseconds; greater with every change."""
    floor: int
    """There is nothing at this position and before."""


class Pending(NamedTuple):
    """A message of the latest batch, as the head holds it."""

    id: bytes
    token: bytes
    at: int
    until: int | None
    body: bytes
    ref: bytes
    """Where the body is if not here; empty otherwise."""
    parts: int
    size: int


def definitions(keyspace: str, *, replication: int) -> list[str]:
    """Give the statements that create what is missing."""
    created = [f"CREATE TABLE IF NOT EXISTS {keyspace}.{table}" for table in _TABLES]
    return [_KEYSPACE.format(keyspace=keyspace, replication=replication), *created]


def statements(keyspace: str) -> dict[str, str]:
    """Give the statements by their names."""
    return {name: text.format(k=keyspace) for name, text in _STATEMENTS.items()}


def message_row(stream: bytes, position: int, message: Pending, stamp: int) -> tuple[Any, ...]:
    """Give the values of `add_message`."""
    return (
        stream, position // BUCKET, position, message.id, message.token, message.at, message.until,
        message.body, message.ref, message.parts, message.size, stamp,
    )  # fmt: skip


def slot_of(until: int, now_ms: int) -> int:
    """Tell in which minute something is looked for: when it expires, but none that is past."""
    return max(until, now_ms) // SLOT_MS


def shard_of(key: bytes) -> int:
    """Spread what expires in the same minute."""
    return zlib.crc32(key) % SHARDS


def cut(body: bytes) -> list[bytes]:
    """Cut a body into parts."""
    return [body[start : start + PART_BYTES] for start in range(0, len(body), PART_BYTES)]
