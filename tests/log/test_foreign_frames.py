"""Frames of another replica are taken only if they are whole and the very next ones."""

import pytest

from tests.log.damage import flipped
from tests.log.frames import NOW_MS, TAG, LogBuilder, sample
from waterclock.log.foreign_frames import LogEnd, read_foreign, with_flushed_end
from waterclock.log.frame import FLAG_SPARSE, Frame, encode_header
from waterclock.model.errors import BadInput
from waterclock.model.ids import Epoch, Millis, Offset

END = LogEnd(Offset(7), Epoch(2), Millis(NOW_MS), TAG)
LEADER = Epoch(4)


def log() -> LogBuilder:
    """Return four frames that follow on `END`."""
    built = LogBuilder(7)
    built.flushed_end = 5
    built.publish([sample(1), sample(2)])
    built.epoch()
    built.noop(3)
    built.seen([b"a"], [10])
    built.publish([sample(3)])
    built.frames = [
        changed(frame, epoch=Epoch(2 if number == 0 else 4))
        for number, frame in enumerate(built.frames)
    ]
    return built


def changed(frame: Frame, **fields: object) -> Frame:
    header = frame.header._replace(**fields)  # type: ignore[arg-type]
    raw = memoryview(encode_header(header) + bytes(frame.body))
    return Frame(header, frame.body, raw)


def read(data: bytes, end: LogEnd = END) -> list[list[Frame]]:
    groups = read_foreign(data, end, leader_epoch=LEADER)
    return [[foreign.frame for foreign in group] for group in groups]


def test_seen_frames_stay_with_the_frame_before_them():
    groups = read(log().data)

    kinds = [[frame.header.type.name for frame in group] for group in groups]
    assert kinds == [["DATA"], ["EPOCH"], ["NOOP", "SEEN"], ["DATA"]]
    assert read(b"") == []


@pytest.mark.parametrize(
    ("number", "fields", "said"),
    [
        (0, {"log_tag": TAG ^ 1}, "another log"),
        (0, {"base_offset": Offset(8)}, "the log ends at 7"),
        (0, {"base_offset": Offset(6)}, "the log ends at 7"),
        (2, {"base_offset": Offset(11)}, "the log ends at 10"),
        (0, {"epoch": Epoch(1)}, "before the log's, 2"),
        (1, {"epoch": Epoch(5)}, "after the leader's, 4"),
        (1, {"epoch": Epoch(2)}, "begins with its own frame"),
        (2, {"epoch": Epoch(2)}, "before the log's, 4"),
        (0, {"epoch": Epoch(3)}, "begins with its own frame"),
        (4, {"append_ms": Millis(NOW_MS - 1)}, "before the log's last"),
    ],
)
def test_a_frame_that_cannot_be_the_next_one_is_refused(number, fields, said):
    built = log()
    built.frames[number] = changed(built.frames[number], **fields)

    with pytest.raises(BadInput, match=said):
        read(built.data)


def test_a_seen_frame_without_the_frame_it_speaks_of_is_refused():
    built = log()
    built.frames = built.frames[3:]

    with pytest.raises(BadInput, match="without the frame before it"):
        read(built.data, LogEnd(Offset(13), LEADER, Millis(NOW_MS), TAG))


def test_one_flipped_bit_anywhere_is_refused():
    data = log().data

    for bit in range(0, 8 * len(data), 5):
        with pytest.raises(BadInput):
            read(flipped(data, bit))


def test_frames_that_are_cut_short_are_refused():
    built = log()
    ends = {*built.positions, len(built.data)}

    for size in range(0, len(built.data), 8):
        if size not in ends:
            with pytest.raises(BadInput):
                read(built.data[:size])


def test_a_body_that_is_not_what_its_header_says_is_refused():
    built = log()
    built.frames = [changed(built.frames[0], flags=FLAG_SPARSE, rows=1)]

    with pytest.raises(BadInput, match="another replica"):
        read(built.data)


def test_a_replica_testifies_to_its_own_disk():
    frame = log().frames[0]

    assert (frame.header.unflushed, frame.header.flushed_end) == (2, 5)
    mine = with_flushed_end(frame.header, 3)
    assert (mine.flushed_end, mine._replace(unflushed=2)) == (3, frame.header)
