"""One exchange over TCP: a push/pull of all a node knows, or a ping where UDP does not pass.

    [10 size sealed] [9 compressed] (6 push/pull | 0 ping | 2 ack | 13 error | 8 user)

Nothing says how long a stream is, and a peer may send it in drops, so a `StreamReader` takes bytes
as they come and says when the message is whole. It keeps no more than STREAM_BYTES_MAX, which is
room for ten thousand nodes.
"""

from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import msgpack

from waterclock.cluster.gossip.errors import BadPacket
from waterclock.cluster.gossip.keyring import OVERHEAD_BYTES, Keyring
from waterclock.cluster.gossip.messages import (
    ACK,
    COMPRESS,
    ENCRYPT,
    ERROR,
    FIELDS_MAX,
    PING,
    PUSH_PULL,
    USER,
    Ack,
    Address,
    ErrorAnswer,
    Fields,
    Ping,
    User,
    address,
    decode,
    encode,
    fields_of,
    flag,
    meta,
    name,
    number,
    pack,
    packed_host,
    raw,
)
from waterclock.cluster.gossip.packets import inflated

STREAM_BYTES_MAX = 4 << 20
"""Of a stream that is read, and of what is inflated from it."""
NODES_MAX = 10_000
"""That are known at once; with metadata of 200 bytes all of them fit into a stream."""
_SEALED_HEAD_BYTES = 5


class State(IntEnum):
    """What is known of a node."""

    ALIVE = 0
    SUSPECT = 1
    DEAD = 2
    LEFT = 3


class NodeState(NamedTuple):
    """What one node knows of another."""

    name: str
    address: Address
    meta: bytes
    incarnation: int
    state: State
    versions: bytes


class PushPull(NamedTuple):
    """All that a node knows."""

    states: tuple[NodeState, ...]
    is_join: bool = False


StreamMessage: TypeAlias = PushPull | Ping | Ack | ErrorAnswer | User


def encode_stream(message: StreamMessage) -> bytes:
    """Return the bytes of one message, not sealed."""
    match message:
        case PushPull(states, is_join):
            head = pack({"Nodes": len(states), "UserStateLen": 0, "Join": is_join})
            return b"".join([bytes([PUSH_PULL]), head, *map(_encoded_state, states)])
        case User(body):
            return b"%c%b%b" % (USER, pack({"UserMsgLen": len(body)}), body)
        case _:
            return encode(message)


def sealed_stream(plain: bytes, keyring: Keyring, *, nonce: bytes) -> bytes:
    """Return the stream with its head, which the seal covers."""
    head = b"%c%b" % (ENCRYPT, (OVERHEAD_BYTES + len(plain)).to_bytes(4, "big"))
    return head + keyring.seal(plain, nonce=nonce, extra=head)


class StreamReader:
    """Reads one message from a connection, piece by piece."""

    def __init__(self, keyring: Keyring | None = None) -> None:
        """With a keyring nothing is read that is not sealed."""
        self._keyring = keyring
        self._sealed = bytearray()
        self._size = 0
        self._plain = _PlainReader()

    def feed(self, data: bytes) -> StreamMessage | None:
        """Return the message once it is whole; raise BadPacket as soon as it cannot be one."""
        self._size += len(data)
        if self._size > STREAM_BYTES_MAX:
            raise BadPacket(f"a stream of more than {STREAM_BYTES_MAX} bytes")
        if self._keyring is None:
            return self._plain.feed(data)
        self._sealed += data
        head = bytes(self._sealed[:_SEALED_HEAD_BYTES])
        if head and head[0] != ENCRYPT:
            raise BadPacket("a stream that is not sealed")
        if len(head) < _SEALED_HEAD_BYTES:
            return None
        size = int.from_bytes(head[1:], "big")
        if size > STREAM_BYTES_MAX:
            raise BadPacket(f"a stream of more than {STREAM_BYTES_MAX} bytes")
        if len(self._sealed) < _SEALED_HEAD_BYTES + size:
            return None
        sealed = bytes(self._sealed[_SEALED_HEAD_BYTES : _SEALED_HEAD_BYTES + size])
        return _whole(self._keyring.open(sealed, extra=head))


