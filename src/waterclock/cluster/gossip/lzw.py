"""Inflates what Go's `compress/lzw` deflated: least significant bit first, literals of 8 bits.

memberlist compresses packets and streams this way. Nobody needs to answer in kind, so there is no
encoder. Codes begin at 9 bits and grow to 12; 256 clears the table, 257 ends the data.
"""

from waterclock.cluster.gossip.errors import BadPacket

_CLEAR = 256
_END = 257
_WIDTH_MIN = 9
_TABLE_MAX = 1 << 12
_LITERALS = [bytes([value]) for value in range(256)]


def inflate(data: bytes, *, size_max: int) -> bytes:
    """Return the plain bytes; raise BadPacket if they are damaged or would exceed `size_max`."""
    found: list[bytes] = []
    size = 0
    table = [*_LITERALS, b"", b""]
    width, last = _WIDTH_MIN, b""
    bits = bit_count = 0
    for byte in data:
        bits |= byte << bit_count
        bit_count += 8
        if bit_count < width:
            continue
        code = bits & ((1 << width) - 1)
        bits >>= width
        bit_count -= width
        if code == _CLEAR:
            del table[_END + 1 :]
            width, last = _WIDTH_MIN, b""
            continue
        if code == _END:
            return b"".join(found)
        entry = _entry(table, code, last)
        size += len(entry)
        if size > size_max:
            raise BadPacket(f"compressed data inflates to more than {size_max} bytes")
        found.append(entry)
        if last and len(table) < _TABLE_MAX:
            table.append(last + entry[:1])
        # The writer is one entry ahead of us: it widens when its next code would not fit.
        if len(table) + 1 > 1 << width and width < 12:
            width += 1
        last = entry
    raise BadPacket("compressed data ends early")


def _entry(table: list[bytes], code: int, last: bytes) -> bytes:
    if code < len(table):
        return table[code]
    # The one code a reader may meet before it knows it: its own last entry and that one's start.
    if code == len(table) and last and code < _TABLE_MAX:
        return last + last[:1]
    raise BadPacket(f"compressed data has the code {code} before it was defined")
