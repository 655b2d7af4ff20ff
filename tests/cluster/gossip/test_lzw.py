"""Go's LZW, inflated: against an encoder written here as Go's is, and against any bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.cluster.gossip.errors import BadPacket
from waterclock.cluster.gossip.lzw import inflate


def deflated(data: bytes) -> bytes:
    """Encode as Go's `compress/lzw` does: the table is cleared when it is full."""
    bits = count = 0
    out = bytearray()
    width, high = 9, 257
    table: dict[tuple[int, int], int] = {}

    def write(code: int) -> None:
        nonlocal bits, count
        bits |= code << count
        count += width
        while count >= 8:
            out.append(bits & 255)
            bits >>= 8
            count -= 8

    write(256)
    code = -1
    for byte in data:
        if code < 0:
            code = byte
        elif (code, byte) in table:
            code = table[code, byte]
        else:
            write(code)
            high += 1
            if high == 1 << width:
                width += 1
            if high == 4_095:
                width = min(width, 12)
                write(256)
                width, high, table = 9, 257, {}
            else:
                table[code, byte] = high
            code = byte
    if code >= 0:
        write(code)
        high += 1
        if high == 1 << width and width < 12:
            width += 1
    write(257)
    out.append(bits & 255)
    return bytes(out)


@given(st.binary(max_size=400), st.integers(1, 10))
def test_what_was_deflated_is_inflated(data, times):
    assert inflate(deflated(data * times), size_max=100_000) == data * times


def test_the_table_is_cleared_when_it_is_full():
    data = b"".join(number.to_bytes(2, "big") for number in range(10_000))

    assert inflate(deflated(data), size_max=20_000) == data


def test_a_bomb_is_refused_before_it_is_large():
    bomb = deflated(bytes(1_000_000))

    assert len(bomb) < 3_000
    with pytest.raises(BadPacket, match="more than 65535"):
        inflate(bomb, size_max=65_535)


def test_damaged_data_are_refused_by_name():
    with pytest.raises(BadPacket, match="ends early"):
        inflate(deflated(b"abcabc")[:-2], size_max=100)
    with pytest.raises(BadPacket, match="before it was defined"):
        inflate(bytes((0x00, 0xFF, 0xFF)), size_max=100)


@given(st.binary(max_size=500))
def test_any_bytes_inflate_or_are_a_bad_packet(data):
    try:
        assert len(inflate(data, size_max=10_000)) <= 10_000
    except BadPacket:
        return
