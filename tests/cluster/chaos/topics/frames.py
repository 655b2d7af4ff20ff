"""Frames of a partition as a node sends them over HTTP: their rows, and what must be the same in
every copy."""

import hashlib
from typing import NamedTuple

import pyarrow as pa

from tests.cluster.history.events import Row, RowKind
from waterclock.log.frame import FrameHeader, FrameType, check_body, decode_header
from waterclock.log.schema import row_offsets, schema_of

KINDS: dict[FrameType, RowKind] = {
    FrameType.DATA: "data",
    FrameType.SCHEDULED: "scheduled",
    FrameType.FIRED: "fired",
}


class FramesRead(NamedTuple):
    """What was in an answer."""

    rows: tuple[Row, ...]
    digests: tuple[tuple[int, str], ...]
    """By offset."""
    written_ms: dict[int, int]
    """When each row was written, by offset and the clock of the node that wrote it; that of the
    log if it was set back since."""


def read_frames(data: bytes) -> FramesRead:
    """Decode whole frames, back to back."""
    rows: list[Row] = []
    digests: list[tuple[int, str]] = []
    written_ms: dict[int, int] = {}
    position = 0
    while position < len(data):
        header = decode_header(data, position)
        body = check_body(header, memoryview(data), position)
        digests.append((header.base_offset, _digest(header)))
        if header.type in KINDS:
            schema = schema_of(header.type, header.flags)
            batch = pa.ipc.read_record_batch(pa.py_buffer(body), schema)
            ids = batch.column("message_id").to_pylist()
            offsets = row_offsets(header, batch).tolist()
            kind = KINDS[header.type]
            written_ms |= dict.fromkeys(offsets, header.append_ms)
            rows += [
                Row(offset, kind, message.decode())
                for offset, message in zip(offsets, ids, strict=True)
            ]
        position += header.size
    return FramesRead(tuple(rows), tuple(digests), written_ms)


def _digest(header: FrameHeader) -> str:
    """Digest all but what each replica says for itself: how much of it was not flushed yet."""
    return hashlib.sha256(repr(header._replace(unflushed=0)).encode()).hexdigest()[:16]
