"""Frames of another replica, checked before they are taken into this log.

Copies of a log are the same frames, byte for byte, but for `unflushed`: it testifies to the disk of
the node that wrote the frame, so each replica says it anew of its own (and the header's checksum
with it). Which frames share a segment is each replica's own as well.

A leader that is right sends what follows on the log's end, under its own epoch or an older one. All
else is refused as a whole, before a byte is written: the replica asks again, or asks another.
"""

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from waterclock.log.frame import Frame, FrameHeader, FrameType, flushed_up_to, read_frame
from waterclock.log.schema import decode
from waterclock.model.errors import BadInput, ForeignFile, FrameDamaged
from waterclock.model.ids import Epoch, Millis, Offset


class LogEnd(NamedTuple):
    """Where a log ends: what its next frame must follow on."""

    offset: Offset
    epoch: Epoch
    append_ms: Millis
    log_tag: int


class ForeignFrame(NamedTuple):
    """A frame of another replica, and what it holds: both lie in the bytes that came."""

    frame: Frame
    rows: pa.RecordBatch


def read_foreign(
    data: bytes | memoryview, end: LogEnd, *, leader_epoch: Epoch
) -> list[list[ForeignFrame]]:
    """Return the frames in `data`, each with the `seen` frames behind it, or raise BadInput."""
    groups: list[list[ForeignFrame]] = []
    for foreign in _frames(data):
        header = foreign.frame.header
        problem = _problem(header, end, leader_epoch)
        if problem:
            raise BadInput(f"frame at offset {header.base_offset}: {problem}")
        if header.type is not FrameType.SEEN:
            groups.append([foreign])
        elif groups:
            groups[-1].append(foreign)
        else:
            # It spans no offset, so nothing would tell it from one that is here already.
            raise BadInput(f"a `seen` frame at {header.base_offset} without the frame before it")
        end = LogEnd(header.end_offset, header.epoch, header.append_ms, end.log_tag)
    return groups


def with_flushed_end(header: FrameHeader, flushed_end: int) -> FrameHeader:
    """Return the header as this replica writes it, whose disk has everything below an offset."""
    return header._replace(unflushed=flushed_up_to(header.base_offset, flushed_end))


def _frames(data: bytes | memoryview) -> Iterator[ForeignFrame]:
    position = 0
    while position < len(data):
        try:
            frame = read_frame(data, position)
            rows = decode(frame.header, frame.body)  # as many as its header says
        except (FrameDamaged, ForeignFile) as error:
            raise BadInput(f"frames of another replica: {error}") from error
        yield ForeignFrame(frame, rows)
        position += frame.header.size


def _problem(header: FrameHeader, end: LogEnd, leader_epoch: Epoch) -> str | None:
    """Say why a frame cannot be the next one; None if it can."""
    if header.log_tag != end.log_tag:
        return "it belongs to another log"
    if header.base_offset != end.offset:
        return f"the log ends at {end.offset}"
    if header.epoch > leader_epoch:
        return f"epoch {header.epoch} is after the leader's, {leader_epoch}"
    if header.epoch < end.epoch:
        return f"epoch {header.epoch} is before the log's, {end.epoch}"
    if (header.epoch > end.epoch) != (header.type is FrameType.EPOCH):
        return f"an epoch begins with its own frame, and this is a {header.type.name}"
    if header.append_ms < end.append_ms:
        return f"appended at {header.append_ms}, before the log's last at {end.append_ms}"
    return None
