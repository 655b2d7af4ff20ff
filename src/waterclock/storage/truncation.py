"""Cutting the end off a replica's log, when its leader's history leaves it there.

What is cut was flushed, and much bears witness to that: the recovery point, side-cars, segments
that follow. An opening in the midst of it would take the log for a damaged one. So the intent is
made durable first, in a file drawn in `docs/formats/truncation.md`; the next opening does the work
before it judges anything, and again from the start if the power is cut meanwhile: each step leaves
a log that the next attempt brings to the same end. Everything derived from the log is then derived
from what is left.

The kept part of a segment is written aside and renamed, as by compaction: readers may have the old
file in their memory maps, where a shrunken file is a bus error.
"""

import logging
import re

from waterclock.cluster.replication.lineage import Lineage
from waterclock.log.frame import Frame, read_frame
from waterclock.log.segment import (
    HEADER_BYTES,
    SUFFIX,
    decode_segment_header,
    encode_segment_header,
    log_tag,
    parse_segment_name,
    segment_name,
)
from waterclock.model.errors import FrameDamaged, PartitionFaulty
from waterclock.model.ids import Offset
from waterclock.storage.epoch_file import load_epochs, save_epochs
from waterclock.storage.folders.folder import File, Folder, write_whole
from waterclock.storage.recovery_point import (
    decode_note,
    encode_note,
    load_recovery_point,
    save_recovery_point,
)

NAME = "truncation"
CUT_GENERATION = 1 << 16
"""What a cut adds to a segment's generation. A rewrite, after which its frames differ, adds 1."""
_MAGIC = b"\xf3WCTR\r\n\x01"
_SIDECAR = re.compile(r"(\d{20})\.(index|ids|due)")
events = logging.getLogger(__name__)


def save_intent(folder: Folder, end: int) -> None:
    """Have the next opening cut the log to `end`. You must have flushed everything below it."""
    write_whole(folder, NAME, [encode_note(_MAGIC, end)])
    folder.sync()


def finish_truncation(folder: Folder) -> None:
    """Cut the log, if that was intended. You must have locked the folder, and opened no segment."""
    names = folder.names()
    if NAME not in names:
        return
    end = _load_intent(folder)
    events.info("log_truncated folder=%r end_offset=%d", folder, end)
    bases = sorted(parse_segment_name(name) for name in names if name.endswith(SUFFIX))
    if not bases or bases[0] > end:
        raise PartitionFaulty(f"the log was to be cut at offset {end}, but begins after it")
    last = max(base for base in bases if base <= end)
    if load_recovery_point(folder) != end:
        save_recovery_point(folder, end)
    for name in names:
        sidecar = _SIDECAR.fullmatch(name)
        if sidecar and int(sidecar[1]) >= last:
            folder.remove(name)
    for base in reversed(bases):
        if base > last:
            folder.remove(segment_name(base))
    _cut(folder, segment_name(last), end)
    epochs = load_epochs(folder)
    if epochs is not None:
        save_epochs(folder, Lineage.of(epochs, end).starts)
    folder.sync()
    folder.remove(NAME)
    # Before anything is appended: an intent that comes back would cut that off, too.
    folder.sync()


def _load_intent(folder: Folder) -> Offset:
    file = folder.open(NAME)
    end = decode_note(_MAGIC, file.view(0, file.size()))
    file.close()
    if end is None:
        raise PartitionFaulty(f"{NAME} cannot be read: copy this replica anew")
    return end


def _cut(folder: Folder, name: str, end: Offset) -> None:
    """Replace a segment by what it has below `end`, of the next generation."""
    file = folder.open(name)
    header = decode_segment_header(name, file.view(0, min(file.size(), HEADER_BYTES)))
    kept = file.view(
        HEADER_BYTES, _position_of(file, log_tag(header.log_id), end, header.base_offset)
    )
    header = header._replace(generation=header.generation + CUT_GENERATION)
    write_whole(folder, name, [encode_segment_header(header), kept])
    file.close()


def _position_of(file: File, tag: int, end: Offset, offset: Offset) -> int:
    """Return where the frames below `end` end, and the `seen` frames that belong to them."""
    data, position = file.view(0, file.size()), HEADER_BYTES
    while True:
        try:
            frame: Frame | None = read_frame(data, position)
        except FrameDamaged as error:
            # Behind the cut there may be anything; what lies before it was flushed.
            if offset < end:
                raise PartitionFaulty(f"{file.name}: {error}: copy this replica anew") from error
            frame = None
        if frame is None or frame.header.end_offset > end:
            return position
        if (frame.header.base_offset, frame.header.log_tag) != (offset, tag):
            raise PartitionFaulty(f"{file.name}: a strange frame at byte {position}")
        position, offset = position + frame.header.size, frame.header.end_offset
