"""The part of a log that cannot be streamed any more, copied whole to another replica.

The leader hands out its segments as they are at one moment: memory maps, which stay what they are
while the log cleaner swaps other files in their place. The replica writes them beside its own log,
which goes on meanwhile. What is derived from them is not copied: each replica has its own.
"""

from typing import NamedTuple

from crc32c import crc32c

from waterclock.cluster.replication.copies import CopyHead, SegmentSize
from waterclock.cluster.replication.lineage import EpochStart
from waterclock.log.recovery import scan
from waterclock.log.segment import (
    HEADER_BYTES,
    SegmentHeader,
    decode_segment_header,
    encode_segment_header,
    log_tag,
    segment_name,
)
from waterclock.model.errors import BadInput
from waterclock.model.ids import Millis, Offset
from waterclock.storage.folders.folder import Bytes, File, Folder
from waterclock.storage.installation.intent import Intent, copied_name, remove_copied


class LogCopy(NamedTuple):
    """The segments of a log below the offset from which on frames can be streamed."""

    end: Offset
    starts: tuple[EpochStart, ...]
    """The leader epochs below that."""
    segments: tuple[tuple[Offset, memoryview], ...]
    """Where each begins, and its bytes."""

    @property
    def head(self) -> CopyHead:
        """What is said of it before it comes."""
        sizes = (SegmentSize(base, len(data)) for base, data in self.segments)
        return CopyHead(self.end, self.starts, tuple(sizes))


class CopyWriter:
    """Writes a copy beside the log in a folder. On any one thread at a time.

    It leaves files that count for nothing, unless what `finish` returns is made the log.
    """

    def __init__(self, folder: Folder, log_id: bytes, head: CopyHead, *, now_ms: int) -> None:
        """Make room for all of it; raises StorageFull now, and not when most of it is copied."""
        end, starts, segments = head
        self._folder = folder
        self._log_id = log_id
        self._segments = segments
        self._intent = Intent(end, (*(each.base for each in segments), end), starts)
        self._number = self._position = self._crc = 0
        self._file: File | None = None
        remove_copied(folder)
        for base, size in segments:
            file = folder.create(copied_name(base))
            try:
                file.allocate(size)
            finally:
                file.close()
        # Segments that were rewritten take no frames: others could not tell them from rewritten
        # ones. What is streamed comes into one of its own.
        self._begin_last(SegmentHeader(log_id, end, 0, Millis(now_ms)))

    def __repr__(self) -> str:
        return f"<CopyWriter {self._number} of {len(self._segments)} segments>"

    def _begin_last(self, header: SegmentHeader) -> None:
        file = self._folder.create(copied_name(header.base_offset))
        try:
            file.allocate(HEADER_BYTES)
            file.write(0, [encode_segment_header(header)])
            file.sync()
        finally:
            file.close()

    def write(self, data: Bytes) -> None:
        """Write what follows of the segment whose turn it is."""
        base, size = self._segments[self._number]
        if self._position + len(data) > size:
            raise BadInput(f"{segment_name(base)} is longer than the {size} bytes it should have")
        if self._file is None:
            self._file = self._folder.open(copied_name(base))
        self._file.write(self._position, [data])
        self._position += len(data)
        self._crc = crc32c(data, self._crc)

    def end_segment(self, crc: int) -> None:
        """Make the segment durable, if it is what was sent: its bytes have this checksum."""
        base, size = self._segments[self._number]
        file = self._file
        if file is None or self._position != size or self._crc != crc:
            raise BadInput(f"{segment_name(base)} is not what was sent")
        data = file.view(0, size)
        header = decode_segment_header(segment_name(base), data[:HEADER_BYTES])
        if header.log_id != self._log_id:
            raise BadInput(f"{segment_name(base)} is of another log")
        # What has rotted elsewhere must not come in the place of what has not.
        found = scan(data, HEADER_BYTES, base, log_tag(self._log_id), lambda *_: None)
        if found.damage or found.end_offset != self._intent.bases[self._number + 1]:
            raise BadInput(f"{segment_name(base)} is damaged where it was copied from")
        file.sync()
        file.close()
        self._file = None
        self._number += 1
        self._position = self._crc = 0

    def finish(self) -> Intent:
        """Make all names durable; return what is to be intended."""
        if self._number != len(self._segments):
            raise BadInput(f"{self!r} is not whole")
        self._folder.sync()
        return self._intent

    def close(self) -> None:
        """Let go of what is open."""
        if self._file is not None:
            self._file.close()
            self._file = None
