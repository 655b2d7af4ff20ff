"""Frames as readers and checkers of a simulation want them: rows, and a digest of every copy."""

from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from tests.cluster.history.events import Row, RowKind
from waterclock.log.frame import HEADER_BYTES, Frame, FrameHeader, FrameType
from waterclock.log.schema import decode, row_offsets

_KINDS: dict[FrameType, RowKind] = {
    FrameType.DATA: "data",
    FrameType.SCHEDULED: "scheduled",
    FrameType.FIRED: "fired",
}


class Frozen(NamedTuple):
    """One frame, read and let go of."""

    base: int
    end: int
    digest: str
    """Of all that must be the same in every copy."""
    rows: tuple[Row, ...]


def frozen(frame: Frame) -> Frozen:
    """Return what a frame says. Those that are the same are read once."""
    return _frozen(frame.header._replace(unflushed=0), bytes(frame.raw[HEADER_BYTES:]))


@lru_cache(maxsize=20_000)
def _frozen(header: FrameHeader, body: bytes) -> Frozen:
    digest = blake2b(repr(tuple(header)).encode() + body, digest_size=8).hexdigest()
    kind = _KINDS.get(header.type)
    rows: tuple[Row, ...] = ()
    if kind is not None:
        batch = decode(header, memoryview(body))
        ids = batch.column("message_id").to_pylist()
        rows = tuple(
            Row(offset, kind, each.decode())
            for offset, each in zip(row_offsets(header, batch).tolist(), ids, strict=True)
        )
    return Frozen(header.base_offset, header.end_offset, digest, rows)
