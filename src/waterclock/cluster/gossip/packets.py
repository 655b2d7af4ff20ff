"""One datagram: messages, perhaps several in a compound, compressed, under a checksum.

    [12 crc32] [9 compressed] (7 compound | one message)

Each layer stands at most once and in this order, as memberlist writes them; so a packet costs no
more than its size, its inflated size, and one walk over that.
"""

import zlib
from collections.abc import Sequence

from waterclock.cluster.gossip.errors import BadPacket
from waterclock.cluster.gossip.lzw import inflate
from waterclock.cluster.gossip.messages import (
    COMPOUND,
    COMPRESS,
    HAS_CRC,
    Message,
    decode,
    fields_of,
    number,
    raw,
    unpack,
)

PACKET_BYTES_MAX = 65_535
"""Of a datagram that is read, and of what is inflated from it."""
COMPOUND_HEAD_BYTES = 2
COMPOUND_PART_BYTES = 2
CRC_BYTES = 5
PARTS_MAX = 127
"""Of a compound that is sent: memberlist 0.2 counts no further."""
_COMPOUND, _COMPRESS, _HAS_CRC = bytes([COMPOUND]), bytes([COMPRESS]), bytes([HAS_CRC])


def packed(parts: Sequence[bytes], *, has_crc: bool) -> bytes:
    """Return one packet of encoded messages."""
    assert 0 < len(parts) <= PARTS_MAX
    payload = parts[0] if len(parts) == 1 else _compound(parts)
    if not has_crc:
        return payload
    return b"%b%b%b" % (_HAS_CRC, zlib.crc32(payload).to_bytes(4, "big"), payload)


def unpacked(data: bytes) -> list[Message]:
    """Return the messages of a packet; raise BadPacket if there is none.

    A part of a compound that cannot be read is left out: it may be of a type newer than we are.
    """
    if len(data) > PACKET_BYTES_MAX:
        raise BadPacket(f"a packet of more than {PACKET_BYTES_MAX} bytes")
    if data[:1] == _HAS_CRC:
        data = _checked(data)
    if data[:1] == _COMPRESS:
        data = inflated(data[1:], size_max=PACKET_BYTES_MAX)
    if data[:1] != _COMPOUND:
        return [decode(data)]
    found, failure = [], BadPacket("a compound without parts")
    for part in _parts(data):
        try:
            found.append(decode(part))
        except BadPacket as error:
            failure = error
    if not found:
        raise failure
    return found


def inflated(body: bytes, *, size_max: int) -> bytes:
    """Return what is in a `compress` message, without its type byte."""
    fields = fields_of(unpack(body))
    if number(fields, b"Algo") != 0:
        raise BadPacket("compressed by an unknown algorithm")
    return inflate(raw(fields, b"Buf"), size_max=size_max)


def _compound(parts: Sequence[bytes]) -> bytes:
    sizes = b"".join(len(part).to_bytes(2, "big") for part in parts)
    return b"".join([bytes((COMPOUND, len(parts))), sizes, *parts])


def _checked(data: bytes) -> bytes:
    payload = data[CRC_BYTES:]
    if len(data) <= CRC_BYTES or zlib.crc32(payload) != int.from_bytes(data[1:CRC_BYTES], "big"):
        raise BadPacket("the checksum is wrong")
    return payload


def _parts(data: bytes) -> list[bytes]:
    count = data[1] if len(data) > 1 else 0
    start = COMPOUND_HEAD_BYTES + COMPOUND_PART_BYTES * count
    if len(data) < start:
        raise BadPacket("a compound without the sizes of its parts")
    found = []
    for place in range(COMPOUND_HEAD_BYTES, start, COMPOUND_PART_BYTES):
        end = start + int.from_bytes(data[place : place + 2], "big")
        if end > len(data):
            raise BadPacket("a compound that ends within a part")
        found.append(data[start:end])
        start = end
    return found
