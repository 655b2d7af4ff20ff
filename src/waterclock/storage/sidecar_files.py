"""Side-cars on disk: written together, believed together.

The three side-cars of a segment are saved from one moment and loaded only if all that are needed
agree on it and the segment still bears it out; otherwise the caller reads the segment instead.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from waterclock.log.frame import FrameHeader, decode_header
from waterclock.log.id_index.runs import IdEntries
from waterclock.log.recovery import header_crc
from waterclock.log.segment import HEADER_BYTES, SegmentHeader
from waterclock.log.sidecars.due import NetDelta
from waterclock.log.sidecars.sidecar import (
    Coverage,
    Sidecar,
    SidecarKind,
    decode_sidecar,
    encode_sidecar,
    sidecar_name,
)
from waterclock.log.sidecars.sparse_index import SparseIndex
from waterclock.model.errors import ForeignFile, FrameDamaged
from waterclock.model.ids import Offset
from waterclock.storage.folders.folder import Bytes, File, Folder, write_whole


@dataclass(frozen=True, slots=True)
class Sidecars:
    """What the side-cars of one segment hold."""

    coverage: Coverage
    index: SparseIndex
    ids: IdEntries | None
    due: NetDelta
    last: FrameHeader | None
    """The last frame covered."""


def save_sidecars(
    folder: Folder, coverage: Coverage, *, index: SparseIndex, ids: IdEntries | None, due: NetDelta
) -> None:
    """Write all side-cars of a segment, each replacing its elder whole."""
    bodies: list[tuple[SidecarKind, Sequence[Bytes]]] = [
        (SidecarKind.INDEX, [index.encode()]),
        (SidecarKind.DUE, due.encode()),
    ]
    if ids is not None:
        bodies.append((SidecarKind.IDS, ids.encode()))
    for kind, body in bodies:
        name = sidecar_name(coverage.base_offset, kind)
        write_whole(folder, name, [encode_sidecar(kind, coverage, *body), *body])
    folder.sync()


def load_sidecars(
    folder: Folder, segment: File, header: SegmentHeader, *, every_bytes: int, with_ids: bool
) -> Sidecars | None:
    """Return a segment's side-cars, or None if one is missing, damaged or tells of other bytes."""
    names = folder.names()
    kinds = [SidecarKind.INDEX, SidecarKind.DUE] + [SidecarKind.IDS] * with_ids
    found: dict[SidecarKind, Sidecar] = {}
    for kind in kinds:
        name = sidecar_name(header.base_offset, kind)
        sidecar = _load(folder, name, kind) if name in names else None
        if sidecar is None:
            return None
        found[kind] = sidecar
    coverage = found[SidecarKind.INDEX].coverage
    if any(sidecar.coverage != coverage for sidecar in found.values()):
        return None
    index = SparseIndex.decode(found[SidecarKind.INDEX].body, every_bytes)
    due = NetDelta.decode(found[SidecarKind.DUE].body)
    if index is None or due is None or not _is_of(coverage, header, segment):
        return None
    last = _last_frame(segment, coverage, index)
    if last is None and coverage.end_offset > header.base_offset:
        return None
    ids = IdEntries.decode(found[SidecarKind.IDS].body) if with_ids else None
    if with_ids and ids is None:
        return None
    return Sidecars(coverage, index, ids, due, last)


def load_due(folder: Folder, coverage: Coverage) -> NetDelta | None:
    """Return the `.due` side-car of a whole segment as it lies in its memory map, if it is so."""
    body = _load_whole(folder, coverage, SidecarKind.DUE)
    return None if body is None else NetDelta.decode(body)


def load_ids(folder: Folder, coverage: Coverage) -> IdEntries | None:
    """Return the `.ids` side-car of a whole segment as it lies in its memory map, if it is so."""
    body = _load_whole(folder, coverage, SidecarKind.IDS)
    return None if body is None else IdEntries.decode(body)


def _load_whole(folder: Folder, coverage: Coverage, kind: SidecarKind) -> memoryview | None:
    name = sidecar_name(coverage.base_offset, kind)
    sidecar = _load(folder, name, kind) if name in folder.names() else None
    return None if sidecar is None or sidecar.coverage != coverage else sidecar.body


def vouched_end(folder: Folder, header: SegmentHeader) -> Offset:
    """Return how far some side-car of this writing says it was durable, borne out or not.

    One that the segment does not bear out is of no use, but it is still a witness: side-cars are
    made of durable frames only, so the segment once had what they tell of.
    """
    names = folder.names()
    end = header.base_offset
    for kind in SidecarKind:
        name = sidecar_name(header.base_offset, kind)
        sidecar = _load(folder, name, kind) if name in names else None
        if sidecar is not None and sidecar.coverage[:2] == (header.base_offset, header.generation):
            end = max(end, sidecar.coverage.end_offset)
    return end


def _load(folder: Folder, name: str, kind: SidecarKind) -> Sidecar | None:
    file = folder.open(name)
    sidecar = decode_sidecar(kind, file.view(0, file.size()))
    file.close()
    return sidecar


def _is_of(coverage: Coverage, header: SegmentHeader, segment: File) -> bool:
    """Tell whether a side-car can be of this writing of the segment."""
    if (coverage.base_offset, coverage.generation) != (header.base_offset, header.generation):
        return False
    return HEADER_BYTES <= coverage.end_position <= segment.size()


def _last_frame(segment: File, coverage: Coverage, index: SparseIndex) -> FrameHeader | None:
    """Return the frame the side-car ended with, if the segment has that very frame there."""
    position = index.position_of_offset(coverage.end_offset)
    end = coverage.end_position
    data = segment.view(0, end)
    while position is not None and position < end:
        try:
            frame = decode_header(data, position)
        except (FrameDamaged, ForeignFile):
            return None
        crc = header_crc(data, position)
        position += frame.size
        if position == end and frame.end_offset == coverage.end_offset:
            return frame if crc == coverage.last_header_crc else None
    return None
