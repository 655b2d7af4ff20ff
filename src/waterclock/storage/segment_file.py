"""One segment on disk: frames written at its end, read anywhere through memory maps.

Duties of the caller that appends: frames come in order and are planned to fit (`has_room`). A
failed write leaves the file as if nothing had been tried, or raises StorageFailed for good: half a
frame that stays behind the end could otherwise look like a torn tail, or worse, like a frame,
later.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from waterclock.log.frame import HEADER_BYTES as FRAME_HEADER_BYTES
from waterclock.log.frame import (
    SPAN_MAX,
    Frame,
    FrameHeader,
    FrameType,
    check_body,
    decode_header,
    read_frame,
)
from waterclock.log.recovery import Damage, scan
from waterclock.log.segment import (
    HEADER_BYTES,
    SegmentHeader,
    encode_segment_header,
    log_tag,
    segment_name,
)
from waterclock.log.sidecars.sidecar import Coverage
from waterclock.log.sidecars.sparse_index import SparseIndex
from waterclock.model.errors import ForeignFile, FrameDamaged, StorageFailed, StorageFull
from waterclock.model.ids import Offset
from waterclock.model.units import KIB
from waterclock.storage.folders.folder import TEMPORARY, Bytes, File, Folder, create_temporary

T = TypeVar("T")

FIRST_STEP_BYTES = 64 * KIB
"""What the first frame of a segment has reserved, if it fits; nothing is reserved before it."""


class SegmentFile:
    """Frames [base_offset, end_offset) in bytes [HEADER_BYTES, end_position) of a file."""

    def __init__(
        self, file: File, header: SegmentHeader, index: SparseIndex, faults: list[Damage]
    ) -> None:
        """`faults` is the damage known of the whole log; what is found here is added to it."""
        self.file = file
        self.header = header
        self.index = index
        self.log_tag = log_tag(header.log_id)
        self.end_position = HEADER_BYTES
        self.end_offset = header.base_offset
        self.last_header_crc = 0
        self._last: FrameHeader | None = None
        self._last_raw = b""
        """A last frame whose header nobody has asked for yet."""
        self._faults = faults

    def __repr__(self) -> str:
        span = f"[{self.base_offset}, {self.end_offset})"
        return f"<SegmentFile {span} {self.end_position} B>"

    @property
    def base_offset(self) -> Offset:
        return self.header.base_offset

    @property
    def last(self) -> FrameHeader | None:
        """The header of the last frame; None if there is no frame."""
        if self._last_raw:
            self._last, self._last_raw = decode_header(self._last_raw), b""
        return self._last

    @last.setter
    def last(self, header: FrameHeader | None) -> None:
        self._last, self._last_raw = header, b""

    @property
    def is_empty(self) -> bool:
        """It holds no frame yet."""
        return self.end_offset == self.base_offset

    @property
    def coverage(self) -> Coverage:
        """What a side-car made now would cover."""
        return Coverage(
            self.base_offset,
            self.header.generation,
            self.end_offset,
            self.end_position,
            self.last_header_crc,
        )

    def has_room(self, size: int, span: int, *, segment_bytes: int) -> bool:
        """Tell whether frames of this size belong here or into a new segment."""
        spans = self.end_offset + span - self.base_offset
        return self.end_position + size <= segment_bytes and spans <= SPAN_MAX

    def append(self, parts: Sequence[Bytes], *, preallocate_bytes: int) -> None:
        """Write whole frames at the end. Call `accept` for each frame after it."""
        end = self.end_position + sum(map(len, parts))
        if end > self.file.size():
            self._grow(end, preallocate_bytes)
        self._write(self.end_position, parts)

    def _write(self, position: int, parts: Sequence[Bytes]) -> None:
        try:
            self.file.write(position, parts)
        except (StorageFull, StorageFailed):
            self._undo_write()
            raise

    def _grow(self, needed: int, preallocate_bytes: int) -> None:
        # In steps, so that most fsyncs need not write a changed length; each as large as what is
        # there, so that a thousand topics with a few messages do not fill the disk with zeros.
        step = max(min(preallocate_bytes, max(self.file.size(), FIRST_STEP_BYTES)), 1)
        steps = -(-needed // step) * step
        try:
            self.file.allocate(steps)
        except StorageFull:
            self.file.allocate(needed)

    def _undo_write(self) -> None:
        try:
            self.file.truncate(self.end_position)
        except StorageFull as error:
            raise StorageFailed(f"{self.file.name}: cannot undo a failed write") from error

    def accept(self, header: FrameHeader, crc: int) -> None:
        """Count the frame that lies at the end as part of the segment."""
        assert header.base_offset == self.end_offset
        self.index.add(header, self.end_position)
        self.end_position += header.size
        self.end_offset = header.end_offset
        self.last = header
        self.last_header_crc = crc

    def append_lone(self, raw: bytes, append_ms: int, *, preallocate_bytes: int) -> None:
        """Write a whole frame of one offset at the end, and count it as part of the segment."""
        position, offset = self.end_position, self.end_offset
        end = position + len(raw)
        if end > self.file.size():
            self._grow(end, preallocate_bytes)
        self._write(position, (raw,))
        self.index.note(offset, position, append_ms)
        self.end_position = end
        self.end_offset = Offset(offset + 1)
        self._last_raw = raw[:FRAME_HEADER_BYTES]
        self.last_header_crc = int.from_bytes(
            raw[FRAME_HEADER_BYTES - 4 : FRAME_HEADER_BYTES], "little"
        )

    def view(self) -> memoryview:
        """Return all of the segment's bytes that count."""
        return self.file.view(0, self.end_position)

    def frames(
        self, position: int, end_position: int | None = None, *, data: memoryview | None = None
    ) -> Iterator[Frame]:
        """Yield the checked frames from `position` on; raise FrameDamaged at damage.

        Bring the `view` if the segment may be replaced, and its file closed, before you begin.
        """
        data = self.view() if data is None else data
        end = len(data) if end_position is None else min(end_position, len(data))
        while position < end:
            frame = self._checked(read_frame, data, position)
            yield frame
            position += frame.header.size

    def headers(self) -> Iterator[FrameHeader]:
        """Yield the checked headers of all frames, whose bodies are not looked at."""
        data, position = self.view(), HEADER_BYTES
        while position < len(data):
            header = self._checked(decode_header, data, position)
            yield header
            position += header.size

    def _checked(self, read: Callable[[memoryview, int], T], data: memoryview, position: int) -> T:
        """Read at a position. Damage met here is noted, and every error names the file."""
        damage = self._damage_at(position)
        if damage is not None:
            raise FrameDamaged(f"{self.file.name}, {damage}")
        try:
            return read(data, position)
        except FrameDamaged as error:
            self._note_damage()
            raise FrameDamaged(f"{self.file.name}: {error}") from error
        except ForeignFile as error:
            raise ForeignFile(f"{self.file.name}: {error}") from error

    def _note_damage(self) -> None:
        """Find out how far the damage that a reader has met reaches: the log is faulty now."""
        found = scan(self.view(), HEADER_BYTES, self.base_offset, self.log_tag, lambda *_: None)
        damage = found.damage_before(
            self.end_offset, size=self.end_position, reason="zeros, where frames should be"
        )
        self._faults += [new for new in damage if new not in self._faults]

    def _damage_at(self, position: int) -> Damage | None:
        """Return the damage of this segment that is known to lie over a position."""
        for damage in self._faults:
            is_here = self.base_offset < damage.end <= self.end_offset
            if is_here and damage.position <= position < damage.end_position:
                return damage
        return None

    def position_of(self, offset: int) -> int:
        """Return where the frame that holds `offset` lies."""
        return self.place_of(offset)[0]

    def place_of(self, offset: int) -> tuple[int, FrameHeader]:
        """Return where the frame that holds `offset` lies, and its checked header."""
        assert self.base_offset <= offset < self.end_offset
        start = self.index.position_of_offset(offset)
        position = HEADER_BYTES if start is None else start
        data = self.view()
        while True:
            damage = self._damage_at(position)
            if damage is not None and damage.end <= offset:
                position = damage.end_position
                continue
            header = self._checked(decode_header, data, position)
            if offset < header.end_offset:
                return position, header
            position += header.size

    def frame_and_seen(self, offset: int) -> list[Frame]:
        """Return the frame that spans `offset`, then the `seen` frames right behind it."""
        data = self.view()
        found = [self.frame_at(offset)]
        position = self.position_of(offset) + found[0].header.size
        while position < len(data):
            # The header tells: the body of what is read next by others is not theirs to pay for.
            header = self._checked(decode_header, data, position)
            if header.type is not FrameType.SEEN:
                break
            found.append(self._checked(read_frame, data, position))
            position += header.size
        return found

    def frame_at(self, offset: int) -> Frame:
        """Return the frame that spans `offset`."""
        position, header = self.place_of(offset)
        data = self.view()
        body = self._checked(partial(check_body, header), data, position)
        return Frame(header, body, data[position : position + header.size])

    def seal(self) -> None:
        """Give back preallocated space and make all of it durable."""
        self.give_back()
        self.file.sync()

    def give_back(self) -> None:
        """Give back preallocated space. A crash may bring it back: it holds nothing but zeros."""
        if self.file.size() > self.end_position:
            self.file.truncate(self.end_position)


