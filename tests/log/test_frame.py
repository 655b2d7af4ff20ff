"""A frame comes back as it was written, or not at all: every changed bit is seen."""

import struct
from random import Random

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tests.log.damage import flipped
from tests.log.frames import TAG, LogBuilder, sample
from waterclock.log.frame import (
    BODY_BYTES_MAX,
    CONTROL,
    FLAG_EXPIRES,
    FLAG_SPARSE,
    FLAG_UNTRACKED,
    HEADER_BYTES,
    MAGIC,
    OFFSET_MAX,
    SPAN_MAX,
    FrameHeader,
    FrameType,
    check_body,
    decode_header,
    encode_header,
    encode_lone,
    header_of,
    read_frame,
)
from waterclock.model.errors import ForeignFile, FrameDamaged, LimitExceeded
from waterclock.model.ids import Epoch, Millis, Offset

U32 = st.integers(0, 2**32 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
MESSAGES = {FrameType.DATA, FrameType.SCHEDULED, FrameType.FIRED}
BODILESS = {FrameType.EPOCH, FrameType.NOOP}

SMALL = LogBuilder(7).publish([sample(1), sample(2)])


@st.composite
def sound_headers(draw: st.DrawFn) -> FrameHeader:
    """Any header that contradicts nothing."""
    kind = draw(st.sampled_from(FrameType))
    flags = draw(st.integers(0, 3))
    span = draw(st.integers(1, SPAN_MAX)) if kind not in CONTROL else int(kind != FrameType.SEEN)
    rows = 0 if kind in BODILESS else draw(U32)
    if kind in MESSAGES:
        rows = draw(st.integers(0, span)) if flags & FLAG_SPARSE else span
    body_len = 0 if kind in BODILESS else draw(st.integers(0, BODY_BYTES_MAX // 8)) * 8
    low, high = sorted([draw(I64), draw(I64)])
    base = draw(st.integers(0, OFFSET_MAX - span))
    return FrameHeader(
        kind, flags, Offset(base), span, rows, Epoch(draw(U32)), draw(U32), Millis(draw(I64)),
        Millis(low), Millis(high), body_len, draw(U32), draw(U32),
    )  # fmt: skip


def sealed(fields: bytes) -> bytes:
    """Return header bytes under a checksum that holds, whatever they claim."""
    return fields + struct.pack("<I", crc32c(fields))


def patched(header: bytes, position: int, change: bytes) -> bytes:
    """Return a header with some bytes replaced and its checksum made good."""
    return sealed(header[:position] + change + header[position + len(change) : HEADER_BYTES - 4])


@given(sound_headers())
def test_any_header_comes_back_as_it_was_written(header):
    raw = encode_header(header)

    assert len(raw) == HEADER_BYTES
    assert decode_header(raw) == header
    assert decode_header(memoryview(b"12345678" + raw), 8) == header


def test_fields_lie_where_the_page_draws_them():
    header = FrameHeader(
        FrameType.FIRED, FLAG_UNTRACKED, Offset(0x0807060504030201), 5, 5, Epoch(7), 9,
        Millis(-2), Millis(10), Millis(11), 16, 0xB0D7C2C1, 0x7A67A661,
    )  # fmt: skip
    raw = encode_header(header)

    assert raw[0:4].hex() == "f3574366"
    assert tuple(raw[4:6]) == (1, 3)
    assert raw[6:8] == b"\x02\x00"
    assert raw[8:16] == bytes(range(1, 9))
    assert struct.unpack("<IIII", raw[16:32]) == (5, 5, 7, 9)
    assert struct.unpack("<qqq", raw[32:56]) == (-2, 10, 11)
    assert struct.unpack("<III", raw[56:68]) == (16, 0xB0D7C2C1, 0x7A67A661)
    assert raw[68:72] == struct.pack("<I", crc32c(raw[:68]))


def test_a_frame_is_header_and_body_as_they_lie_in_the_file():
    data = b"before.." + SMALL.raw.tobytes() + b"behind"

    frame = read_frame(data, 8)

    assert frame == SMALL
    assert frame.raw.obj is data
    assert frame.body.obj is data
    assert repr(frame) == f"<Frame DATA [7, 9) {len(SMALL.raw)} B>"


@pytest.mark.parametrize("flags", [0, FLAG_UNTRACKED | FLAG_EXPIRES])
def test_a_frame_of_one_message_is_the_same_by_the_short_way(flags):
    body = bytes(range(40))
    place = {"base_offset": 77, "log_tag": 5, "append_ms": 1_000, "epoch": 3, "flushed_end": 70}
    due = {"min_due_ms": 1_000, "max_due_ms": 1_000}
    header = header_of(FrameType.DATA, body, span=1, rows=1, flags=flags, **place, **due)

    assert encode_lone(body, flags=flags, **place) == encode_header(header) + body


def test_every_flipped_bit_of_a_frame_is_noticed():
    raw = SMALL.raw.tobytes()

    for bit in range(len(raw) * 8):
        with pytest.raises(FrameDamaged):
            read_frame(flipped(raw, bit))


def test_a_frame_cut_short_anywhere_is_noticed():
    raw = SMALL.raw.tobytes()

    for size in range(len(raw)):
        with pytest.raises(FrameDamaged, match="cut short"):
            read_frame(raw[:size])


@pytest.mark.parametrize(
    ("position", "change"),
    [
        pytest.param(4, b"\x00", id="version 0"),
        pytest.param(4, b"\x02", id="version 2"),
        pytest.param(5, b"\x00", id="type 0"),
        pytest.param(5, b"\x09", id="type 9"),
        pytest.param(6, b"\x10", id="flag 16"),
        pytest.param(6, b"\x00\x80", id="flag 32768"),
    ],
)
def test_what_a_newer_release_wrote_is_foreign_and_not_damaged(position, change):
    with pytest.raises(ForeignFile, match="use the release that wrote it"):
        decode_header(patched(SMALL.raw.tobytes(), position, change))


def test_another_magic_under_a_good_checksum_is_no_frame():
    with pytest.raises(FrameDamaged, match="magic"):
        decode_header(patched(SMALL.raw.tobytes(), 0, MAGIC[::-1]))


CONTRADICTIONS = [
    pytest.param({"span": 0, "rows": 0}, "spans 0", id="messages without offsets"),
    pytest.param({"span": SPAN_MAX + 1, "flags": 1}, "spans", id="more offsets than a segment"),
    pytest.param({"type": FrameType.SEEN, "span": 1}, "spans 1", id="seen ids with an offset"),
    pytest.param({"type": FrameType.SEEN, "span": 2}, "spans 2", id="seen ids with offsets"),
    pytest.param({"type": FrameType.CANCEL, "span": 2}, "spans 2", id="cancel of two offsets"),
    pytest.param({"type": FrameType.EPOCH, "span": 0}, "spans 0", id="epoch without an offset"),
    pytest.param({"base_offset": OFFSET_MAX}, "absurd", id="offset past the last"),
    pytest.param({"base_offset": 2**64 - 1}, "absurd", id="offset that would wrap"),
    pytest.param({"rows": 3}, "3 rows in 2 offsets", id="more rows than offsets"),
    pytest.param({"rows": 1}, "1 rows in 2 offsets", id="fewer rows though not sparse"),
    pytest.param({"rows": 3, "flags": 1}, "3 rows in 2", id="more rows than offsets, sparse"),
    pytest.param({"body_len": 12}, "body of 12 bytes", id="body not aligned"),
    pytest.param({"body_len": BODY_BYTES_MAX + 8}, "body of", id="body too long"),
    pytest.param({"type": FrameType.NOOP, "rows": 0}, "with a body", id="noop with a body"),
    pytest.param({"type": FrameType.NOOP, "body_len": 0}, "with a body", id="noop with rows"),
    pytest.param({"min_due_ms": 5, "max_due_ms": 4}, "reversed", id="due times reversed"),
]


@pytest.mark.parametrize(("changes", "problem"), CONTRADICTIONS)
def test_a_header_that_contradicts_itself_is_neither_read_nor_written(changes, problem):
    header = SMALL.header._replace(**changes)
    raw = sealed(struct.pack("<4sBBHQIIIIqqqIII", MAGIC, 1, *header))

    with pytest.raises(FrameDamaged, match=problem):
        decode_header(raw)
    with pytest.raises(AssertionError, match=problem):
        encode_header(header)


@given(st.binary(max_size=200))
def test_random_bytes_are_not_a_frame(data):
    with pytest.raises(FrameDamaged):
        read_frame(data)


def test_any_bytes_under_a_good_checksum_are_a_sound_header_or_refused():
    random = Random(1)
    raw = SMALL.raw.tobytes()[: HEADER_BYTES - 4]
    read = 0
    for _ in range(5_000):
        fields = bytearray(raw)
        for _ in range(random.choice([1, 2, 8])):
            at = random.randrange(4, len(fields))
            fields[at] = random.choice([0, 1, 2, 127, 128, 255])
        try:
            header = decode_header(sealed(bytes(fields)))
        except (FrameDamaged, ForeignFile):
            continue
        assert encode_header(header) == sealed(bytes(fields))
        read += 1

    assert read > 500


@given(st.binary(max_size=64).map(lambda data: data[: len(data) // 8 * 8]), st.integers(0, 99))
def test_a_header_vouches_for_its_body_alone(body, position):
    header = header_of(
        FrameType.DATA, body, base_offset=3, span=1, rows=1, log_tag=TAG, append_ms=1
    )
    data = bytes(position) + encode_header(header) + body + b"behind"

    assert check_body(header, data, position) == body


def test_a_body_beyond_the_limit_is_refused_by_name():
    body = np.empty(BODY_BYTES_MAX + 8, np.uint8).data

    with pytest.raises(LimitExceeded, match="frame body bytes"):
        header_of(FrameType.DATA, body, base_offset=0, span=1, rows=1, log_tag=TAG, append_ms=1)


@given(st.integers(0, 2**33), st.integers(0, 2**33))
def test_a_frame_tells_what_was_flushed_before_it_or_nothing_if_that_is_too_long_ago(base, lag):
    flushed_end = max(0, base - lag)
    header = header_of(
        FrameType.EPOCH, b"", base_offset=base, span=1, rows=0, log_tag=TAG, append_ms=1,
        flushed_end=flushed_end,
    )  # fmt: skip

    assert decode_header(encode_header(header)).flushed_end == (
        flushed_end if base - flushed_end < 2**32 - 1 else 0
    )


@pytest.mark.parametrize("kind", FrameType)
def test_what_is_delivered_and_what_dedup_remembers_depends_on_the_type(kind):
    plain = SMALL.header._replace(type=kind)
    untracked = plain._replace(flags=FLAG_UNTRACKED)

    assert plain.is_deliverable == (kind.name in {"DATA", "FIRED"})
    assert plain.is_tracked == (kind.name in {"DATA", "SCHEDULED", "SEEN"})
    assert not untracked.is_tracked
    assert (plain.is_sparse, plain._replace(flags=FLAG_SPARSE).is_sparse) == (False, True)
