"""Messages of replicas on their way over a channel: each after its length, many in a piece.

A channel cuts what is sent into pieces as it likes; here they are put together again.
"""

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final

from waterclock.cluster.replication.messages import BadMessage, Bytes, Message, decode, encode

REPLICATE: Final = 4
"""The method of the peer link over which replicas speak; its request names the replica."""
MESSAGE_BYTES_MAX: Final = 1 << 30
_LENGTH: Final = Struct(">I")


def pack(messages: Iterable[Message]) -> bytes:
    """Return messages as they are sent."""
    parts: list[Bytes] = []
    for message in messages:
        body = encode(message)
        parts.append(_LENGTH.pack(sum(map(len, body))))
        parts.extend(body)
    return b"".join(parts)


class Unpacker:
    """Puts pieces of one channel together to messages."""

    __slots__ = ("_pieces", "_size", "_wanted")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0
        self._wanted = _LENGTH.size
        """Fewer bytes hold no whole message: pieces are only kept until then."""

    def feed(self, piece: bytes) -> Iterator[Message]:
        """Yield the messages that are whole with this piece; raises BadMessage."""
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size < self._wanted:
            return
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        view, at = memoryview(data), 0
        while True:
            self._wanted = _LENGTH.size
            if len(data) - at >= _LENGTH.size:
                (size,) = _LENGTH.unpack_from(data, at)
                if size > MESSAGE_BYTES_MAX:
                    raise BadMessage(f"a message of {size} bytes")
                self._wanted += size
            if len(data) - at < self._wanted:
                break
            message = view[at + _LENGTH.size : at + self._wanted]
            at += self._wanted
            yield decode(message)
        self._pieces = [data[at:]] if at < len(data) else []
        self._size = len(data) - at
