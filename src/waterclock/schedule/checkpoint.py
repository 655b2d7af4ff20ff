"""The checkpoint of a partition's timers: its bytes. Drawn in `docs/formats/timers.md`.

For every sealed segment it says which of the timers its `.due` side-car lists were still open at
the end of the last segment it covers. It only saves time: without it, the side-cars are folded from
the first to the last. To be believed, the log must have the very segments it tells of.
"""

import struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

Bools = npt.NDArray[np.bool_]

MAGIC = b"\xf3WCTIME\n"
VERSION = 2
HEADER_BYTES = 64
LOG_ID_BYTES = 16

# To change a byte: raise VERSION, draw the new layout, keep a sample of the old one, and let
# `decode_checkpoint` refuse it (the log has everything).
_FIELDS = struct.Struct("<8sH2xI16sQI16x")
_CRC = struct.Struct("<I")
assert _FIELDS.size + _CRC.size == HEADER_BYTES
_SEGMENT = struct.Struct("<QIIQQ")


class SavedSegment(NamedTuple):
    """A sealed segment, told so that it is recognised, and what was open of it."""

    base_offset: int
    generation: int
    last_header_crc: int
    """Checksum of the header of its last frame."""
    opened: Bools
    """Of the timers it opened, in the order of its side-car, those still open."""
    moved: Bools
    """Of the timers it moved, those still open and not moved again."""


class Checkpoint(NamedTuple):
    """What was open at the end of the last of these segments."""

    log_id: bytes
    segments: list[SavedSegment]


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Return the bytes of a checkpoint file."""
    assert len(checkpoint.log_id) == LOG_ID_BYTES
    parts = []
    for *place, opened, moved in checkpoint.segments:
        bits = np.packbits(opened).tobytes() + np.packbits(moved).tobytes()
        parts.append(_SEGMENT.pack(*place, len(opened), len(moved)) + bits)
    body = b"".join(parts)
    fields = _FIELDS.pack(MAGIC, VERSION, len(parts), checkpoint.log_id, len(body), crc32c(body))
    return fields + _CRC.pack(crc32c(fields)) + body


def decode_checkpoint(data: bytes | memoryview) -> Checkpoint | None:
    """Return what a checkpoint file holds, or None if it is not a whole one of this version."""
    view = memoryview(data)
    if len(view) < HEADER_BYTES:
        return None
    (expected,) = _CRC.unpack_from(view, _FIELDS.size)
    if crc32c(view[: _FIELDS.size]) != expected:
        return None
    magic, version, count, log_id, body_len, body_crc = _FIELDS.unpack_from(view)
    body = view[HEADER_BYTES:]
    if (magic, version) != (MAGIC, VERSION) or len(body) != body_len or crc32c(body) != body_crc:
        return None
    segments = []
    at = 0
    for _ in range(count):
        *place, opened, moved = _SEGMENT.unpack_from(body, at)
        at += _SEGMENT.size
        flags = []
        for rows in (opened, moved):
            bits = np.frombuffer(body, np.uint8, -(-rows // 8), at)
            flags.append(np.unpackbits(bits, count=rows).view(np.bool_))
            at += len(bits)
        segments.append(SavedSegment(*place, *flags))
    return Checkpoint(log_id, segments)
