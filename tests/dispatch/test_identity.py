"""Uuids are derived alike by all, look like uuid4, and never collide; markers survive anything."""

from contextlib import suppress
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.dispatch.core.identity import (
    BadMarker,
    MarkerName,
    Position,
    SequenceMarker,
    entry_uuids,
    marker_prefix,
    parse_marker,
    parse_position,
    shard_of,
    uuids_from,
)
from waterclock.dispatch.frames import uuid_text

u64 = st.integers(0, (1 << 64) - 1)
names = st.builds(MarkerName, u64, u64, st.binary(min_size=8, max_size=8))
positions = st.builds(Position, names, u64)
NAME = MarkerName(7, 1, b"nonce678")


def test_uuids_are_these_for_ever():
    """What another version derives must be the same, or a take-over between them writes twice."""
    prefix = marker_prefix("channel", NAME)
    entries, births_ms = entry_uuids("stream", [b"1700000000000-0", b"1700000000000-1"])

    assert [uuid_text(uuid) for uuid in uuids_from(prefix, 0, 2)] == GOLDEN[:2]
    assert [uuid_text(uuid) for uuid in entries] == GOLDEN[2:]
    assert births_ms == [1_700_000_000_000] * 2


GOLDEN = [
    "97196ad4-8488-481f-8a2b-000000000000",
    "97196ad4-8488-481f-8a2b-000000000001",
    "5ea2e40c-3706-4656-8c6a-000000000000",
    "5ea2e40c-3706-4656-8c6a-000000000001",
]


@given(names, st.integers(0, 1 << 40), st.integers(1, 50))
def test_uuids_behind_a_marker_are_uuid4s_and_differ(name, first, count):
    uuids = uuids_from(marker_prefix("c", name), first, count)

    assert len(set(uuids)) == count
    assert all(UUID(bytes=uuid).version == 4 for uuid in uuids)
    assert uuids[1:] == uuids_from(marker_prefix("c", name), first + 1, count - 1)


@given(st.lists(st.tuples(u64, u64), unique=True, max_size=30))
def test_every_entry_has_its_own_uuid(ids):
    uuids, births_ms = entry_uuids("s", [b"%d-%d" % each for each in ids])

    assert len(set(uuids)) == len(ids)
    assert births_ms == [ms for ms, _ in ids]
    assert all(UUID(bytes=uuid).version == 4 for uuid in uuids)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3)), min_size=1, max_size=9))
def test_a_uuid_does_not_depend_on_what_is_read_with_it(ids):
    entries = [b"%d-%d" % each for each in ids]

    assert entry_uuids("s", entries)[0] == [entry_uuids("s", [each])[0][0] for each in entries]


def test_sources_channels_and_markers_do_not_share_uuids():
    prefixes = {
        marker_prefix("a", NAME),
        marker_prefix("b", NAME),
        marker_prefix("a", MarkerName(8, 1, NAME.nonce)),
        marker_prefix("a", MarkerName(7, 2, NAME.nonce)),
        marker_prefix("a", MarkerName(7, 1, b"other678")),
        entry_uuids("a", [b"7-1"])[0][0][:10],
        entry_uuids("b", [b"7-1"])[0][0][:10],
    }

    assert len(prefixes) == 7


@pytest.mark.parametrize("wrong", [b"", b"5", b"5-", b"-5", b"x-1", b"-1-1", b"1-%d" % (1 << 64)])
def test_what_is_no_entry_id_is_refused(wrong):
    with pytest.raises(ValueError, match=r"."):
        entry_uuids("s", [wrong])


@given(st.builds(SequenceMarker, names, u64, st.none() | positions))
def test_markers_come_out_as_they_went_in(marker):
    assert parse_marker(marker.to_bytes()) == marker


@given(positions)
def test_positions_come_out_as_they_went_in(position):
    assert parse_position(position.to_bytes()) == position


def test_a_marker_has_these_bytes():
    marker = SequenceMarker(NAME, 9, Position(MarkerName(6, 2, b"nonce678"), 3))

    assert marker.to_bytes().hex(" ", 8) == bytes.fromhex(
        "776d01 0000000000000007 0000000000000001 0000000000000009 6e6f6e6365363738"
        "0000000000000006 0000000000000002 6e6f6e6365363738 0000000000000003"
    ).hex(" ", 8)


@given(st.binary(max_size=80))
def test_other_bytes_are_no_marker(raw):
    for parse in (parse_marker, parse_position):
        with suppress(BadMarker):
            assert parse(raw).to_bytes() == raw


def test_shards_are_used_evenly():
    prefix = marker_prefix("c", NAME)
    behind_a_marker = [shard_of(uuid, 3) for uuid in uuids_from(prefix, 0, 300)]
    entries, _ = entry_uuids("s", [b"%d-0" % ms for ms in range(3_000)])
    of_a_stream = [shard_of(uuid, 3) for uuid in entries]

    assert [behind_a_marker.count(shard) for shard in range(3)] == [100, 100, 100]
    assert all(900 < of_a_stream.count(shard) < 1_100 for shard in range(3))
