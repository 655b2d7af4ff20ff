"""Which dead letters of a partition are done, as a record of the node's metadata.

Drawn in `docs/formats/progress.md`. The record holds for the log it was made for and no other: a
dead letter topic can be deleted and made again, and a log can lose its tail in a power cut. A
record that outlived its log would hide the dead letters that come to lie at those offsets.

Changing a byte here: raise VERSION, keep reading the old one.
"""

import struct

from crc32c import crc32c

from waterclock.delivery.progress import below, decode_tracker, empty_tracker
from waterclock.model.errors import BadInput
from waterclock.model.tracker import OffsetTracker
from waterclock.node.partition.host import PartitionHost

MAGIC = b"\xf3WCm"
VERSION = 1
LOG_ID_BYTES = 16

_HEAD = struct.Struct("<4sBI")


def progress_key(host: PartitionHost) -> str:
    """Return the name of the record of what is done in a partition."""
    return f"progress/{host.topic}/__redrive/{host.partition}"


def encode_progress(log_id: bytes, done: OffsetTracker) -> bytes:
    body = log_id + done.encode()
    return _HEAD.pack(MAGIC, VERSION, crc32c(body)) + body


def decode_progress(data: bytes, *, log_id: bytes, log_end: int | None) -> OffsetTracker:
    """Return what is done in the log that has this id and end; raises BadInput.

    Say where the log ends if it may have lost its tail: others will have those offsets.
    """
    if len(data) < _HEAD.size + LOG_ID_BYTES:
        raise BadInput("the progress of dead letters is cut short")
    magic, version, crc = _HEAD.unpack_from(data)
    if magic != MAGIC or version != VERSION:
        raise BadInput("not the progress of dead letters, or of a version this release cannot read")
    body = data[_HEAD.size :]
    if crc32c(body) != crc:
        raise BadInput("the progress of dead letters fails its checksum")
    if body[:LOG_ID_BYTES] != log_id:
        return empty_tracker(0)
    done = decode_tracker(body[LOG_ID_BYTES:])
    return done if log_end is None else below(log_end, done)
