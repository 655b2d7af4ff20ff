"""A checkpoint is read as it was written, or not at all."""

import numpy as np
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from waterclock.schedule.checkpoint import (
    HEADER_BYTES,
    Checkpoint,
    SavedSegment,
    decode_checkpoint,
    encode_checkpoint,
)

FLAGS = st.lists(st.booleans(), max_size=20).map(lambda flags: np.array(flags, np.bool_))
SEGMENTS = st.builds(
    SavedSegment,
    base_offset=st.integers(0, (1 << 64) - 1),
    generation=st.integers(0, (1 << 32) - 1),
    last_header_crc=st.integers(0, (1 << 32) - 1),
    opened=FLAGS,
    moved=FLAGS,
)


def facts(checkpoint: Checkpoint) -> tuple[object, ...]:
    segments = [
        (*segment[:3], segment.opened.tolist(), segment.moved.tolist())
        for segment in checkpoint.segments
    ]
    return checkpoint.log_id, segments


SAMPLE = Checkpoint(
    bytes(range(16)),
    [
        SavedSegment(
            1 << 40, 3, 0xDEADBEEF, np.array([True] + [False] * 8 + [True]), np.ones(0, bool)
        ),
        SavedSegment(1 << 41, 0, 7, np.ones(0, bool), np.array([False, True])),
    ],
)
BYTES_V2 = bytes.fromhex(
    "f3574354494d450a0200000002000000000102030405060708090a0b0c0d0e0f4300000000000000"
)
"""The first bytes of version 2, to the length of the body. Never changed."""
BODY_V2 = bytes.fromhex(
    "000000000001000003000000efbeadde0a000000000000000000000000000000"
    "8040"
    "000000000002000000000000070000000000000000000000020000000000000040"
)


@given(st.lists(SEGMENTS, max_size=4))
def test_what_is_written_is_read(segments):
    checkpoint = Checkpoint(bytes(range(16)), segments)

    decoded = decode_checkpoint(encode_checkpoint(checkpoint))

    assert decoded is not None
    assert facts(decoded) == facts(checkpoint)


def test_the_layout_is_the_one_drawn():
    data = encode_checkpoint(SAMPLE)

    assert data[: len(BYTES_V2)] == BYTES_V2
    assert data[HEADER_BYTES:] == BODY_V2


def test_no_flipped_bit_goes_unnoticed():
    data = encode_checkpoint(SAMPLE)

    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert decode_checkpoint(bytes(damaged)) is None, bit


def test_a_cut_or_lengthened_checkpoint_is_refused():
    data = encode_checkpoint(SAMPLE)

    assert all(decode_checkpoint(data[:end]) is None for end in range(len(data)))
    assert decode_checkpoint(data + b"\0") is None


@given(st.binary(max_size=200))
def test_no_bytes_make_reading_fail(data):
    assert decode_checkpoint(data) is None


VERSION_1 = bytes.fromhex(
    "f3574354494d450a01000000efbeadde000102030405060708090a0b0c0d0e0f"
    "00000000000100000200000000000000a046a2a0000000000000000007885b82"
    "030000000000000007000000000000000068e5cf8b0100000168e5cf8b010000"
)
"""A whole checkpoint as version 1 wrote it: offsets 3 and 7, and when they are due."""


def test_a_checkpoint_of_an_older_version_is_refused_for_its_version_alone():
    fields, crc = VERSION_1[:60], VERSION_1[60:64]
    assert crc32c(fields).to_bytes(4, "little") == crc

    assert decode_checkpoint(VERSION_1) is None
