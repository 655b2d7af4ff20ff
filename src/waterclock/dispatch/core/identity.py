"""The identity of a message: a uuid and a birth that every dispatcher derives alike.

A uuid looks like a uuid4 and is derived, so that a new leader gives a message the name it had
before, and the write that both asked for is made once. It is a prefix of 10 bytes, hashed from
where the message stands, and a number of 6:

    stream source     hash(its key, ms of the entry id, high bits of its seq)   low 48 bits of seq
    pub/sub source    hash(its channel, the last marker before the message)     position behind it

A *sequence marker* is a small message that the leader publishes beside the user's channel every
~100 ms. Redis keeps one order over all channels of a connection, so all dispatchers agree how many
messages stand between two markers, and thereby on the name of each (`ring.py`). The *birth* of a
message is the time of its marker, or the ms of its entry id; dedup files it under that.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from struct import Struct
from struct import error as StructError

from waterclock.model.errors import BadInput

PREFIX_BYTES = 10
NUMBER_MAX = (1 << 48) - 1
NONCE_BYTES = 8
U64_MAX = (1 << 64) - 1

_MARKER = Struct(">2sBQQQ8s")
_POSITION = Struct(">QQ8sQ")
_MAGIC = b"wm"
_VERSION = 1


class BadMarker(BadInput):
    """The bytes are not a marker or a position of ours: ignore them."""


@dataclass(frozen=True, slots=True)
class MarkerName:
    """What tells a marker from every other: who published it, and its number with that leader."""

    epoch: int
    number: int
    nonce: bytes
    """8 random bytes of the publisher, so that even two leaders of one epoch do not collide."""


@dataclass(frozen=True, slots=True)
class Position:
    """The place behind the first `count` messages that follow a marker."""

    marker: MarkerName
    count: int

    def to_bytes(self) -> bytes:
        """Return the bytes that the leader stores with each stored batch."""
        return _POSITION.pack(self.marker.epoch, self.marker.number, self.marker.nonce, self.count)


@dataclass(frozen=True, slots=True)
class SequenceMarker:
    """A marker as it is published; `stored` tells standbys what they need not keep any more."""

    name: MarkerName
    time_ms: int
    stored: Position | None = None

    def to_bytes(self) -> bytes:
        name = self.name
        head = _MARKER.pack(_MAGIC, _VERSION, name.epoch, name.number, self.time_ms, name.nonce)
        return head + (self.stored.to_bytes() if self.stored else b"")


def parse_position(raw: bytes) -> Position:
    """Return the position that was stored; raise BadMarker."""
    try:
        epoch, number, nonce, count = _POSITION.unpack(raw)
    except StructError:
        raise BadMarker(f"a position of {len(raw)} bytes") from None
    return Position(MarkerName(epoch, number, nonce), count)


def parse_marker(raw: bytes) -> SequenceMarker:
    """Return the marker that was published; raise BadMarker if another program wrote on the
    channel."""
    try:
        magic, version, epoch, number, time_ms, nonce = _MARKER.unpack_from(raw)
    except StructError:
        raise BadMarker(f"a marker of {len(raw)} bytes") from None
    if magic != _MAGIC or version != _VERSION:
        raise BadMarker("not a marker of this version")
    rest = raw[_MARKER.size :]
    return SequenceMarker(
        MarkerName(epoch, number, nonce), time_ms, parse_position(rest) if rest else None
    )


def marker_prefix(channel: str, marker: MarkerName) -> bytes:
    """Return the first 10 bytes of the uuids of all messages behind a marker."""
    return _prefix(b"marker", channel, marker.epoch, marker.number, marker.nonce)


def uuids_from(prefix: bytes, first: int, count: int) -> list[bytes]:
    """Return the uuids of messages first, first + 1, ... behind what gave the prefix."""
    return [prefix + number.to_bytes(6, "big") for number in range(first, first + count)]


def entry_uuids(key: str, entries: Sequence[bytes]) -> tuple[list[bytes], list[int]]:
    """Return the uuids and the births in ms of entries of a stream, given their ids `ms-seq`.

    Raises ValueError for what is not an entry id.
    """
    uuids, births_ms = [], []
    prefix, known = b"", (-1, -1)
    for entry in entries:
        ms, _, seq = entry.partition(b"-")
        birth_ms, number = int(ms), int(seq)
        scope = (birth_ms, number >> 48)
        # Entries of one millisecond share their prefix: one hash for many messages.
        if scope != known:
            if not (0 <= birth_ms <= U64_MAX and 0 <= number <= U64_MAX):
                raise ValueError(f"no entry id: {entry!r}")
            prefix, known = _prefix(b"entry", key, *scope), scope
        uuids.append(prefix + (number & NUMBER_MAX).to_bytes(6, "big"))
        births_ms.append(birth_ms)
    return uuids, births_ms


def shard_of(uuid: bytes, shards: int) -> int:
    """Return which of the output's shards a message is written to."""
    # The number spreads the messages behind one marker evenly; a stream's is nearly always 0, and
    # there the prefix does.
    return (int.from_bytes(uuid[:4], "big") + int.from_bytes(uuid[12:], "big")) % shards


def _prefix(kind: bytes, text: str, first: int, second: int, nonce: bytes = b"") -> bytes:
    seed = b"%b:%d:%d:%b:%b" % (kind, first, second, nonce.hex().encode(), text.encode())
    digest = bytearray(blake2b(seed, digest_size=PREFIX_BYTES, person=b"waterclock").digest())
    digest[6] = digest[6] & 0x0F | 0x40  # version 4 of RFC 9562
    digest[8] = digest[8] & 0x3F | 0x80  # its variant
    return bytes(digest)


def known_until_ms(birth_ms: int, *, bucket_ms: int, window_ms: int) -> int:
    """Return until when (Redis's time) it is known whether a message of this birth was written.
    From then on it is not written under this birth any more, by nobody."""
    return (birth_ms // bucket_ms + 1) * bucket_ms + window_ms
