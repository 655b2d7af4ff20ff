"""A side-car: a file beside a segment with something derived from it.

Drawn in `docs/formats/sidecar.md`.
Side-cars only save time. One that is missing, damaged, of another version, or made from another
writing of the segment is thrown away and built again from the segment, with the same result. To
know, each states which writing of the segment it saw (`generation`), how far it read (`end_offset`,
`end_position`), and the checksum of the last frame header it saw: a side-car older than a rewrite,
or newer than what survived a crash, gives itself away.
"""

import struct
from enum import IntEnum
from typing import NamedTuple

from crc32c import crc32c

from waterclock.model.ids import Offset

MAGIC = b"\xf3WCSIDE\n"
VERSION = 1
HEADER_BYTES = 64

_FIELDS = struct.Struct("<8sHHIQQQIIQ4x")
_CRC = struct.Struct("<I")
assert _FIELDS.size + _CRC.size == HEADER_BYTES


class SidecarKind(IntEnum):
    """What is derived; also the file's suffix. The numbers are on disk: never reuse one."""

    INDEX = 4
    """1 had two columns more, of due times."""
    IDS = 2
    DUE = 3

    @property
    def suffix(self) -> str:
        """The file's ending, which replaces `.seg`."""
        return f".{self.name.lower()}"


class Coverage(NamedTuple):
    """Which part of which writing of a segment something was derived from."""

    base_offset: Offset
    generation: int
    end_offset: Offset
    end_position: int
    last_header_crc: int
    """Checksum of the last frame header covered; 0 if there is none."""


class Sidecar(NamedTuple):
    """A decoded side-car."""

    coverage: Coverage
    body: memoryview


def sidecar_name(base_offset: int, kind: SidecarKind) -> str:
    """Return the file name of a segment's side-car."""
    return f"{base_offset:020d}{kind.suffix}"


def encode_sidecar(
    kind: SidecarKind, coverage: Coverage, *body: bytes | bytearray | memoryview
) -> bytes:
    """Return the header to write before the parts of a body."""
    body_crc = 0
    for part in body:
        body_crc = crc32c(part, body_crc)
    fields = _FIELDS.pack(
        MAGIC,
        VERSION,
        kind,
        coverage.generation,
        coverage.base_offset,
        coverage.end_offset,
        coverage.end_position,
        coverage.last_header_crc,
        body_crc,
        sum(map(len, body)),
    )
    return fields + _CRC.pack(crc32c(fields))


def decode_sidecar(kind: SidecarKind, data: memoryview) -> Sidecar | None:
    """Return what a side-car holds, or None if it is not a whole side-car of this kind."""
    if len(data) < HEADER_BYTES:
        return None
    magic, version, found_kind, generation, base, end, position, last_crc, body_crc, body_len = (
        _FIELDS.unpack_from(data)
    )
    (expected,) = _CRC.unpack_from(data, _FIELDS.size)
    if crc32c(data[: _FIELDS.size]) != expected:
        return None
    if (magic, version, found_kind) != (MAGIC, VERSION, kind):
        return None
    body = data[HEADER_BYTES : HEADER_BYTES + body_len]
    if len(body) != body_len or crc32c(body) != body_crc:
        return None
    coverage = Coverage(Offset(base), generation, Offset(end), position, last_crc)
    return Sidecar(coverage, body)
