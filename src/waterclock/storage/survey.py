"""A survey of a log: what is whole, what is torn, what has rotted, and not a byte changed.

An opening mends what it may mend. A survey comes to the same verdict, by the same rules (see
`opening` and `waterclock.log.recovery`), and leaves everything as it is. It comes in two depths:
`look` trusts side-cars for what they cover, so it takes milliseconds whatever the size of the log;
`check` reads every frame, its checksums and its rows.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.log.derived import Derived
from waterclock.log.due import NetDelta, open_promises
from waterclock.log.frame import Frame, FrameType, decode_header, read_frame
from waterclock.log.index import SparseIndex
from waterclock.log.recovery import Damage, Scan, scan
from waterclock.log.schema import decode
from waterclock.log.segment import (
    HEADER_BYTES,
    SUFFIX,
    SegmentHeader,
    decode_segment_header,
    log_tag,
    parse_segment_name,
    segment_name,
)
from waterclock.model.errors import ForeignFile, FrameDamaged, OffsetOutOfRange, PartitionFaulty
from waterclock.model.ids import Offset
from waterclock.model.units import KIB
from waterclock.storage.checkpoint import NAME as RECOVERY_POINT
from waterclock.storage.checkpoint import load_recovery_point
from waterclock.storage.disk import File, Folder
from waterclock.storage.sidecar_files import Sidecars, load_sidecars

Int64s = npt.NDArray[np.int64]

Advance = Callable[[int], None]
"""Told how many bytes more were read."""

_INDEX_EVERY_BYTES = 32 * KIB
_SIDECAR = re.compile(r"\d{20}\.(index|ids|due)")


@dataclass(slots=True)
class Counts:
    """Frames by their type; `rows` and `bytes` of them."""

    frames: Counter[FrameType] = field(default_factory=Counter)
    rows: Counter[FrameType] = field(default_factory=Counter)
    bytes: Counter[FrameType] = field(default_factory=Counter)

    def add(self, frame: Frame) -> None:
        """Count one frame."""
        header = frame.header
        self.frames[header.type] += 1
        self.rows[header.type] += header.rows
        self.bytes[header.type] += header.size

    def update(self, other: "Counts") -> None:
        """Add what another has counted."""
        self.frames.update(other.frames)
        self.rows.update(other.rows)
        self.bytes.update(other.bytes)


@dataclass(slots=True)
class SurveyedSegment:
    """One segment as it was found."""

    file: File
    header: SegmentHeader
    index: SparseIndex
    due: NetDelta
    end_offset: Offset
    end_position: int
    covered: Offset
    """Side-cars vouch for everything below."""
    damage: list[Damage]
    torn: Damage | None = None
    """What was being written when a process died. Nobody was told it is safe; an opening cuts it
    off."""
    counts: Counts = field(default_factory=Counts)

    @property
    def base_offset(self) -> Offset:
        """The first offset."""
        return self.header.base_offset

    def walk(self, offset: int) -> Iterator[Frame | Damage]:
        """Yield what there is from the frame that holds `offset`: frames, and damage around it."""
        data = self.file.view(0, self.end_position)
        tag = log_tag(self.header.log_id)
        position, at = self._start(data, offset)
        while position < self.end_position:
            found = _at(data, position, at, tag)
            if isinstance(found, Frame):
                position, at = position + found.header.size, found.header.end_offset
            else:
                position, at = found.end_position, found.end
            if at > offset:
                yield found

    def _start(self, data: memoryview, offset: int) -> tuple[int, Offset]:
        """Return a position, and its offset, from which a walk meets `offset`."""
        position = self.index.position_of_offset(offset)
        if position is not None:
            with suppress(FrameDamaged):
                return position, decode_header(data, position).base_offset
        return HEADER_BYTES, self.base_offset


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found in a folder. Views of its files live as long as the folder is open."""

    segments: list[SurveyedSegment]
    is_deep: bool
    """Every frame was read; otherwise damage below `covered` is not known."""

    @property
    def start(self) -> Offset:
        """The first offset still in the log."""
        return self.segments[0].base_offset

    @property
    def end(self) -> Offset:
        """One past the last offset."""
        return self.segments[-1].end_offset

    @property
    def damage(self) -> list[tuple[str, Damage]]:
        """Each stretch that cannot be read, with the file it is in."""
        return [(s.file.name, damage) for s in self.segments for damage in s.damage]

    @property
    def torn(self) -> Damage | None:
        """What an opening will cut off."""
        return self.segments[-1].torn

    def counts(self) -> Counts:
        """Add up the frames that were read."""
        total = Counts()
        for segment in self.segments:
            total.update(segment.counts)
        return total

    def open_promises(self) -> tuple[Int64s, Int64s]:
        """Return (offsets, due times) of the promises neither fired nor cancelled."""
        return open_promises(segment.due for segment in self.segments)

    def walk(self, offset: int) -> Iterator[Frame | Damage]:
        """Yield what there is from the frame that holds `offset` to the end of the log."""
        if not self.start <= offset <= self.end:
            raise OffsetOutOfRange(offset, start=self.start, end=self.end)
        for segment in self.segments:
            if segment.end_offset > offset:
                yield from segment.walk(offset)


def look(folder: Folder) -> Survey:
    """Survey a folder as far as it takes no time. You must close the folder, after the survey."""
    return _Surveyor(folder, advance=None).run()