class _PlainReader:
    """Reads a message that is not sealed, or not any more."""

    def __init__(self, *, may_inflate: bool = True) -> None:
        self._may_inflate = may_inflate
        self._kind = -1
        self._head: Fields | None = None
        self._states: list[NodeState] = []
        self._left = 0
        self._skipped = 0
        self._tail = bytearray()
        self._unpacker = msgpack.Unpacker(
            raw=True,
            strict_map_key=False,
            max_map_len=FIELDS_MAX,
            max_array_len=FIELDS_MAX,
            max_buffer_size=STREAM_BYTES_MAX,
        )

    def feed(self, data: bytes) -> StreamMessage | None:
        if self._kind < 0 and data:
            self._kind, data = data[0], data[1:]
            if self._kind not in _KINDS or (self._kind == COMPRESS and not self._may_inflate):
                raise BadPacket(f"a stream of the unknown type {self._kind}")
        try:
            self._unpacker.feed(data)
            return self._read()
        except msgpack.OutOfData:
            return None
        except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
            # BadInput is no ValueError, so what we raise ourselves passes.
            raise BadPacket(f"not msgpack: {type(error).__name__}") from error

    def _read(self) -> StreamMessage | None:
        if self._head is None:
            self._head = fields_of(self._unpacker.unpack())
            self._begin(self._head)
        if self._kind == PUSH_PULL:
            return self._push_pull(self._head)
        if self._kind == USER:
            self._tail += self._unpacker.read_bytes(self._left - len(self._tail))
            return User(bytes(self._tail)) if len(self._tail) == self._left else None
        if self._kind == COMPRESS:
            plain = inflated(pack(self._head), size_max=STREAM_BYTES_MAX)
            return _whole(plain, may_inflate=False)
        found = decode(b"%c%b" % (self._kind, pack(self._head)))
        assert isinstance(found, Ping | Ack | ErrorAnswer)
        return found

    def _begin(self, head: Fields) -> None:
        if self._kind == PUSH_PULL:
            self._left = number(head, b"Nodes", NODES_MAX)
            self._skipped = number(head, b"UserStateLen", STREAM_BYTES_MAX)
        elif self._kind == USER:
            self._left = number(head, b"UserMsgLen", STREAM_BYTES_MAX)

    def _push_pull(self, head: Fields) -> PushPull | None:
        while self._left:
            value = self._unpacker.unpack()
            self._left -= 1
            self._states.append(_state(fields_of(value)))
        while self._skipped:
            skipped = len(self._unpacker.read_bytes(self._skipped))
            if not skipped:
                return None
            self._skipped -= skipped
        return PushPull(tuple(self._states), flag(head, b"Join"))


_KINDS = {PING, ACK, PUSH_PULL, USER, COMPRESS, ERROR}


def _whole(plain: bytes, *, may_inflate: bool = True) -> StreamMessage:
    found = _PlainReader(may_inflate=may_inflate).feed(plain)
    if found is None:
        raise BadPacket("a stream that ends early")
    return found


def _state(fields: Fields) -> NodeState:
    return NodeState(
        name(fields, b"Name"),
        address(fields, b"Addr", b"Port"),
        meta(fields),
        number(fields, b"Incarnation"),
        State(number(fields, b"State", State.LEFT)),
        raw(fields, b"Vsn"),
    )


@lru_cache(maxsize=4_096)
def _encoded_state(state: NodeState) -> bytes:
    fields: dict[str, Any] = {
        "Name": state.name,
        "Addr": packed_host(state.address[0]),
        "Port": state.address[1],
        "Meta": state.meta,
        "Incarnation": state.incarnation,
        "State": int(state.state),
        "Vsn": state.versions,
    }
    return pack(fields)
