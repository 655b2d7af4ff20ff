"""A segment's name and header fit each other, or the file is named and left alone."""

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tests.log.damage import flipped
from waterclock.log.frame import OFFSET_MAX
from waterclock.log.segment import (
    HEADER_BYTES,
    SegmentHeader,
    decode_segment_header,
    encode_segment_header,
    log_tag,
    parse_segment_name,
    segment_name,
)
from waterclock.model.errors import ForeignFile
from waterclock.model.ids import Millis, Offset

SAMPLE = SegmentHeader(bytes(range(16)), Offset(4711), 3, Millis(1_700_000_000_000))
NAME = "00000000000000004711.seg"
RAW = encode_segment_header(SAMPLE)

headers = st.builds(
    SegmentHeader,
    st.binary(min_size=16, max_size=16),
    st.integers(0, OFFSET_MAX).map(Offset),
    st.integers(0, 2**32 - 1),
    st.integers(-(2**63), 2**63 - 1).map(Millis),
)


def sealed(fields: bytes) -> bytes:
    """Return header bytes under a checksum that holds, whatever they claim."""
    return fields + struct.pack("<I", crc32c(fields))


@given(headers)
def test_any_header_comes_back_as_it_was_written(header):
    raw = encode_segment_header(header)

    assert len(raw) == HEADER_BYTES
    assert decode_segment_header(segment_name(header.base_offset), raw) == header
    assert decode_segment_header(segment_name(header.base_offset), memoryview(raw + b"x")) == header


def test_fields_lie_where_the_page_draws_them():
    assert RAW[0:8].hex() == "f35743534547" + "0d0a"
    assert struct.unpack("<HHI", RAW[8:16]) == (1, 0, 3)
    assert struct.unpack("<Qq", RAW[16:32]) == (4711, 1_700_000_000_000)
    assert RAW[32:48] == bytes(range(16))
    assert RAW[48:60] == bytes(12)
    assert RAW[60:64] == struct.pack("<I", crc32c(RAW[:60]))


def test_every_flipped_bit_is_noticed():
    for bit in range(HEADER_BYTES * 8):
        with pytest.raises(ForeignFile, match=NAME):
            decode_segment_header(NAME, flipped(RAW, bit))


def test_a_header_cut_short_anywhere_is_noticed():
    for size in range(HEADER_BYTES):
        with pytest.raises(ForeignFile, match="too short"):
            decode_segment_header(NAME, RAW[:size])


def test_a_renamed_segment_is_recognised():
    with pytest.raises(ForeignFile, match="holds the segment of offset 4711: it was renamed"):
        decode_segment_header(segment_name(4712), RAW)


@pytest.mark.parametrize("version", [0, 2, 256, 65_535])
def test_another_version_is_refused_with_what_to_do(version):
    fields = RAW[:8] + struct.pack("<H", version) + RAW[10:60]

    with pytest.raises(ForeignFile, match=f"version {version}; .* use the release that wrote it"):
        decode_segment_header(NAME, sealed(fields))


@pytest.mark.parametrize(
    "data", [bytes(64), b"PK\x03\x04" * 16, sealed(b"\xf3WCSIDE\n" + RAW[8:60])]
)
def test_a_file_of_something_else_is_refused(data):
    with pytest.raises(ForeignFile, match="not a Waterclock segment"):
        decode_segment_header(NAME, data)


@given(st.binary(max_size=100))
def test_random_bytes_are_refused(data):
    with pytest.raises(ForeignFile):
        decode_segment_header(NAME, data)


@given(st.integers(0, OFFSET_MAX))
def test_a_name_tells_the_offset_and_names_sort_like_offsets(offset):
    name = segment_name(offset)

    assert parse_segment_name(name) == offset
    assert segment_name(max(offset - 1, 0)) <= name < segment_name(offset + 1)


@pytest.mark.parametrize(
    "name",
    [
        "", ".seg", "1.seg", "0000000000000000471.seg", "000000000000000004711.seg",
        "00000000000000004711", "00000000000000004711.seg.tmp", "00000000000000004711.SEG",
        "0000000000000000-471.seg", "+0000000000000004711.seg", "0000000000000000471 .seg",
        "٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٤٧١١.seg", "²0000000000000004711.seg", "99999999999999999999.seg",
        f"{OFFSET_MAX + 1:020d}.seg", "0000000000000_004711.seg",
    ],
)  # fmt: skip
def test_a_name_that_is_no_segments_is_refused(name):
    with pytest.raises(ForeignFile, match="move it elsewhere"):
        parse_segment_name(name)


@given(st.text(max_size=30))
def test_any_name_is_a_segments_or_refused(name):
    try:
        offset = parse_segment_name(name)
    except ForeignFile:
        return
    assert name == segment_name(offset)


def test_logs_are_told_apart_by_their_tags():
    assert log_tag(bytes(16)) == crc32c(bytes(16))
    assert len({log_tag(bytes([n]) * 16) for n in range(256)}) == 256
