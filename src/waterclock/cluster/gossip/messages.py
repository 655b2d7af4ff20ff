"""The messages of memberlist: a type byte and a msgpack map, in the dialect of Go's codec.

Texts and bytes are both "raw" of the old msgpack, so everything is read as bytes and what is a text
is decoded here. Numbers are checked, for nothing that comes from the network is believed.
`docs/formats/gossip.md` has the fields.

Changing a field: it is not ours to change; memberlist skips keys that it does not know, and so do
we. Golden bytes stand in tests/cluster/gossip/test_messages.py.
"""

from collections.abc import Callable
from functools import lru_cache
from ipaddress import ip_address
from typing import Any, NamedTuple, TypeAlias

import msgpack

from waterclock.cluster.gossip.errors import BadPacket

PING = 0
INDIRECT_PING = 1
ACK = 2
SUSPECT = 3
ALIVE = 4
DEAD = 5
PUSH_PULL = 6
COMPOUND = 7
USER = 8
COMPRESS = 9
ENCRYPT = 10
NACK = 11
HAS_CRC = 12
ERROR = 13

META_BYTES_MAX = 512
FIELDS_MAX = 64
"""Keys of a map and items of an array. msgpack makes room for them before it sees them, once for
each level of nesting, so this is what bounds the memory of a hostile packet."""
U32_MAX = (1 << 32) - 1
_CLAIMS = {SUSPECT, ALIVE, DEAD}
_CLAIM_BYTES_MAX = 1_024

Address: TypeAlias = tuple[str, int]
"""An IP address as text, and a port."""
Fields: TypeAlias = dict[bytes, Any]


class Ping(NamedTuple):
    """Asks a node for an ack; it goes to `source` where that is known, else back."""

    seq_no: int
    node: str
    source: Address | None = None
    source_node: str = ""


class IndirectPing(NamedTuple):
    """Asks a node to ping another one."""

    seq_no: int
    target: Address
    node: str
    wants_nack: bool
    source: Address | None = None
    source_node: str = ""


class Ack(NamedTuple):
    """Answers a ping."""

    seq_no: int
    payload: bytes = b""


class Nack(NamedTuple):
    """Answers an indirect ping whose target does not answer: the helper at least is there."""

    seq_no: int


class Suspect(NamedTuple):
    """Says that `node` does not answer `accuser`."""

    incarnation: int
    node: str
    accuser: str


class Alive(NamedTuple):
    """Says that a node is there, where, and what it says of itself."""

    incarnation: int
    node: str
    address: Address
    meta: bytes
    versions: bytes


class Dead(NamedTuple):
    """Says that `node` is gone; it left if it says so itself."""

    incarnation: int
    node: str
    accuser: str


class User(NamedTuple):
    """Bytes of the protocol above: Serf's."""

    body: bytes


class ErrorAnswer(NamedTuple):
    """Says why the other side ends a stream."""

    reason: str


Message: TypeAlias = Ping | IndirectPing | Ack | Nack | Suspect | Alive | Dead | User | ErrorAnswer

pack: Callable[[Any], bytes] = msgpack.Packer(use_bin_type=False, autoreset=True).pack
"""Old msgpack: texts and bytes are raw."""


def unpack(data: bytes) -> object:
    """Return one value; raise BadPacket if the bytes are anything else."""
    try:
        found: object = msgpack.unpackb(
            data,
            raw=True,
            strict_map_key=False,
            max_map_len=FIELDS_MAX,
            max_array_len=FIELDS_MAX,
        )
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
        raise BadPacket(f"not msgpack: {type(error).__name__}") from error
    return found


@lru_cache(maxsize=4_096)
def packed_host(host: str) -> bytes:
    """Return an IP address as it travels."""
    return ip_address(host).packed


@lru_cache(maxsize=4_096)
def host_of(packed: bytes) -> str:
    """Return an IP address as text; raise BadPacket if it is none."""
    if len(packed) not in (4, 16):
        raise BadPacket(f"an address of {len(packed)} bytes")
    address = ip_address(packed)
    # Go may write an IPv4 address in the form of IPv6.
    return str(getattr(address, "ipv4_mapped", None) or address)


def encode(message: Message) -> bytes:
    """Return the type byte and the body, its keys in the order in which Go writes them."""
    match message:
        case Ping(seq_no, node, source, source_node):
            fields: dict[str, Any] = {"Node": node, "SeqNo": seq_no}
            return _encoded(PING, fields | _source_fields(source, source_node))
        case IndirectPing(seq_no, target, node, wants_nack, source, source_node):
            fields = {"Nack": wants_nack, "Node": node, "Port": target[1], "SeqNo": seq_no}
            fields |= _source_fields(source, source_node)
            return _encoded(INDIRECT_PING, fields | {"Target": packed_host(target[0])})
        case Ack(seq_no, payload):
            return _encoded(ACK, {"Payload": payload, "SeqNo": seq_no})
        case Nack(seq_no):
            return _encoded(NACK, {"SeqNo": seq_no})
        case Suspect(incarnation, node, accuser):
            fields = {"From": accuser, "Incarnation": incarnation, "Node": node}
            return _encoded(SUSPECT, fields)
        case Dead(incarnation, node, accuser):
            return _encoded(DEAD, {"From": accuser, "Incarnation": incarnation, "Node": node})
        case Alive(incarnation, node, address, meta, versions):
            fields = {"Addr": packed_host(address[0]), "Incarnation": incarnation, "Meta": meta}
            fields |= {"Node": node, "Port": address[1], "Vsn": versions}
            return _encoded(ALIVE, fields)
        case User(body):
            return bytes([USER]) + body
        case ErrorAnswer(reason):
            return _encoded(ERROR, {"Error": reason})


