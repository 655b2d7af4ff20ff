"""A side-car is whole and of its segment, or it counts for nothing."""

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tests.log.damage import flipped
from waterclock.log.sidecars.sidecar import (
    HEADER_BYTES,
    Coverage,
    Sidecar,
    SidecarKind,
    decode_sidecar,
    encode_sidecar,
    sidecar_name,
)
from waterclock.model.ids import Offset

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
KINDS = st.sampled_from(SidecarKind)

BODY = b"sixteen bytes..."
COVERAGE = Coverage(Offset(4711), 3, Offset(4800), 65_000, 0xC0FFEE)
RAW = encode_sidecar(SidecarKind.DUE, COVERAGE, BODY) + BODY

coverages = st.builds(Coverage, U64.map(Offset), U32, U64.map(Offset), U64, U32)


def decoded(data: bytes, kind: SidecarKind = SidecarKind.DUE) -> Sidecar | None:
    return decode_sidecar(kind, memoryview(data))


@given(KINDS, coverages, st.binary(max_size=40))
def test_any_side_car_comes_back_as_it_was_written(kind, coverage, body):
    header = encode_sidecar(kind, coverage, body)

    assert len(header) == HEADER_BYTES
    assert decoded(header + body, kind) == Sidecar(coverage, memoryview(body))


def test_fields_lie_where_the_page_draws_them():
    assert RAW[0:8].hex() == "f3574353494445" + "0a"
    assert struct.unpack("<HHI", RAW[8:16]) == (1, 3, 3)
    assert struct.unpack("<QQQ", RAW[16:40]) == (4711, 4800, 65_000)
    assert struct.unpack("<II", RAW[40:48]) == (0xC0FFEE, crc32c(BODY))
    assert struct.unpack("<QI", RAW[48:60]) == (16, 0)
    assert RAW[60:64] == struct.pack("<I", crc32c(RAW[:60]))
    assert RAW[64:] == BODY


def test_every_flipped_bit_is_noticed():
    for bit in range(len(RAW) * 8):
        assert decoded(flipped(RAW, bit)) is None


def test_a_side_car_cut_short_anywhere_is_noticed():
    for size in range(len(RAW)):
        assert decoded(RAW[:size]) is None


@pytest.mark.parametrize("kind", [SidecarKind.INDEX, SidecarKind.IDS])
def test_a_side_car_of_another_kind_counts_for_nothing(kind):
    assert decoded(RAW, kind) is None


@pytest.mark.parametrize("version", [0, 2, 65_535])
def test_a_side_car_of_another_version_counts_for_nothing(version):
    fields = RAW[:8] + struct.pack("<H", version) + RAW[10:60]

    assert decoded(fields + struct.pack("<I", crc32c(fields)) + BODY) is None


@pytest.mark.parametrize("body_len", [17, 2**31, 2**63, 2**64 - 1])
def test_a_body_longer_than_the_file_counts_for_nothing(body_len):
    fields = RAW[:48] + struct.pack("<Q4x", body_len)

    assert decoded(fields + struct.pack("<I", crc32c(fields)) + BODY) is None


@given(st.binary(max_size=200))
def test_random_bytes_count_for_nothing(data):
    assert decoded(data) is None


def test_names_end_in_the_kind():
    names = [sidecar_name(4711, kind) for kind in SidecarKind]

    assert names == [f"00000000000000004711.{kind}" for kind in ("index", "ids", "due")]