def check(folder: Folder, *, advance: Advance) -> Survey:
    """Survey a folder and read all of it. You must close the folder, after the survey."""
    return _Surveyor(folder, advance=advance).run()


class _Surveyor:
    """The steps of one survey."""

    def __init__(self, folder: Folder, *, advance: Advance | None) -> None:
        self.folder = folder
        self.advance = advance

    def run(self) -> Survey:
        self.folder.lock()
        bases = self._bases()
        segments = [self._sealed(*pair) for pair in pairwise(bases)]
        segments.append(self._last(bases[-1]))
        if len({segment.header.log_id for segment in segments}) > 1:
            raise ForeignFile("segments of different logs are mixed in this folder: separate them")
        return Survey(segments, is_deep=self.advance is not None)

    def _bases(self) -> list[Offset]:
        names = self.folder.names()
        bases = sorted(parse_segment_name(name) for name in names if name.endswith(SUFFIX))
        if bases:
            return bases
        if any(_SIDECAR.fullmatch(name) or name == RECOVERY_POINT for name in names):
            raise PartitionFaulty("the segments of this log are gone: restore them from a copy")
        raise ForeignFile("there is no log in this folder: name one that holds .seg files")

    def _sealed(self, base: Offset, following: Offset) -> SurveyedSegment:
        """Survey a segment that a later one follows: it was durable to its end."""
        segment, found = self._segment(base)
        if segment.end_offset > following:
            raise ForeignFile(f"{segment.file.name} reaches into the segment at {following}")
        segment.damage += found.damage
        if segment.end_offset < following:
            _stretch(segment, following, "the end of the segment is missing")
        segment.end_offset = following
        return segment

    def _last(self, base: Offset) -> SurveyedSegment:
        """Survey the last segment, whose end may be torn."""
        segment, found = self._segment(base)
        promised = load_recovery_point(self.folder)
        proven = max(promised or 0, segment.covered, found.proven_end)
        # A promise that has rotted itself may have promised everything.
        rotten = found.damage if promised is None else found.rotten(proven)
        if rotten:
            segment.damage += found.damage
            return segment
        torn = found.torn_at(proven)
        if torn is not None:
            segment, _ = self._segment(base, torn.position)
            segment.torn = torn
        if proven > segment.end_offset:
            reason = f"offsets up to {proven} were flushed, but the log ends here"
            _stretch(segment, Offset(proven), reason)
        return segment

    def _segment(self, base: Offset, end: int | None = None) -> tuple[SurveyedSegment, Scan]:
        """Read a segment, all of it or what is behind its side-cars, up to the byte `end`."""
        name = segment_name(base)
        file = self.folder.open(name)
        size = file.size() if end is None else end
        header = decode_segment_header(name, file.view(0, min(file.size(), HEADER_BYTES)))
        sidecars = self._sidecars(file, header)
        reading = _Reading(base, self.advance)
        position, offset = HEADER_BYTES, base
        if sidecars is not None and self.advance is None:
            reading.derived.resume(sidecars.index, sidecars.due, None)
            position, offset = sidecars.coverage.end_position, sidecars.coverage.end_offset
        try:
            tag = log_tag(header.log_id)
            found = scan(file.view(0, size), position, offset, tag, reading.add)
        except ForeignFile as error:
            raise ForeignFile(f"{name}: {error}") from error
        segment = SurveyedSegment(
            file,
            header,
            reading.derived.index,
            reading.derived.due.net(),
            found.end_offset,
            found.end_position,
            base if sidecars is None else sidecars.coverage.end_offset,
            reading.damage,
            counts=reading.counts,
        )
        return segment, found

    def _sidecars(self, file: File, header: SegmentHeader) -> Sidecars | None:
        """Return side-cars, with ids where ids are kept."""
        for with_ids in (True, False):
            sidecars = load_sidecars(
                self.folder, file, header, every_bytes=_INDEX_EVERY_BYTES, with_ids=with_ids
            )
            if sidecars is not None:
                return sidecars
        return None


class _Reading:
    """What one pass over a segment gathers."""

    def __init__(self, base: Offset, advance: Advance | None) -> None:
        self.derived = Derived(base, every_bytes=_INDEX_EVERY_BYTES, seed=None)
        self.counts = Counts()
        self.damage: list[Damage] = []
        self._advance = advance

    def add(self, frame: Frame, position: int) -> None:
        """Take in a whole frame; rows that cannot be read are damage too."""
        header = frame.header
        try:
            if self._advance is not None:
                _check_rows(frame)
                self._advance(header.size)
            self.derived.add(frame, position)
        except FrameDamaged as error:
            end = position + header.size
            damage = Damage(position, end, header.base_offset, header.end_offset, str(error))
            self.damage.append(damage)
            return
        self.counts.add(frame)


def _check_rows(frame: Frame) -> None:
    """Raise FrameDamaged unless every row can be read safely."""
    try:
        decode(frame.header, frame.body).validate(full=True)
    except pa.ArrowInvalid as error:
        raise FrameDamaged(f"frame at offset {frame.header.base_offset}: {error}") from error


def _stretch(segment: SurveyedSegment, end: Offset, reason: str) -> None:
    """Stretch the damage at a segment's end, or note it, so that it reaches `end`."""
    damage = segment.damage
    if damage and damage[-1].start == segment.end_offset:
        damage[-1] = replace(damage[-1], end=end)
        return
    at = segment.end_position
    damage.append(Damage(at, max(at, segment.file.size()), segment.end_offset, end, reason))


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