def decode(data: bytes) -> Message:
    """Return the message; raise BadPacket if the bytes are none."""
    if not data:
        raise BadPacket("an empty message")
    if data[0] in _CLAIMS and len(data) <= _CLAIM_BYTES_MAX:
        return _claim(data)
    return _decoded(data)


@lru_cache(maxsize=1_024)
def _claim(data: bytes) -> Message:
    # News come to a node many times over, and always as the same bytes.
    return _decoded(data)


def _decoded(data: bytes) -> Message:
    if data[0] == USER:
        return User(data[1:])
    read = _READERS.get(data[0])
    if read is None:
        raise BadPacket(f"a message of the unknown type {data[0]}")
    return read(fields_of(unpack(data[1:])))


def fields_of(value: object) -> Fields:
    """Return a decoded map as the fields of a struct."""
    if not isinstance(value, dict):
        raise BadPacket("a message that is no map")
    return value


def text(fields: Fields, key: bytes) -> str:
    """Return a text, "" if there is none."""
    try:
        return raw(fields, key).decode()
    except UnicodeDecodeError as error:
        raise BadPacket(f"{key.decode()} is not UTF-8") from error


def raw(fields: Fields, key: bytes) -> bytes:
    """Return bytes, none if they are nil or absent."""
    value = fields.get(key)
    if value is None:
        return b""
    # Go's codec may write a list of small numbers where it means bytes.
    if isinstance(value, list) and all(type(item) is int and 0 <= item < 256 for item in value):
        return bytes(value)
    if not isinstance(value, bytes):
        raise BadPacket(f"{key.decode()} is not bytes")
    return value


def number(fields: Fields, key: bytes, most: int = U32_MAX) -> int:
    """Return a number, 0 if there is none."""
    value = fields.get(key, 0)
    if type(value) is not int or not 0 <= value <= most:
        raise BadPacket(f"{key.decode()} is no number up to {most}")
    return value


def flag(fields: Fields, key: bytes) -> bool:
    """Return a truth value, False if there is none."""
    value = fields.get(key, False)
    if type(value) is not bool:
        raise BadPacket(f"{key.decode()} is neither true nor false")
    return value


def address(fields: Fields, host: bytes, port: bytes) -> Address:
    """Return where a node is; raise BadPacket unless both are there."""
    return host_of(raw(fields, host)), number(fields, port, 65_535)


def name(fields: Fields, key: bytes) -> str:
    """Return the name of a node, which is never empty."""
    found = text(fields, key)
    if not found:
        raise BadPacket(f"{key.decode()} is empty")
    return found


def meta(fields: Fields) -> bytes:
    """Return what a node says of itself."""
    found = raw(fields, b"Meta")
    if len(found) > META_BYTES_MAX:
        raise BadPacket(f"Meta has more than {META_BYTES_MAX} bytes")
    return found


def _encoded(kind: int, fields: dict[str, Any]) -> bytes:
    return b"%c%b" % (kind, pack(fields))


def _source_fields(source: Address | None, source_node: str) -> dict[str, Any]:
    if source is None:
        return {}
    host, port = packed_host(source[0]), source[1]
    return {"SourceAddr": host, "SourceNode": source_node, "SourcePort": port}


def _source(fields: Fields) -> Address | None:
    if not fields.get(b"SourceAddr") or not fields.get(b"SourcePort"):
        return None
    return address(fields, b"SourceAddr", b"SourcePort")


def _ping(fields: Fields) -> Ping:
    seq_no, node = number(fields, b"SeqNo"), text(fields, b"Node")
    return Ping(seq_no, node, _source(fields), text(fields, b"SourceNode"))


def _indirect_ping(fields: Fields) -> IndirectPing:
    return IndirectPing(
        number(fields, b"SeqNo"),
        address(fields, b"Target", b"Port"),
        text(fields, b"Node"),
        flag(fields, b"Nack"),
        _source(fields),
        text(fields, b"SourceNode"),
    )


def _alive(fields: Fields) -> Alive:
    return Alive(
        number(fields, b"Incarnation"),
        name(fields, b"Node"),
        address(fields, b"Addr", b"Port"),
        meta(fields),
        raw(fields, b"Vsn"),
    )


def _suspect(fields: Fields) -> Suspect:
    return Suspect(number(fields, b"Incarnation"), name(fields, b"Node"), text(fields, b"From"))


def _dead(fields: Fields) -> Dead:
    return Dead(number(fields, b"Incarnation"), name(fields, b"Node"), text(fields, b"From"))


_READERS: dict[int, Callable[[Fields], Message]] = {
    PING: _ping,
    INDIRECT_PING: _indirect_ping,
    ACK: lambda fields: Ack(number(fields, b"SeqNo"), raw(fields, b"Payload")),
    NACK: lambda fields: Nack(number(fields, b"SeqNo")),
    SUSPECT: _suspect,
    ALIVE: _alive,
    DEAD: _dead,
    ERROR: lambda fields: ErrorAnswer(text(fields, b"Error")),
}
