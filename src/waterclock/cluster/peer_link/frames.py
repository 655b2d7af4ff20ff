"""The frames between two nodes, and between a node and its clients: bytes in, frames out, and
nothing but BadFrame.

    | length 4, big endian | kind 1 | channel 8 | payload |

`docs/formats/peer_link.md` draws every byte, and `native.md` there what only clients say. A
`Decoder` refuses at the header, before memory is spent: a stranger may say little, and nobody more
than a mebibyte in one frame.
"""

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from waterclock.model.errors import BadInput

VERSION: Final = 1
HEADER: Final = Struct(">IBQ")
PAYLOAD_BYTES_MAX: Final = 1 << 20
STRANGER_BYTES_MAX: Final = 1_100
REASON_BYTES_MAX: Final = 1_024
NAME_BYTES_MAX: Final = 255
AUTH_BYTES: Final = 32
CREDIT_MAX: Final = (1 << 32) - 1

REQUEST_HEAD: Final = Struct(">BB")
ANSWER_HEAD: Final = Struct(">BH")
STATUS: Final = Struct(">H")
"""What is behind the flag in that."""
WHOLE_REQUEST: Final = Struct(">IBQBB")
WHOLE_ANSWER: Final = Struct(">IBQBH")
"""A header and one of these heads: most are said in one frame."""
HELLO_HEAD: Final = Struct(">BII")
NUMBER: Final = Struct(">I")


class Kind(IntEnum):
    """What a frame is."""

    AUTH = 0
    HELLO = 1
    REQUEST = 2
    ANSWER = 3
    PIECE = 4
    CREDIT = 5
    CANCEL = 6
    HEARTBEAT = 7
    CLOSE = 8
    LOGIN = 9
    PUBLISH = 10
    PUBLISHED = 11
    REFUSED = 12


class FrameRules(NamedTuple):
    """What one kind of conversation allows."""

    kinds: frozenset[int]
    strangers_say: frozenset[int]
    """Before the other side has proved itself."""
    stranger_bytes_max: int


OF_NODES: Final = FrameRules(
    frozenset(range(Kind.LOGIN)),
    frozenset((Kind.AUTH, Kind.HELLO, Kind.CLOSE)),
    STRANGER_BYTES_MAX,
)
_OF_NO_CHANNEL: Final = frozenset((Kind.AUTH, Kind.HELLO, Kind.HEARTBEAT, Kind.CLOSE, Kind.LOGIN))


class BadFrame(BadInput):
    """The bytes are no frame that may come now: close the connection, with `reason`."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"bad frame: {reason}")
        self.reason = reason


class Frame(NamedTuple):
    """A whole frame, its payload not looked at."""

    kind: int
    channel: int
    payload: bytes


class Hello(NamedTuple):
    """How a node introduces itself."""

    node_id: str
    cluster: str
    heartbeat_ms: int
    """It says something at least this often."""
    silence_ms: int
    """It takes the other for gone when it hears nothing for so long."""


class Decoder:
    """Cuts what comes over a connection into frames."""

    __slots__ = ("_buffer", "_of_channels", "_rules", "is_admitted")

    def __init__(self, rules: FrameRules = OF_NODES) -> None:
        self._buffer = bytearray()
        self._rules = rules
        self._of_channels = rules.kinds - _OF_NO_CHANNEL
        self.is_admitted = False
        """The other side has proved itself: it may say everything."""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that are whole. Raises BadFrame behind the good ones.

        What is yielded is acted on before the next: admission is looked at frame by frame.
        """
        if self._buffer:
            self._buffer += data
        source = self._buffer or data
        start, size = 0, len(source)
        try:
            while size - start >= HEADER.size:
                length, kind, channel = HEADER.unpack_from(source, start)
                is_usual = self.is_admitted and channel and kind in self._of_channels
                if not is_usual or length > PAYLOAD_BYTES_MAX:
                    self._check(length, kind, channel)
                end = start + HEADER.size + length
                if end > size:
                    break
                payload = bytes(memoryview(source)[start + HEADER.size : end])
                start = end
                yield Frame(kind, channel, payload)
        finally:
            if source is data:
                self._buffer += data[start:]
            else:
                del self._buffer[:start]

    def _check(self, length: int, kind: int, channel: int) -> None:
        rules, is_admitted = self._rules, self.is_admitted
        if kind not in rules.kinds:
            raise BadFrame(f"kind {kind} is unknown")
        if length > (PAYLOAD_BYTES_MAX if is_admitted else rules.stranger_bytes_max):
            raise BadFrame(f"{length} bytes are too many")
        if not is_admitted and kind not in rules.strangers_say:
            raise BadFrame("prove first who you are")
        if (kind in _OF_NO_CHANNEL) is not (channel == 0):
            raise BadFrame(f"kind {kind} on channel {channel}")


