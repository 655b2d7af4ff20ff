"""Where a log is cut for a backup: behind a frame, at an offset that the caller chooses."""

from collections.abc import Sequence

from waterclock.log.recovery import header_crc
from waterclock.log.segment import HEADER_BYTES
from waterclock.model.backup import LogCut, SegmentCut
from waterclock.storage.segment_file import SegmentFile


def cut_log(path: str, segments: Sequence[SegmentFile], end: int) -> LogCut:
    """Return a log up to `end`, which is the end of a frame of its last segment, or its start."""
    assert segments[-1].base_offset <= end <= segments[-1].end_offset, f"{path} has no end {end}"
    return LogCut(
        path,
        segments[0].header.log_id,
        tuple(_cut_segment(segment, min(end, segment.end_offset)) for segment in segments),
    )


def _cut_segment(segment: SegmentFile, end: int) -> SegmentCut:
    base = segment.base_offset
    if end == segment.end_offset:
        size, crc = segment.end_position, segment.last_header_crc
    elif end == base:
        size, crc = HEADER_BYTES, 0
    else:
        position, header = segment.place_of(end - 1)
        assert header.end_offset == end, f"{segment!r} has no frame that ends at {end}"
        size, crc = position + header.size, header_crc(segment.view(), position)
    return SegmentCut(base, segment.header.generation, end, size, crc)
