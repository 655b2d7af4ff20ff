"""Headers of HTTP/2, written and read (HPACK, RFC 7541), as far as a client of few calls needs it.

What is written is plain: no table, no Huffman code. What is read may have either, but for the
dynamic table, which the other side is told not to use (`SETTINGS_HEADER_TABLE_SIZE` of 0). The
Huffman code is canonical: the length of each symbol's code says all of it.
"""

from collections.abc import Iterable
from functools import cache

_STATIC = (
    ":authority|", ":method|GET", ":method|POST", ":path|/", ":path|/index.html", ":scheme|http",
    ":scheme|https", ":status|200", ":status|204", ":status|206", ":status|304", ":status|400",
    ":status|404", ":status|500", "accept-charset|", "accept-encoding|gzip, deflate",
    "accept-language|", "accept-ranges|", "accept|", "access-control-allow-origin|", "age|",
    "allow|", "authorization|", "cache-control|", "content-disposition|", "content-encoding|",
    "content-language|", "content-length|", "content-location|", "content-range|", "content-type|",
    "cookie|", "date|", "etag|", "expect|", "expires|", "from|", "host|", "if-match|",
    "if-modified-since|", "if-none-match|", "if-range|", "if-unmodified-since|", "last-modified|",
    "link|", "location|", "max-forwards|", "proxy-authenticate|", "proxy-authorization|", "range|",
    "referer|", "refresh|", "retry-after|", "server|", "set-cookie|", "strict-transport-security|",
    "transfer-encoding|", "user-agent|", "vary|", "via|", "www-authenticate|",
)  # fmt: skip
"""RFC 7541, appendix A: names, and behind a bar the values that have a number of their own."""
_LENGTHS = (
    "ISXXXXXXXTZXXZXXXXXXXXZXXXXXXXXXBFFHIBDGFFDGDBBBAAABBBBBBBCDKBHFIBCCCCCCCCCCCCCCCCCCCC"
    "CCDCDIOIJBKABABABBBACCBBBABCBAABCCCCCKGJIXPRPPRRRSRSSSSSTSTTRSTSSSSQRSRSSTRQPRRSSQSRRT"
    "QRSSQQRQSRSSPRRRSRRSVVPORSRUVVVWWVTUOQVWWVWTQQVVXWWWPTPQRQQSRRUUTTVSVWVVWWWWWXWWWWWVZ"
)
"""RFC 7541, appendix B: how long the code of each byte is, and that of the end: `A` is 5 bits."""
_BITS_MIN = 5
_EOS = 256
_INDEXED, _INCREMENTAL, _SIZE_UPDATE = 0x80, 0x40, 0x20


class BadHeaders(ValueError):
    """What came is no block of headers."""


def encoded(headers: Iterable[tuple[str, str]]) -> bytes:
    """Return headers as a block, each as a literal that nobody indexes (6.2.2)."""
    block = bytearray()
    for name, value in headers:
        block += b"\0" + _string(name) + _string(value)
    return bytes(block)


def decoded(block: bytes) -> list[tuple[str, str]]:
    """Return the headers of a block; raise BadHeaders if it is none."""
    headers, at = [], 0
    try:
        while at < len(block):
            first = block[at]
            if first & _INDEXED:
                number, at = _integer(block, at, 7)
                headers.append(_entry(number))
            elif not first & _INCREMENTAL and first & _SIZE_UPDATE:
                _, at = _integer(block, at, 5)
            else:
                number, at = _integer(block, at, 6 if first & _INCREMENTAL else 4)
                name = _entry(number)[0] if number else ""
                if not number:
                    name, at = _text(block, at)
                value, at = _text(block, at)
                headers.append((name, value))
    except IndexError:
        raise BadHeaders("a block of headers ends too early") from None
    return headers


def _string(text: str) -> bytes:
    data = text.encode()
    size = len(data)
    if size < 0x7F:
        return bytes((size,)) + data
    prefix, rest = bytearray((0x7F,)), size - 0x7F  # 5.1
    while rest >= 0x80:
        prefix.append(rest & 0x7F | 0x80)
        rest >>= 7
    prefix.append(rest)
    return bytes(prefix) + data


def _integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
    """Return the number in the last bits of a byte and those behind it, and where it ends."""
    most = (1 << bits) - 1
    number = block[at] & most
    at += 1
    if number < most:
        return number, at
    for shift in range(0, 35, 7):
        byte = block[at]
        at += 1
        number += (byte & 0x7F) << shift
        if not byte & 0x80:
            return number, at
    raise BadHeaders("a number in a block of headers is too large")


def _text(block: bytes, at: int) -> tuple[str, int]:
    is_coded = block[at] & 0x80
    size, at = _integer(block, at, 7)
    end = at + size
    if end > len(block):
        raise BadHeaders("a text in a block of headers ends too early")
    data = block[at:end]
    return (_inflated(data) if is_coded else data).decode(errors="replace"), end


def _entry(number: int) -> tuple[str, str]:
    if not 0 < number <= len(_STATIC):
        raise BadHeaders(f"a header is number {number} of a table that was not agreed on")
    name, _, value = _STATIC[number - 1].partition("|")
    return name, value


def _inflated(data: bytes) -> bytes:
    """Return what a Huffman code means; the padding at its end is dropped."""
    symbols, found = _codes(), bytearray()
    code = bits = 0
    for byte in data:
        for shift in range(7, -1, -1):
            code = code << 1 | byte >> shift & 1
            bits += 1
            symbol = symbols.get((bits, code))
            if symbol is not None:
                if symbol == _EOS:
                    raise BadHeaders("a text in a block of headers has the end of all texts in it")
                found.append(symbol)
                code = bits = 0
    return bytes(found)


@cache
def _codes() -> dict[tuple[int, int], int]:
    """Return the symbol of each code, by its length and value."""
    lengths = [ord(char) - ord("A") + _BITS_MIN for char in _LENGTHS]
    symbols: dict[tuple[int, int], int] = {}
    code = bits = 0
    for symbol in sorted(range(len(lengths)), key=lambda each: (lengths[each], each)):
        code <<= lengths[symbol] - bits
        bits = lengths[symbol]
        symbols[bits, code] = symbol
        code += 1
    return symbols
