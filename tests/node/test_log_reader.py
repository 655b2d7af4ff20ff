"""Frames for those who deliver them: every offset is answered for, whatever became of the log."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.stores import (
    FIRST,
    WINDOW_MS,
    Partition,
    disk_of,
    flipped,
    message,
    open_store,
    places,
)
from waterclock.log.frame import HEADER_BYTES, Frame, FrameType
from waterclock.model.errors import ForeignFile, Unavailable
from waterclock.node.groups.outbound import read_batch
from waterclock.node.partition import log_reader
from waterclock.node.partition.log_reader import LogReader, Missing
from waterclock.node.partition.remote_log import PartitionLog
from waterclock.storage.partition_store import PartitionStore


def read_on(reader: PartitionLog, start: int) -> list[tuple[int, int, str]]:
    """Read from an offset to the end; return what each stretch is."""
    found = []
    while (frame := reader.at(start)) is not None:
        if isinstance(frame, Missing):
            found.append((frame.start, frame.end, "missing"))
            start = frame.end
        else:
            header = frame.header
            found.append((header.base_offset, header.end_offset, header.type.name))
            start = header.end_offset
    return found


def frames_of(store: PartitionStore) -> list[tuple[int, int, str]]:
    """Return what the store itself says."""
    headers = [frame.header for frame in store.frames(store.start) if frame.header.span]
    return [(h.base_offset, h.end_offset, h.type.name) for h in headers]


def test_a_log_is_read_over_its_segments_and_on_as_it_grows():
    partition = Partition()
    reader = LogReader(partition.store)
    assert reader.at(0) is None
    partition.fill(range(3), roll=True)
    partition.publish(message(3), message(4))
    assert read_on(reader, 0) == frames_of(partition.store)
    partition.fill(range(5, 7), roll=True)
    partition.fill(range(7, 9))

    assert read_on(reader, 5) == frames_of(partition.store)[4:]
    assert read_on(reader, 0) == frames_of(partition.store)
    frame = reader.at(4)
    assert isinstance(frame, Frame)
    assert frame.header.base_offset == 3, "the frame that spans the offset"


def test_what_is_not_flushed_cannot_be_read():
    partition = Partition()
    partition.append(message(0))
    reader = LogReader(partition.store)

    assert reader.at(0) is None
    partition.flush()
    assert isinstance(reader.at(0), Frame)


def test_a_reader_that_follows_the_log_does_not_look_for_its_place(monkeypatch):
    partition = Partition()
    partition.fill(range(2))
    reader = LogReader(partition.store)
    read_on(reader, 0)
    segment = partition.store.segments[-1]
    monkeypatch.setattr(type(segment), "position_of", lambda self, offset: pytest.fail("looked"))

    partition.fill(range(2, 5))

    assert [end for _, end, _ in read_on(reader, 2)] == [3, 4, 5]


def test_frames_read_last_are_kept_and_not_read_again(monkeypatch):
    monkeypatch.setattr(log_reader, "STRETCH_FRAMES", 2)
    monkeypatch.setattr(log_reader, "STRETCHES_MAX", 2)
    partition = Partition()
    partition.fill(range(9))
    reader = LogReader(partition.store)
    read_on(reader, 0)
    last = reader.at(8)

    assert reader.at(8) is last
    assert read_on(reader, 3) == frames_of(partition.store)[3:]


def test_what_retention_took_is_missing_up_to_where_the_log_begins():
    partition = Partition()
    for number in range(3):
        partition.fill([number], roll=True)
    partition.rewrite(keep_from=3)
    partition.clock.advance(WINDOW_MS + 1)
    partition.publish(message(3))
    partition.rewrite(keep_from=3)
    start = partition.store.start
    assert start, "nothing was taken"

    assert read_on(LogReader(partition.store), 0)[0] == (0, start, "missing")


@pytest.mark.parametrize("byte", [20, HEADER_BYTES + 300])
@pytest.mark.parametrize("frame", range(3))
def test_damage_is_missing_and_the_log_is_read_behind_it(frame, byte):
    partition = Partition()
    partition.fill(range(4))
    partition.close()
    files = partition.files()
    position, _ = places(files[FIRST])[frame]
    store = open_store(disk_of(files | {FIRST: flipped(files[FIRST], position + byte)}))

    found = read_on(LogReader(store), 0)

    kinds = ["missing" if number == frame else "DATA" for number in range(4)]
    assert found == [(number, number + 1, kind) for number, kind in enumerate(kinds)]


async def test_nobody_passes_over_damage_in_one_of_several_copies():
    partition = Partition()
    partition.fill(range(4))
    partition.close()
    files = partition.files()
    position, _ = places(files[FIRST])[1]
    store = open_store(disk_of(files | {FIRST: flipped(files[FIRST], position + 20)}))
    met: list[int] = []

    def met_damage() -> bool:
        met.append(1)
        return True

    reader = LogReader(store, met_damage=met_damage)

    assert read_on(reader, 0) == [(0, 1, "DATA")]
    assert met, "others are told"
    assert [end for _, end, _ in read_on(reader, 2)] == [3, 4]
    assert [reader.has(start, start + 1) for start in range(5)] == [True, False, True, True, False]
    assert not reader.has(0, 4)
    await reader.load(0)
    with pytest.raises(Unavailable, match="damaged at 1"):
        await reader.load(1)


def test_what_was_planned_and_turns_out_to_be_damaged_here_waits_to_be_read_elsewhere():
    partition = Partition()
    partition.fill(range(3))
    partition.close()
    files = partition.files()
    position, _ = places(files[FIRST])[1]
    store = open_store(disk_of(files | {FIRST: flipped(files[FIRST], position + 20)}))
    reader = LogReader(store, met_damage=lambda: True)

    before = read_batch(reader, [(0, 3)], 0)
    assert before.messages is not None
    assert (before.messages.ranges, before.gone, before.end) == (((0, 1),), [], 1)
    assert read_batch(reader, [(1, 3)], 0) == (None, [], 0, 1)


@pytest.mark.parametrize("frames", [1, 100])
def test_damage_that_spans_no_offset_takes_no_message_with_it(monkeypatch, frames):
    monkeypatch.setattr(log_reader, "STRETCH_FRAMES", frames)
    partition = Partition()
    partition.publish(*[message(number, key=b"k") for number in range(3)])
    partition.fill(range(3, 5), roll=True)
    partition.rewrite(keep_from=5, by_key=True)
    partition.close()
    files = partition.files()
    kinds = [header.type for _, header in places(files[FIRST])]
    assert FrameType.SEEN in kinds
    position, _ = places(files[FIRST])[kinds.index(FrameType.SEEN)]
    store = open_store(disk_of(files | {FIRST: flipped(files[FIRST], position + 20)}))

    found = read_on(LogReader(store), 0)

    assert [span[:2] for span in found] == [(0, 3), (3, 4), (4, 5)]
    assert "missing" not in [kind for _, _, kind in found]


def test_a_frame_of_a_newer_release_stops_the_reader():
    partition = Partition()
    partition.fill(range(2))
    store = partition.store
    reader = LogReader(store)
    segment = store.segments[-1]

    def newer(*_: object) -> Frame:
        raise ForeignFile("written by a newer release")

    segment._checked = newer  # type: ignore[method-assign, assignment]

    with pytest.raises(ForeignFile):
        reader.at(0)


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=12),
    rolls=st.sets(st.integers(0, 11)),
    starts=st.lists(st.integers(0, 47), max_size=6),
    frames=st.integers(1, 4),
)
def test_any_offset_finds_its_frame(sizes, rolls, starts, frames):
    partition = Partition()
    number = 0
    for at, size in enumerate(sizes):
        partition.publish(*[message(number + n) for n in range(size)])
        number += size
        if at in rolls:
            partition.roll()
    before, log_reader.STRETCH_FRAMES = log_reader.STRETCH_FRAMES, frames
    try:
        reader = LogReader(partition.store)
        for start in starts:
            frame = reader.at(start)
            if start >= number:
                assert frame is None
            else:
                assert isinstance(frame, Frame)
                assert frame.header.base_offset <= start < frame.header.end_offset
        assert read_on(reader, 0) == frames_of(partition.store)
    finally:
        log_reader.STRETCH_FRAMES = before