def encode(kind: Kind, channel: int = 0, payload: bytes = b"") -> bytes:
    """Return a frame."""
    return HEADER.pack(len(payload), kind, channel) + payload


def encode_auth(data: bytes, *, is_proof: bool) -> bytes:
    """Return an AUTH frame."""
    return encode(Kind.AUTH, 0, bytes((is_proof,)) + data)


def decode_auth(payload: bytes) -> tuple[bool, bytes]:
    """Return whether it is a proof, and the nonce or proof."""
    if len(payload) != 1 + AUTH_BYTES or payload[0] > 1:
        raise BadFrame("AUTH is a step and 32 bytes")
    return bool(payload[0]), payload[1:]


def encode_hello(hello: Hello) -> bytes:
    """Return a HELLO frame."""
    payload = bytearray(HELLO_HEAD.pack(VERSION, hello.heartbeat_ms, hello.silence_ms))
    for name in (hello.node_id.encode(), hello.cluster.encode()):
        assert len(name) <= NAME_BYTES_MAX
        payload += bytes((len(name),)) + name
    return encode(Kind.HELLO, 0, bytes(payload))


def decode_hello(payload: bytes) -> Hello:
    """Return what a node says of itself."""
    if len(payload) < HELLO_HEAD.size:
        raise BadFrame("HELLO is too short")
    version, heartbeat_ms, silence_ms = HELLO_HEAD.unpack_from(payload)
    if version != VERSION:
        raise BadFrame(f"version {version}; this node speaks version {VERSION}")
    if not 0 < heartbeat_ms <= silence_ms:
        raise BadFrame("HELLO: the heartbeat must be more than 0 and no more than the silence")
    names, start = [], HELLO_HEAD.size
    for field in ("node id", "cluster name"):
        length = payload[start] if start < len(payload) else -1
        name = payload[start + 1 : start + 1 + length]
        if len(name) != length:
            raise BadFrame(f"HELLO: the {field} is cut off")
        names.append(_text(name, field))
        start += 1 + length
    if start != len(payload) or not names[0]:
        raise BadFrame("HELLO: a node id, a cluster name, and nothing else")
    return Hello(names[0], names[1], heartbeat_ms, silence_ms)


def encode_reason(kind: Kind, channel: int, reason: str) -> bytes:
    """Return a CANCEL or CLOSE frame; a long reason is cut, between two characters."""
    cut = reason.encode("utf-8", "replace")[:REASON_BYTES_MAX].decode("utf-8", "ignore")
    return encode(kind, channel, cut.encode())


def decode_reason(payload: bytes) -> str:
    """Return why something ends, on one line whatever is in it."""
    if len(payload) > REASON_BYTES_MAX:
        raise BadFrame(f"a reason of {len(payload)} bytes; {REASON_BYTES_MAX} are allowed")
    text = _text(payload, "reason")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def decode_credit(payload: bytes) -> int:
    """Return how many bytes more may be sent."""
    if len(payload) != NUMBER.size:
        raise BadFrame("CREDIT is 4 bytes")
    return int(NUMBER.unpack(payload)[0])


def _text(data: bytes, field: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise BadFrame(f"the {field} is not UTF-8") from None
