"""Resume tokens: where a reader of a stream stands, in text that it cannot forge.

A token is 30 bytes in hexadecimal, so 60 characters that sort, fit for an address as they are:

    kind (1)  incarnation (8)  position (8)  tag (13)      big endian

Tokens of one stream sort as their positions do. The tag is a keyed BLAKE2b of the stream's name and
all that is before it: a token of another stream, of other nodes, or made up, is none. A token
that is genuine but of an earlier incarnation of its stream says so: what it speaks of is gone.
"""

import hmac
import struct
from binascii import hexlify
from hashlib import blake2b
from typing import NamedTuple

from waterclock.model.errors import BadInput, ForgedToken

LIVE = 1
"""The position is one in the ring, ..."""
STORED = 2
"""... or one in the store, which has no incarnations."""

KEY_BYTES = 32
_FACTS = struct.Struct(">BQQ")
_TAG_BYTES = 13


class Token(NamedTuple):
    """Where a reader stands: in memory or in the store, in which incarnation, at which position."""

    kind: int
    incarnation: int
    position: int


class Tokens:
    """Makes tokens and reads them, with a key of its own, or one it shares with other nodes."""

    def __init__(self, key: bytes) -> None:
        self._keyed = {key: _keyed(key)}
        self._newest = self._keyed[key]

    def share(self, key: bytes) -> None:
        """Make tokens with this key from now on; those of before are still read."""
        self._newest = self._keyed.setdefault(key, _keyed(key))

    def encode(self, stream: str, token: Token) -> str:
        return self.render(stream, *token).decode()

    def render(self, stream: str, kind: int, incarnation: int, position: int) -> bytes:
        """Return a token as it stands in an answer."""
        facts = _FACTS.pack(kind, incarnation, position)
        tag = self._newest.copy()
        tag.update(facts + stream.encode("utf-8", "surrogatepass"))
        return hexlify(facts + tag.digest())

    def decode(self, stream: str, text: str) -> Token:
        """Return what a token says; raise BadInput, or ForgedToken if it is not this stream's."""
        try:
            data = bytes.fromhex(text)
        except ValueError:
            data = b""
        facts, tag = data[: _FACTS.size], data[_FACTS.size :]
        if len(data) != _FACTS.size + _TAG_BYTES or data.hex() != text:
            raise BadInput("resumeToken: is not a token")
        tags = [_tag(keyed, stream, facts) for keyed in self._keyed.values()]
        if not any(hmac.compare_digest(tag, each) for each in tags):
            raise ForgedToken("resumeToken: is not a token of this stream")
        return Token(*_FACTS.unpack(facts))


def _keyed(key: bytes) -> blake2b:
    assert len(key) == KEY_BYTES
    return blake2b(key=key, digest_size=_TAG_BYTES, person=b"stream-token")


def _tag(keyed: blake2b, stream: str, facts: bytes) -> bytes:
    tag = keyed.copy()
    tag.update(facts + stream.encode("utf-8", "surrogatepass"))
    return tag.digest()
