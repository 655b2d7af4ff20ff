"""What a client and a node say to each other in the frames of the peer link: `native.md` in
docs/formats.

    LOGIN        first, by both: the version, what is understood, how often each is heard of, and
                 who the client is
    PUBLISH      a batch; answered by PUBLISHED or REFUSED with the number that it came under
    REQUEST ...  any method of the gRPC API, by its name, over a channel

Every connection of a client begins with a byte 0, as no frame of a stranger is long; one of HTTP
never does. So both are served on one port.
"""

from struct import Struct
from typing import Final, NamedTuple

import msgspec

from waterclock.cluster.peer_link.frames import BadFrame, FrameRules, Kind, encode

VERSION: Final = 1
PUBLISHES: Final = 1
"""A feature: PUBLISH is understood."""
CALLS: Final = 2
"""A feature: REQUEST is understood, with `CALL`."""
CALL: Final = 1
"""The one method of REQUESTs; its body begins with a `CallOpening`."""
AUTHORIZATION_BYTES_MAX: Final = 15 << 10
"""As much as a head of HTTP has room for."""
METADATA_MAX: Final = 32
CALLS_MAX: Final = 1_000
"""Calls of one connection at once, as over gRPC."""

_LOGIN: Final = Struct(">BIII")
_DEADLINE: Final = Struct(">IB")
_LENGTH: Final = Struct(">H")

OF_CLIENTS: Final = FrameRules(
    frozenset(range(Kind.REQUEST, Kind.REFUSED + 1)),
    frozenset((Kind.LOGIN, Kind.CLOSE)),
    AUTHORIZATION_BYTES_MAX + _LOGIN.size,
)


class Login(NamedTuple):
    """How a client introduces itself, and the node to it."""

    features: int
    heartbeat_ms: int
    """It says something at least this often."""
    silence_ms: int
    """It takes the other for gone when it hears nothing for so long."""
    text: str = ""
    """Of a client: its credential, as `Authorization` has it in HTTP. Of a node: its name."""

    def encode(self) -> bytes:
        """Return the frame."""
        head = _LOGIN.pack(VERSION, self.features, self.heartbeat_ms, self.silence_ms)
        return encode(Kind.LOGIN, 0, head + self.text.encode())

    @classmethod
    def decode(cls, payload: bytes) -> "Login":
        """Return what a LOGIN says."""
        if len(payload) < _LOGIN.size:
            raise BadFrame("LOGIN is too short")
        version, features, heartbeat_ms, silence_ms = _LOGIN.unpack_from(payload)
        if version != VERSION:
            raise BadFrame(f"version {version}; version {VERSION} is spoken here")
        if not 0 < heartbeat_ms <= silence_ms:
            raise BadFrame("LOGIN: the heartbeat must be more than 0 and no more than the silence")
        try:
            text = payload[_LOGIN.size :].decode()
        except UnicodeDecodeError:
            raise BadFrame("LOGIN: the credential is not UTF-8") from None
        return cls(features, heartbeat_ms, silence_ms, text)


class CallOpening(NamedTuple):
    """What stands before the items of a call (`cluster/remote_calls.py`)."""

    method: str
    """With its service, as in `waterclock.v1.Broker/Fetch`."""
    left_ms: int = 0
    """How long the client waits yet; 0: as long as it takes."""
    metadata: tuple[tuple[str, str], ...] = ()

    def encode(self) -> bytes:
        """Return the bytes of it."""
        parts = [_DEADLINE.pack(min(self.left_ms, (1 << 32) - 1), len(self.metadata))]
        for text in (self.method, *(each for pair in self.metadata for each in pair)):
            data = text.encode()
            parts += [_LENGTH.pack(len(data)), data]
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes) -> tuple["CallOpening", int]:
        """Return it, and where the items begin. Raises BadFrame."""
        if len(data) < _DEADLINE.size:
            raise BadFrame("a call without its head")
        left_ms, count = _DEADLINE.unpack_from(data)
        if count > METADATA_MAX:
            raise BadFrame(f"metadata: {count} entries; {METADATA_MAX} are allowed")
        texts: list[str] = []
        at = _DEADLINE.size
        for _ in range(1 + 2 * count):
            if len(data) < at + _LENGTH.size:
                raise BadFrame("the head of a call is cut off")
            begin = at + _LENGTH.size
            at = begin + _LENGTH.unpack_from(data, at)[0]
            if len(data) < at:
                raise BadFrame("the head of a call is cut off")
            try:
                texts.append(data[begin:at].decode())
            except UnicodeDecodeError:
                raise BadFrame("the head of a call is not UTF-8") from None
        method, *pairs = texts
        return cls(method, left_ms, tuple(zip(pairs[::2], pairs[1::2], strict=True))), at


class CallEnd(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a call ended, in the words of gRPC: the last item of its answer, in JSON."""

    code: int = 0
    details: str = ""
    metadata: list[tuple[str, str]] = []

    def encode(self) -> bytes:
        """Return the bytes of it."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> "CallEnd":
        """Return what an END says; one without a body says that all went well."""
        try:
            return msgspec.json.decode(data, type=cls) if data else cls()
        except msgspec.MsgspecError as error:
            raise BadFrame(f"END: {error}") from None