def create_segment(
    folder: Folder,
    header: SegmentHeader,
    index: SparseIndex,
    faults: list[Damage],
    *,
    settles: bool = True,
) -> SegmentFile:
    """Begin a segment. It appears under its name only when it is whole and durable.

    Unless it `settles`: then you must sync it and its folder before anybody is told of the log.
    Space for frames is reserved by the first of them: most topics of a node may never have one.
    """
    name = segment_name(header.base_offset)
    file = create_temporary(folder, name)
    try:
        file.allocate(HEADER_BYTES)
        file.write(0, [encode_segment_header(header)])
        if settles:
            file.sync()
        folder.rename(name + TEMPORARY, name)
        if settles:
            folder.sync()
    except StorageFull:
        file.close()
        folder.remove(name + TEMPORARY)
        raise
    file.name = name
    return SegmentFile(file, header, index, faults)


class Guard:
    """A `with` that tells of what is raised in it; made once, as each write goes through two."""

    def __init__(
        self, tell: Callable[[BaseException], None], *, passing: tuple[type[Exception], ...] = ()
    ) -> None:
        self._tell, self._passing = tell, passing

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.note(error)

    def note(self, error: BaseException) -> None:
        """Tell of what was raised, unless it is one of those that pass."""
        if not isinstance(error, self._passing):
            self._tell(error)
