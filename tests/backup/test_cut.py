"""A log is cut behind a frame, wherever its segments end."""

import pytest

from waterclock.model.errors import FrameDamaged
from waterclock.model.message import Message
from waterclock.model.sections import LogConfig
from waterclock.runtime.clock import SystemClock
from waterclock.storage.backup.cut import cut_log
from waterclock.storage.backup.writer import checked_crc
from waterclock.storage.folders.os_folder import OsFolder
from waterclock.storage.local_log import open_log

SMALL = LogConfig(segment_bytes=4 << 10, preallocate_bytes=0)


@pytest.fixture
def log(tmp_path):
    """Return an open log of ten frames, three in a segment but for the last."""
    with open_log(tmp_path / "log", log=SMALL) as opened:
        for number in range(10):
            opened.publish([Message(b"%d" % number * 1_000)] * 2)
        yield opened


def test_a_cut_at_the_end_has_all_segments_whole(log):
    segments = log._store.segments

    cut = cut_log("meta", segments, log.end)

    assert len(segments) > 2
    assert [each.size_bytes for each in cut.segments] == [each.end_position for each in segments]
    assert cut.end_offset == log.end == 20


def test_a_cut_before_the_end_leaves_out_the_frames_behind_it(log, tmp_path):
    active = log._store.segments[-1]
    while active.end_offset < active.base_offset + 4:
        log.publish([Message(b"x")] * 2)
        active = log._store.segments[-1]

    cut = cut_log("meta", log._store.segments, active.end_offset - 2)

    (*_, last) = cut.segments
    assert last.end_offset == active.end_offset - 2
    assert last.size_bytes < active.end_position
    folder = OsFolder(tmp_path / "copy")
    file = folder.create("copy.seg")
    file.write(0, [bytes(active.view()[: last.size_bytes])])
    checked_crc(file, cut, last)
    file.write(last.size_bytes, [bytes(active.view()[last.size_bytes :])])
    with pytest.raises(FrameDamaged, match="and should at offset"):
        checked_crc(file, cut, last)
    folder.close()


def test_a_cut_at_the_start_of_the_last_segment_has_its_header_alone(log):
    log._store.roll(SystemClock().now_ms())
    log.publish([Message(b"not flushed")])

    cut = cut_log("meta", log._store.segments, log._store.segments[-1].base_offset)

    assert cut.segments[-1].size_bytes == 64
    assert cut.segments[-1].last_header_crc == 0
    assert cut.end_offset == log._store.segments[-1].base_offset
