"""Accepting a loss: a faulty log made whole again around its damage, on an operator's word only.

Every segment with damage is written anew: frames that are whole as they are, a `noop` over the
offsets that are lost, so that no offset is used again. The damaged file stays beside it under
another name, in case something can still be read from it. Of a log that is noted to be lost, what
stands in its place, nothing or files that were copied back, is the log from then on.
"""

from collections.abc import Iterator

from waterclock.log.frame import SPAN_MAX, FrameHeader, FrameType, encode_header, header_of
from waterclock.log.recovery import Damage
from waterclock.log.segment import HEADER_BYTES, encode_segment_header, segment_name
from waterclock.storage.folders.folder import Bytes, Folder, write_whole
from waterclock.storage.installation.lost_log import NAME as LOST
from waterclock.storage.partition_store import PartitionStore
from waterclock.storage.segment_file import SegmentFile

QUARANTINE = ".damaged"
"""Ending of a segment's file that was replaced by a repair; a number follows."""


def accept_loss(store: PartitionStore, lost: list[Damage] | None = None) -> None:
    """Replace the segments that have this damage, or all a store knows of, and close the store.

    Open the log again afterwards: it takes appends then.
    """
    lost = list(store.faults) if lost is None else lost
    before: FrameHeader | None = None
    if not store.faults:  # one that is faulty has taken nothing that is not durable
        store.sync()
    for segment in store.segments:
        damage = [d for d in lost if segment.base_offset < d.end and _is_in(d, segment, store)]
        if damage:
            _replace(store.folder, segment, damage, before)
        before = segment.last or before
    if LOST in store.folder.names():
        store.folder.remove(LOST)
        store.folder.sync()
    store.close(flush=False)  # nor save anything of what was replaced


def _is_in(damage: Damage, segment: SegmentFile, store: PartitionStore) -> bool:
    is_last = segment is store.segments[-1]
    return is_last or damage.end <= segment.end_offset


def _replace(
    folder: Folder, segment: SegmentFile, damage: list[Damage], before: FrameHeader | None
) -> None:
    name = segment_name(segment.base_offset)
    header = segment.header._replace(generation=segment.header.generation + 1)
    parts: list[Bytes] = [encode_segment_header(header)]
    parts.extend(_mended(segment, damage, before))
    names = folder.names()
    number = next(n for n in range(len(names) + 1) if f"{name}{QUARANTINE}.{n}" not in names)
    write_whole(folder, f"{name}{QUARANTINE}.{number}", [segment.file.view(0, segment.file.size())])
    folder.sync()
    write_whole(folder, name, parts)
    folder.sync()


def _mended(
    segment: SegmentFile, damage: list[Damage], last: FrameHeader | None
) -> Iterator[Bytes]:
    """Yield the bytes of whole frames, and of a noop for each stretch that is lost."""
    position = HEADER_BYTES
    for lost in sorted(damage, key=lambda d: d.position):
        for frame in segment.frames(position, lost.position):
            last = frame.header
        yield segment.view()[position : lost.position]
        yield from _noops(segment, lost, last)
        position = lost.end_position
    for _ in segment.frames(position):
        pass  # each is checked on the way
    yield segment.view()[position:]


def _noops(segment: SegmentFile, lost: Damage, last: FrameHeader | None) -> Iterator[bytes]:
    """Yield frames that stand over lost offsets, with the time and epoch of the frame before."""
    for start in range(lost.start, lost.end, SPAN_MAX):
        noop = header_of(
            FrameType.NOOP,
            b"",
            base_offset=start,
            span=min(SPAN_MAX, lost.end - start),
            rows=0,
            log_tag=segment.log_tag,
            append_ms=segment.header.created_ms if last is None else last.append_ms,
            epoch=0 if last is None else last.epoch,
            flushed_end=start,
        )
        yield encode_header(noop)
