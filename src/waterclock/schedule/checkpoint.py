"""The checkpoint of a partition's timers: its bytes. Drawn in `docs/formats/timers.md`.

A checkpoint only saves time: one that is missing, damaged, of another version or of another log is
thrown away, and the open promises are derived from the log again. One that is believed is followed
by replaying the log from `end_offset`. To be believed, the log must hold a frame that ends there
with `last_header_crc`: a log that was cut off and went on differently gives itself away.
"""

import struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from waterclock.model.ids import Offset

Int64s = npt.NDArray[np.int64]

MAGIC = b"\xf3WCTIME\n"
VERSION = 1
HEADER_BYTES = 64
LOG_ID_BYTES = 16

# To change a byte: raise VERSION, draw the new layout, keep a sample of the old one, and let
# `decode_checkpoint` refuse it (the log has everything).
_FIELDS = struct.Struct("<8sH2xI16sQQI8x")
_CRC = struct.Struct("<I")
assert _FIELDS.size + _CRC.size == HEADER_BYTES


class Checkpoint(NamedTuple):
    """The open promises after the frames before `end_offset`."""

    log_id: bytes
    end_offset: Offset
    last_header_crc: int
    """Checksum of the header of the last frame covered; 0 if there is none."""
    offsets: Int64s
    """Ascending."""
    due_ms: Int64s


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Return the bytes of a checkpoint file."""
    assert len(checkpoint.log_id) == LOG_ID_BYTES
    columns = (checkpoint.offsets, checkpoint.due_ms)
    body = b"".join(np.ascontiguousarray(column, "<i8").tobytes() for column in columns)
    fields = _FIELDS.pack(
        MAGIC,
        VERSION,
        checkpoint.last_header_crc,
        checkpoint.log_id,
        checkpoint.end_offset,
        len(checkpoint.offsets),
        crc32c(body),
    )
    return fields + _CRC.pack(crc32c(fields)) + body


def decode_checkpoint(data: bytes | memoryview) -> Checkpoint | None:
    """Return what a checkpoint file holds, or None if it is not a whole one of this version."""
    view = memoryview(data)
    if len(view) < HEADER_BYTES:
        return None
    (expected,) = _CRC.unpack_from(view, _FIELDS.size)
    if crc32c(view[: _FIELDS.size]) != expected:
        return None
    magic, version, last_crc, log_id, end, count, body_crc = _FIELDS.unpack_from(view)
    body = view[HEADER_BYTES:]
    if (magic, version) != (MAGIC, VERSION) or len(body) != 16 * count or crc32c(body) != body_crc:
        return None
    values = np.frombuffer(body, "<i8").astype(np.int64)
    return Checkpoint(log_id, Offset(end), last_crc, values[:count], values[count:])
