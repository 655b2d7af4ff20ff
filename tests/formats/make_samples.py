"""Writes one sample of every file of the format that this release writes.

Samples of a released version are never written again, least of all by a later release: whatever
changed would change both sides of the test. Run this once, for a version that has no folder yet:
`PYTHONPATH=src python -m tests.formats.make_samples`.
"""

import sys
from pathlib import Path

import pyarrow as pa

from waterclock.log.frame import (
    FLAG_EXPIRED,
    FLAG_SPARSE,
    FLAG_UNTRACKED,
    VERSION,
    Frame,
    FrameType,
    encode_header,
    header_of,
    read_frame,
)
from waterclock.log.recovery import header_crc
from waterclock.log.schema import (
    OFFSET_DELTA,
    SCHEDULED_OFFSET,
    encode,
    from_messages,
    schema_of,
)
from waterclock.log.segment import SegmentHeader, encode_segment_header, log_tag, segment_name
from waterclock.log.sidecars.derived import Derived
from waterclock.log.sidecars.sidecar import Coverage, SidecarKind, encode_sidecar, sidecar_name
from waterclock.model.ids import Millis, Offset
from waterclock.model.message import Message
from waterclock.model.sections import Compression
from waterclock.storage.folders.os_folder import OsFolder
from waterclock.storage.opening import id_seed
from waterclock.storage.recovery_point import save_recovery_point

LOG_ID = bytes.fromhex("57a7e12c10c0ffee57a7e12c10c0ffee")
SEGMENT = SegmentHeader(LOG_ID, Offset(1_000), 2, Millis(1_700_000_000_000))
INDEX_EVERY_BYTES = 1_000
ZEROS = 128
HOLDS_MESSAGES = {FrameType.DATA, FrameType.SCHEDULED, FrameType.FIRED}

PLAIN = [
    Message(b"first", key=b"k1", message_id=b"id-1"),
    Message(None, key=b"k2", message_id=bytes(range(16)), headers={}),
    Message(b"", message_id=b"id-3", headers={"trace": b"\x00\xff", "größe": b""}),
]
TIMED = [
    Message(b"past", key=b"k1", message_id=b"id-4", due_ms=Millis(1_699_999_999_000)),
    Message(b"no time", message_id=b"id-5"),
]
SCHEDULED = [
    Message(b"later %d" % n, message_id=b"id-%d" % n, due_ms=Millis(1_800_000_000_000 + n))
    for n in (6, 7, 8)
]


class Samples:
    """The frames of the sample segment, as they are added."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self._append_ms = SEGMENT.created_ms
        self._end = int(SEGMENT.base_offset)

    def add(
        self,
        kind: FrameType,
        rows: pa.RecordBatch | None = None,
        *,
        span: int = 1,
        due: tuple[int, int] = (0, 0),
        flags: int = 0,
        compression: Compression = "none",
    ) -> None:
        """Append a frame, a second after the one before; of a due time, 0 means on appending."""
        self._append_ms = Millis(self._append_ms + 1_000)
        now = self._append_ms if kind in HOLDS_MESSAGES else 0
        body = b"" if rows is None else bytes(encode(rows, compression))
        header = header_of(
            kind,
            body,
            base_offset=self._end,
            span=span,
            rows=0 if rows is None else len(rows),
            log_tag=log_tag(LOG_ID),
            append_ms=self._append_ms,
            epoch=5,
            flushed_end=max(0, self._end - 3),
            min_due_ms=due[0] or now,
            max_due_ms=due[1] or now,
            flags=flags,
        )
        self.frames.append(read_frame(encode_header(header) + body))
        self._end = header.end_offset


def sample_frames() -> list[Frame]:
    """Return a frame of every type, flag and compression."""
    samples = Samples()
    due = (1_800_000_000_006, 1_800_000_000_008)
    samples.add(FrameType.EPOCH)
    samples.add(FrameType.DATA, from_messages(PLAIN), span=3)
    samples.add(
        FrameType.DATA, from_messages(TIMED), span=2, due=(1_699_999_999_000, 0), compression="lz4"
    )
    samples.add(
        FrameType.DATA, from_messages(PLAIN), span=3, flags=FLAG_UNTRACKED,
        compression="zstd",
    )  # fmt: skip
    samples.add(FrameType.SCHEDULED, from_messages(SCHEDULED), span=3, due=due)
    fired = from_messages(SCHEDULED[:1]).append_column(SCHEDULED_OFFSET, int64s(1_009))
    samples.add(FrameType.FIRED, fired, due=(due[0], due[0]), compression="zstd")
    samples.add(FrameType.CANCEL, rows_of(FrameType.CANCEL, int64s(1_010, 17)))
    moved = rows_of(FrameType.RESCHEDULE, int64s(1_011, 18), int64s(1_900_000_000_000, 5))
    samples.add(FrameType.RESCHEDULE, moved)
    sparse = from_messages(PLAIN[:2]).append_column(OFFSET_DELTA, pa.array([1, 4], pa.int32()))
    samples.add(FrameType.DATA, sparse, span=6, flags=FLAG_SPARSE)
    samples.add(FrameType.NOOP, span=4)
    ids = pa.array([b"gone-1", b"gone-2"], pa.binary())
    times = int64s(1_699_999_000_000, 1_699_999_500_000)
    endings = pa.array([0, 2], pa.uint8())
    seen = rows_of(FrameType.SEEN, ids, int64s(1_021, 1_023), times, endings)
    samples.add(FrameType.SEEN, seen, span=0)
    samples.add(FrameType.DATA, from_messages(PLAIN[:1]))
    samples.add(FrameType.CANCEL, rows_of(FrameType.CANCEL, int64s(19)), flags=FLAG_EXPIRED)
    return samples.frames


def int64s(*values: int) -> pa.Int64Array:
    return pa.array(values, pa.int64())


def rows_of(kind: FrameType, *columns: pa.Array) -> pa.RecordBatch:
    return pa.record_batch(list(columns), schema=schema_of(kind))


def write_samples(folder: Path) -> None:
    """Write the segment, its side-cars and a recovery point into a new folder."""
    folder.mkdir()
    derived = Derived(
        SEGMENT.base_offset, every_bytes=INDEX_EVERY_BYTES, seed=id_seed(SEGMENT.log_id)
    )
    segment = bytearray(encode_segment_header(SEGMENT))
    frames = sample_frames()
    for frame in frames:
        derived.add(frame, len(segment))
        segment += frame.raw
    last = frames[-1]
    coverage = Coverage(
        SEGMENT.base_offset, SEGMENT.generation, last.header.end_offset, len(segment),
        header_crc(last.raw, 0),
    )  # fmt: skip
    bodies = {
        SidecarKind.INDEX: derived.index.encode(),
        SidecarKind.IDS: b"".join(derived.entries().encode()),
        SidecarKind.DUE: b"".join(derived.due.net().encode()),
    }
    (folder / segment_name(SEGMENT.base_offset)).write_bytes(segment + bytes(ZEROS))
    for kind, body in bodies.items():
        name = sidecar_name(SEGMENT.base_offset, kind)
        (folder / name).write_bytes(encode_sidecar(kind, coverage, body) + body)
    save_recovery_point(OsFolder(folder), last.header.end_offset)


if __name__ == "__main__":
    target = Path(__file__).parent / f"v{VERSION}"
    if target.exists():
        sys.exit(f"{target} is there already, and samples of a release do not change")
    write_samples(target)
