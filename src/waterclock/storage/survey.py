"""A survey of a log: what is whole, what is torn, what has rotted, and not a byte changed.

The verdict is that of an opening, by the same code: the log is opened on an overlay, which keeps to
itself what the opening mends. A survey comes in two depths. `look` believes side-cars, as openings
do, so it takes no time whatever the size of the log. `check` reads every frame besides, its
checksums and its rows.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.log.frame import Frame, FrameType, decode_header, read_frame
from waterclock.log.recovery import Damage, scan
from waterclock.log.schema import decode
from waterclock.log.segment import HEADER_BYTES, SUFFIX
from waterclock.log.sidecars.sidecar import SidecarKind
from waterclock.model.errors import ForeignFile, FrameDamaged, OffsetOutOfRange
from waterclock.model.ids import Offset
from waterclock.model.sections import DedupConfig, LogConfig
from waterclock.storage.folders.overlay import OverlayFolder
from waterclock.storage.folders.read_only_folder import ReadOnlyFolder
from waterclock.storage.opening import open_partition
from waterclock.storage.partition_store import PartitionStore
from waterclock.storage.recovery_point import NAME as RECOVERY_POINT
from waterclock.storage.segment_file import SegmentFile

Int64s = npt.NDArray[np.int64]

Advance = Callable[[int], None]
"""Told of every byte twice: when it was read from the disk, and when it was checked."""

_NO_LOG_ID = bytes(16)


class Torn(NamedTuple):
    """Where a process died while it was writing. Nobody was told that what follows is safe."""

    offset: Offset
    position: int


@dataclass(slots=True)
class Counts:
    """Frames by their type, and the rows and bytes of them."""

    frames: Counter[FrameType] = field(default_factory=Counter)
    rows: Counter[FrameType] = field(default_factory=Counter)
    bytes: Counter[FrameType] = field(default_factory=Counter)

    def add(self, frame: Frame) -> None:
        header = frame.header
        self.frames[header.type] += 1
        self.rows[header.type] += header.rows
        self.bytes[header.type] += header.size


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found in a folder; it lives as long as the folder is open."""

    segments: list[SegmentFile]
    damage: list[tuple[SegmentFile, Damage]]
    """Stretches that cannot be read; after a mere look, only those that an opening notices."""
    torn: Torn | None
    scheduled: tuple[Int64s, Int64s]
    """Offsets and due times of those neither fired nor cancelled."""
    counts: Counts = field(default_factory=Counts)
    """Nothing, after a mere look."""

    @property
    def start(self) -> Offset:
        """The first offset still in the log."""
        return self.segments[0].base_offset

    @property
    def end(self) -> Offset:
        """One past the last offset."""
        return self.segments[-1].end_offset

    def walk(self, offset: int) -> Iterator[Frame | Damage]:
        """Yield what there is from the frame that holds `offset` on: frames, and damage."""
        if not self.start <= offset <= self.end:
            raise OffsetOutOfRange(offset, start=self.start, end=self.end)
        for segment in self.segments:
            if segment.end_offset > offset:
                yield from _walk(segment, offset)


def look(folder: ReadOnlyFolder) -> Survey:
    """Survey a folder as far as it takes no time. You must close the folder, after the survey."""
    store = _open(folder)
    segments = store.segments
    damage = [(_segment_of(segments, found), found) for found in store.faults]
    return Survey(segments, damage, _torn(folder, segments[-1]), store.open_scheduled())


def check(folder: ReadOnlyFolder, *, advance: Advance) -> Survey:
    """Survey a folder and read all of it. You must close the folder, after the survey."""
    survey = look(folder)
    reading = _Reading(advance)
    damage: list[tuple[SegmentFile, Damage]] = []
    for segment in survey.segments:
        known = [found for at, found in survey.damage if at is segment]
        folder.read_through(segment.file.name, advance)
        damage += [(segment, found) for found in _merged(reading.read(segment), known)]
    return Survey(survey.segments, damage, survey.torn, survey.scheduled, reading.counts)


