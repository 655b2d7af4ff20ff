"""Bytes written by every version so far are read by today's code, row for row."""

import shutil
from pathlib import Path

import pytest

from tests.formats.make_samples import write_samples
from waterclock.log.frame import Frame
from waterclock.log.id_index.fingerprint import fingerprint
from waterclock.log.id_index.runs import IdEntries
from waterclock.log.recovery import Scan, scan
from waterclock.log.schema import decode, row_offsets
from waterclock.log.segment import HEADER_BYTES, SegmentHeader, decode_segment_header, log_tag
from waterclock.log.sidecars.due import NetDelta, open_scheduled
from waterclock.log.sidecars.sidecar import Coverage, Sidecar, SidecarKind, decode_sidecar
from waterclock.log.sidecars.sparse_index import SparseIndex
from waterclock.model.ids import Millis, Offset
from waterclock.model.sections import DedupConfig, LogConfig
from waterclock.storage.folders.os_folder import OsFolder
from waterclock.storage.opening import id_seed, open_partition
from waterclock.storage.recovery_point import load_recovery_point

V1 = Path(__file__).parent / "v1"
NAME = "00000000000000001000"
LOG_ID = bytes.fromhex("57a7e12c10c0ffee57a7e12c10c0ffee")
T = 1_700_000_000_000
LATER = 1_800_000_000_000

BINARY_ID = bytes(range(16))
Values = tuple[object, ...]

FIRST: Values = (b"id-1", b"k1", b"first", None, None)
TOMBSTONE: Values = (BINARY_ID, b"k2", None, [], None)
KEYLESS: Values = (b"id-3", None, b"", [("trace", b"\x00\xff"), ("größe", b"")], None)
SCHEDULED: list[Values] = [
    (b"id-%d" % n, None, b"later %d" % n, None, LATER + n) for n in (6, 7, 8)
]

# Type, flags, base offset, span, append time, least and greatest due time; then the rows.
FRAMES = [
    (("EPOCH", 0, 1_000, 1, T + 1_000, 0, 0), []),
    (("DATA", 0, 1_001, 3, T + 2_000, T + 2_000, T + 2_000), [FIRST, TOMBSTONE, KEYLESS]),
    (
        ("DATA", 0, 1_004, 2, T + 3_000, T - 1_000, T + 3_000),
        [(b"id-4", b"k1", b"past", None, T - 1_000), (b"id-5", None, b"no time", None, None)],
    ),
    (("DATA", 2, 1_006, 3, T + 4_000, T + 4_000, T + 4_000), [FIRST, TOMBSTONE, KEYLESS]),
    (("SCHEDULED", 0, 1_009, 3, T + 5_000, LATER + 6, LATER + 8), SCHEDULED),
    (("FIRED", 0, 1_012, 1, T + 6_000, LATER + 6, LATER + 6), [(*SCHEDULED[0], 1_009)]),
    (("CANCEL", 0, 1_013, 1, T + 7_000, 0, 0), [(1_010,), (17,)]),
    (("RESCHEDULE", 0, 1_014, 1, T + 8_000, 0, 0), [(1_011, 1_900_000_000_000), (18, 5)]),
    (("DATA", 1, 1_015, 6, T + 9_000, T + 9_000, T + 9_000), [(*FIRST, 1), (*TOMBSTONE, 4)]),
    (("NOOP", 0, 1_021, 4, T + 10_000, 0, 0), []),
    (
        ("SEEN", 0, 1_025, 0, T + 11_000, 0, 0),
        [(b"gone-1", 1_021, T - 1_000_000, 0), (b"gone-2", 1_023, T - 500_000, 2)],
    ),
    (("DATA", 0, 1_025, 1, T + 12_000, T + 12_000, T + 12_000), [FIRST]),
    (("CANCEL", 8, 1_026, 1, T + 13_000, 0, 0), [(19,)]),
]
END = 1_027

IDS = {
    1_001: b"id-1", 1_002: BINARY_ID, 1_003: b"id-3", 1_004: b"id-4", 1_005: b"id-5",
    1_009: b"id-6", 1_010: b"id-7", 1_011: b"id-8", 1_016: b"id-1", 1_019: BINARY_ID,
    1_021: b"gone-1", 1_023: b"gone-2", 1_025: b"id-1",
}  # fmt: skip
"""What dedup remembers, by offset."""
ALLOWED_REPEATS = {1_006: b"id-1", 1_007: BINARY_ID, 1_008: b"id-3"}


