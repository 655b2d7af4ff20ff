"""Whether a file is the segment that a cut tells of: every frame of it is read."""

from crc32c import crc32c

from waterclock.log.frame import Frame
from waterclock.log.recovery import scan
from waterclock.log.segment import HEADER_BYTES, decode_segment_header, log_tag, segment_name
from waterclock.model.backup import LogCut, SegmentCut
from waterclock.model.errors import FrameDamaged
from waterclock.model.ids import Offset
from waterclock.storage.folders.folder import File


def checked_crc(file: File, log: LogCut, segment: SegmentCut) -> int:
    """Return the CRC-32C of a file; raise Damaged unless it is this segment, whole to its end."""
    where = f"{log.path}/{segment_name(segment.base_offset)}"
    data = file.view(0, file.size())
    header = decode_segment_header(segment_name(segment.base_offset), data[:HEADER_BYTES])
    expected = (log.log_id, segment.base_offset, segment.generation)
    if (header.log_id, header.base_offset, header.generation) != expected:
        raise FrameDamaged(f"{where} is of another log, or another writing of it")
    base, tag = Offset(segment.base_offset), log_tag(log.log_id)
    found = scan(data, HEADER_BYTES, base, tag, _ignore)
    if found.damage:
        raise FrameDamaged(f"{where} is damaged at its source: {found.damage[0]}")
    ends = (found.end_offset, found.end_position, found.last_header_crc)
    if ends != (segment.end_offset, segment.size_bytes, segment.last_header_crc):
        raise FrameDamaged(
            f"{where} ends at offset {found.end_offset}, byte {found.end_position}, and should at "
            f"offset {segment.end_offset}, byte {segment.size_bytes}"
        )
    return crc32c(data)


def _ignore(frame: Frame, position: int) -> None:
    """Want nothing of a frame but that it is whole."""