def _open(folder: ReadOnlyFolder) -> PartitionStore:
    names = folder.names()
    # An opening would begin a log here.
    if not any(name.endswith(SUFFIX) for name in names) and RECOVERY_POINT not in names:
        raise ForeignFile(f"{folder.path} holds no log: name a folder with {SUFFIX} files in it")
    return open_partition(
        OverlayFolder(folder),
        log=LogConfig(),
        # As whoever wrote the log: an opening that wants ids believes no side-cars without them.
        dedup=DedupConfig(enabled=any(name.endswith(SidecarKind.IDS.suffix) for name in names)),
        now_ms=0,
        new_log_id=_NO_LOG_ID,
    )


def _torn(folder: ReadOnlyFolder, last: SegmentFile) -> Torn | None:
    """Return where the opening cut the last segment, if it did."""
    if folder.open(last.file.name).size() == last.file.size():
        return None
    return Torn(last.end_offset, last.file.size())


def _segment_of(segments: list[SegmentFile], damage: Damage) -> SegmentFile:
    # By its end: behind the last message of a segment, its start is the next segment's. And behind
    # the end of the last segment there may be damage, too.
    number = bisect_right(segments, damage.end - 1, key=lambda s: s.base_offset)
    return segments[max(number - 1, 0)]


def _merged(read: list[Damage], known: list[Damage]) -> list[Damage]:
    """Add, to what was found by reading a segment, what only the opening knows: missing ends."""
    new = [
        damage
        for damage in known
        if not any(d.position <= damage.position < d.end_position for d in read)
    ]
    return sorted([*read, *new], key=lambda d: d.position)


class _Reading:
    """What reading every frame finds."""

    def __init__(self, advance: Advance) -> None:
        self.counts = Counts()
        self._advance = advance
        self._unreadable: list[Damage] = []

    def read(self, segment: SegmentFile) -> list[Damage]:
        """Read a segment from its first frame to its last; return what is damaged."""
        self._unreadable = []
        base, tag = segment.base_offset, segment.log_tag
        found = scan(segment.view(), HEADER_BYTES, base, tag, self._add)
        return found.damage + self._unreadable

    def _add(self, frame: Frame, position: int) -> None:
        """Take in a frame whose checksums hold; rows that cannot be read are damage, too."""
        header = frame.header
        self._advance(header.size)
        try:
            decode(header, frame.body).validate(full=True)
        except (FrameDamaged, pa.ArrowInvalid) as error:
            end = position + header.size
            self._unreadable.append(
                Damage(position, end, header.base_offset, header.end_offset, str(error))
            )
        else:
            self.counts.add(frame)


def _walk(segment: SegmentFile, offset: int) -> Iterator[Frame | Damage]:
    data = segment.view()
    position, at = _start(segment, data, offset)
    while position < len(data):
        found = _at(data, position, at, segment.log_tag)
        if isinstance(found, Frame):
            position, at = position + found.header.size, found.header.end_offset
        else:
            position, at = found.end_position, found.end
        if at > offset:
            yield found


def _start(segment: SegmentFile, data: memoryview, offset: int) -> tuple[int, Offset]:
    """Return a position, and its offset, from which a walk meets `offset`."""
    position = segment.index.position_of_offset(offset)
    if position is not None:
        with suppress(FrameDamaged):
            return position, decode_header(data, position).base_offset
    return HEADER_BYTES, segment.base_offset


def _at(data: memoryview, position: int, offset: Offset, tag: int) -> Frame | Damage:
    """Return the frame that lies at a position, or the damage that begins there."""
    with suppress(FrameDamaged):
        frame = read_frame(data, position)
        if (frame.header.base_offset, frame.header.log_tag) == (offset, tag):
            return frame
    damage = scan(data, position, offset, tag, _ignore).damage
    if damage:
        return damage[0]
    reason = f"zeros at byte {position}, where a frame should be"
    return Damage(position, len(data), offset, Offset(offset + 1), reason)


def _ignore(frame: Frame, position: int) -> None:
    """Want nothing of a frame."""
