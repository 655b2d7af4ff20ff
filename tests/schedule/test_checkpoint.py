"""A checkpoint is read as it was written, or not at all."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from waterclock.model.ids import Offset
from waterclock.schedule.checkpoint import (
    HEADER_BYTES,
    Checkpoint,
    decode_checkpoint,
    encode_checkpoint,
)

INT64S = st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=20)


def checkpoint_of(offsets: list[int], due: list[int]) -> Checkpoint:
    columns = np.array(offsets, np.int64), np.array(due, np.int64)
    return Checkpoint(bytes(range(16)), Offset(1 << 40), 0xDEADBEEF, *columns)


def facts(checkpoint: Checkpoint) -> tuple[object, ...]:
    return (*checkpoint[:3], checkpoint.offsets.tolist(), checkpoint.due_ms.tolist())


SAMPLE = checkpoint_of([3, 7], [1_700_000_000_000, 1_700_000_000_001])
BYTES_V1 = bytes.fromhex(
    "f3574354494d450a01000000efbeadde000102030405060708090a0b0c0d0e0f"
    "00000000000100000200000000000000"
)
"""The first bytes of version 1, to the count. Never changed."""


@given(INT64S)
def test_what_is_written_is_read(values):
    checkpoint = checkpoint_of(values, values[::-1])

    decoded = decode_checkpoint(encode_checkpoint(checkpoint))

    assert decoded is not None
    assert facts(decoded) == facts(checkpoint)


def test_the_layout_is_the_one_drawn():
    data = encode_checkpoint(SAMPLE)

    assert data[: len(BYTES_V1)] == BYTES_V1
    assert np.frombuffer(data[HEADER_BYTES:], "<i8").tolist() == [
        3,
        7,
        1_700_000_000_000,
        1_700_000_000_001,
    ]


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