@pytest.fixture(params=["stored", "written today"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the samples; and once those that today's code writes, which must mean the same."""
    copy = tmp_path / "partition"
    if request.param == "stored":
        shutil.copytree(V1, copy)
    else:
        write_samples(copy)
    return copy


def facts(frame: Frame) -> Values:
    h = frame.header
    return h.type.name, h.flags, h.base_offset, h.span, h.append_ms, h.min_due_ms, h.max_due_ms


def rows(frame: Frame) -> list[Values]:
    return [tuple(row.values()) for row in decode(frame.header, frame.body).to_pylist()]


def scanned(folder: Path) -> tuple[list[Frame], Scan]:
    data = memoryview((folder / f"{NAME}.seg").read_bytes())
    frames: list[Frame] = []
    found = scan(
        data, HEADER_BYTES, Offset(1_000), log_tag(LOG_ID), lambda frame, _: frames.append(frame)
    )
    return frames, found


def sidecar(folder: Path, kind: SidecarKind) -> Sidecar:
    data = memoryview((folder / f"{NAME}{kind.suffix}").read_bytes())
    decoded = decode_sidecar(kind, data)
    assert decoded is not None
    return decoded


def test_the_folder_holds_every_kind_of_file():
    names = [f"{NAME}.due", f"{NAME}.ids", f"{NAME}.index", f"{NAME}.seg", "recovery-point"]

    assert sorted(file.name for file in V1.iterdir()) == names


def test_the_segment_says_whose_it_is(folder):
    data = (folder / f"{NAME}.seg").read_bytes()

    header = decode_segment_header(f"{NAME}.seg", data)

    assert header == SegmentHeader(LOG_ID, Offset(1_000), 2, Millis(T))


def test_frames_of_every_type_flag_and_compression_are_read_to_the_row(folder):
    frames, found = scanned(folder)

    assert [(facts(frame), rows(frame)) for frame in frames] == FRAMES
    assert {(frame.header.epoch, frame.header.unflushed) for frame in frames} == {(5, 3)}
    assert (found.end_offset, found.proven_end, found.damage) == (END, 1_023, [])
    sparse = frames[8]
    offsets = row_offsets(sparse.header, decode(sparse.header, sparse.body))
    assert offsets.tolist() == [1_016, 1_019]


def test_side_cars_cover_the_whole_segment(folder):
    _, found = scanned(folder)

    coverage = Coverage(Offset(1_000), 2, Offset(END), found.end_position, found.last_header_crc)
    assert {sidecar(folder, kind).coverage for kind in SidecarKind} == {coverage}


def test_the_index_tells_where_to_start(folder):
    index = SparseIndex.decode(sidecar(folder, SidecarKind.INDEX).body, 1_000)
    frames, _ = scanned(folder)

    assert index is not None
    assert index.position_of_offset(1_000) == HEADER_BYTES
    starts = [HEADER_BYTES]
    for frame in frames:
        starts.append(starts[-1] + frame.header.size)
    assert index.position_of_offset(END) in starts
    assert index.position_of_append_time(T) == HEADER_BYTES


def test_ids_are_found_under_the_fingerprints_of_today(folder):
    entries = IdEntries.decode(sidecar(folder, SidecarKind.IDS).body)

    assert entries is not None
    for found, ids in zip(entries, (IDS, ALLOWED_REPEATS), strict=True):
        assert found.tolist() == sorted(
            fingerprint(message_id, id_seed(LOG_ID)) << 24 | offset - 1_000
            for offset, message_id in ids.items()
        )


def test_scheduled_messages_are_opened_ended_and_moved(folder):
    net = NetDelta.decode(sidecar(folder, SidecarKind.DUE).body)

    assert net is not None
    opened, due = open_scheduled([net])
    assert (opened.tolist(), due.tolist()) == ([1_011], [1_900_000_000_000])
    assert (net.moved.tolist(), net.moved_due.tolist()) == ([18], [5])
    assert net.retired.tolist() == [17, 19]
    assert (net.cancelled.tolist(), net.expired.tolist()) == ([17, 1_010], [19, 1_023])


def test_the_recovery_point_is_read(folder):
    assert load_recovery_point(OsFolder(folder)) == END


@pytest.mark.parametrize("without", ["nothing", "side-cars"])
def test_the_whole_folder_opens_as_a_partition(folder, without):
    if without == "side-cars":
        for kind in SidecarKind:
            (folder / f"{NAME}{kind.suffix}").unlink()

    store = open_partition(
        OsFolder(folder), log=LogConfig(), dedup=DedupConfig(), now_ms=T, new_log_id=bytes(16)
    )

    store.check_appendable()
    assert (store.start, store.end, store.log_id) == (1_000, END, LOG_ID)
    assert [(facts(frame), rows(frame)) for frame in store.frames(1_000)] == FRAMES
    opened, due = store.open_scheduled()
    assert dict(zip(opened.tolist(), due.tolist(), strict=True)) == {1_011: 1_900_000_000_000}
    store.close()
