"""A segment: its file's name and the 64 bytes it opens with. Drawn in `docs/formats/segment.md`.

The header ties the file to one partition log (`log_id`), to its place in it (`base_offset`, which
the name repeats) and to one writing of it (`generation`, raised when compaction rewrites it), so a
copied, renamed or half-replaced file is recognised before a frame of it is believed.
"""

import struct
from typing import NamedTuple

from crc32c import crc32c

from waterclock.log.frame import OFFSET_MAX
from waterclock.model.errors import ForeignFile
from waterclock.model.ids import Millis, Offset

MAGIC = b"\xf3WCSEG\r\n"
"""Like PNG's: the high bit and the line ends show a file mangled by a text transfer."""
VERSION = 1
HEADER_BYTES = 64
SUFFIX = ".seg"

_FIELDS = struct.Struct("<8sHHIQq16s12x")
_CRC = struct.Struct("<I")
assert _FIELDS.size + _CRC.size == HEADER_BYTES


class SegmentHeader(NamedTuple):
    """Which log, which place, which writing."""

    log_id: bytes
    base_offset: Offset
    generation: int
    created_ms: Millis


def log_tag(log_id: bytes) -> int:
    """Return the 32 bits of a log's identity that each of its frames carries."""
    return crc32c(log_id)


def segment_name(base_offset: int) -> str:
    """Return the file name of the segment that starts at `base_offset`."""
    return f"{base_offset:020d}{SUFFIX}"


def parse_segment_name(name: str) -> Offset:
    """Return the base offset in a segment's file name, or raise ForeignFile."""
    stem = name.removesuffix(SUFFIX)
    is_number = len(stem) == 20 and stem.isascii() and stem.isdigit()
    if name == stem or not is_number or int(stem) > OFFSET_MAX:
        raise ForeignFile(
            f"{name} is not named like a segment (20 digits, then {SUFFIX}): move it elsewhere"
        )
    return Offset(int(stem))


def encode_segment_header(header: SegmentHeader) -> bytes:
    """Return the 64 bytes a segment file opens with."""
    fields = _FIELDS.pack(
        MAGIC,
        VERSION,
        0,
        header.generation,
        header.base_offset,
        header.created_ms,
        header.log_id,
    )
    return fields + _CRC.pack(crc32c(fields))


def decode_segment_header(name: str, data: bytes | memoryview) -> SegmentHeader:
    """Return the header of segment file `name`, or raise ForeignFile saying why it is not ours."""
    if len(data) < HEADER_BYTES:
        raise ForeignFile(f"{name} is too short to be a segment ({len(data)} bytes)")
    magic, version, _, generation, base_offset, created_ms, log_id = _FIELDS.unpack_from(data)
    if magic != MAGIC:
        raise ForeignFile(f"{name} is not a Waterclock segment: move it elsewhere")
    (expected,) = _CRC.unpack_from(data, _FIELDS.size)
    if crc32c(data[: _FIELDS.size]) != expected:
        raise ForeignFile(f"{name}: the segment header fails its checksum")
    if version != VERSION:
        raise ForeignFile(
            f"{name} has segment format version {version}; this release reads {VERSION}: "
            "use the release that wrote it, or a newer one"
        )
    if base_offset != parse_segment_name(name):
        raise ForeignFile(f"{name} holds the segment of offset {base_offset}: it was renamed")
    return SegmentHeader(log_id, Offset(base_offset), generation, Millis(created_ms))
