"""Frames that are not ours to visit: of another log, of another release, inside a message."""

import struct
from random import Random

import pytest

from tests.log.damage import flipped
from tests.log.frames import TAG, LogBuilder, sample
from tests.log.scans import OTHER_TAG, START, Visited, log_of, retagged
from waterclock.model.errors import ForeignFile


def test_a_header_of_another_log_is_not_believed_how_long_its_frame_is():
    log = log_of(3)
    stray = struct.pack("<I", log.frames[1].header.body_len + log.frames[2].header.size)
    parts = [frame.raw.tobytes() for frame in log.frames]
    parts[1] = retagged(parts[1], tag=OTHER_TAG, position=56, change=stray)

    visited = Visited(b"".join(parts))

    assert visited.frames == [log.frames[0], log.frames[2]]
    assert visited.places == [(START + log.positions[1], START + log.positions[2], 2, 4)]


def test_a_stray_frame_at_an_offset_that_is_taken_is_not_visited():
    log = log_of(3)
    parts = [frame.raw.tobytes() for frame in log.frames]
    parts[1] = flipped(parts[1], len(parts[1]) * 8 - 1)
    parts.insert(2, LogBuilder(3).publish([sample(9)]).raw.tobytes())

    visited = Visited(b"".join(parts))

    assert visited.frames == [log.frames[0], log.frames[2]]


@pytest.mark.parametrize("tag", [TAG, OTHER_TAG], ids=["right tag", "wrong tag"])
@pytest.mark.parametrize("harm", ["none", "body"])
def test_a_frame_inside_a_message_is_no_frame(tag, harm):
    log = LogBuilder()
    forged = retagged(log_of(4).frames[3].raw.tobytes(), tag=tag)
    carrier = log.publish([sample(1, value=forged * 3)])
    log.publish([sample(2)])
    data = log.data
    if harm == "body":
        data = flipped(data, (carrier.header.size - 1) * 8)

    visited = Visited(data)

    assert visited.frames == (log.frames if harm == "none" else log.frames[1:])


@pytest.mark.parametrize("change", [b"", b"\x02", b"\x01\x09"], ids=["ours", "version", "type"])
def test_a_frame_of_a_guessed_tag_is_no_frame_even_if_the_header_around_it_is_damaged(change):
    log = LogBuilder()
    frame = log_of(4).frames[3].raw.tobytes()
    forged = retagged(frame, tag=OTHER_TAG, position=4, change=change)
    log.publish([sample(1, value=forged * 3)])
    log.publish([sample(2)])
    assert log.data.index(forged) % 8 == 0

    visited = Visited(flipped(log.data, 100))

    assert visited.frames == log.frames[1:]


@pytest.mark.parametrize("damaged", [False, True], ids=["in its place", "behind damage"])
@pytest.mark.parametrize("change", [b"\x02", b"\x01\x09", b"\x01\x01\x10"])
def test_a_frame_of_a_newer_release_stops_the_scan(damaged, change):
    log = log_of(3)
    parts = [frame.raw.tobytes() for frame in log.frames]
    parts[2] = retagged(parts[2], position=4, change=change)
    if damaged:
        parts[1] = flipped(parts[1], 5)

    with pytest.raises(ForeignFile, match="use the release that wrote it"):
        Visited(b"".join(parts))


def test_who_knows_the_tag_and_waits_for_a_damaged_header_cannot_hide_the_damage():
    """A frame inside a message then passes for one of ours: the tag is no secret. But nothing is
    lost in silence, for what lies around it and behind it is visited or reported."""
    random = Random(7)
    for _ in range(200):
        log = LogBuilder()
        base = random.choice([0, 1, 2, 3, 1 << 40])
        forged = LogBuilder(base).publish([sample(9)] * random.choice([1, 2])).raw.tobytes()
        log.publish([sample(1, value=forged * random.choice([1, 3]))])
        log.publish([sample(2)])
        log.publish([sample(3)])

        visited = Visited(flipped(log.data, 100) + bytes(random.choice([0, 512])))

        assert visited.scan.damage[0].position == START
        assert visited.scan.rotten(1)
