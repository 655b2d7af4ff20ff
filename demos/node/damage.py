"""The step about bit rot: a bit flipped in a copy of a partition, found, named and read around."""

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from demos.node.steps import Damaged
from waterclock.log.frame import HEADER_BYTES, Frame, FrameType
from waterclock.log.recovery import Damage
from waterclock.model.errors import FrameDamaged, StorageFailed, translate
from waterclock.model.sections import LogConfig
from waterclock.storage.folders.read_only_folder import ReadOnlyFolder
from waterclock.storage.local_log import Log, StoredMessage, open_log
from waterclock.storage.survey import check, look

LOG = LogConfig(preallocate_bytes=0)


@translate({OSError: StorageFailed})
def damage(folder: Path, copy: Path) -> Damaged:
    """Flip one bit in the middle of a copy of the log, then look for it and read around it."""
    shutil.copytree(folder, copy)
    file, position, frame = _flip(copy)
    before = _fingerprints(copy)
    with ReadOnlyFolder(copy) as held:
        found_damage = [found for _, found in check(held, advance=lambda _: None).damage]
    with open_log(folder, log=LOG) as log:
        written = dict(log.read())
    with open_log(copy, log=LOG) as log:
        stored = list(_read_around(log, found_damage))
    served = sum(written.get(offset) == message for offset, message in stored)
    return Damaged(
        str(copy),
        file,
        position,
        found_damage,
        [(found.start, found.end) for found in found_damage] == [frame],
        served,
        len(written) - len(stored),
        len(stored) - served,
        _fingerprints(copy) == before,
    )


def _flip(folder: Path) -> tuple[str, int, tuple[int, int]]:
    """Flip a bit of a frame with messages; return file, byte and the frame's offsets."""
    with ReadOnlyFolder(folder) as held:
        survey = look(held)
        at = (survey.start + survey.end) // 2
        frame = next(found for found in survey.walk(at) if _is_data(found))
        assert isinstance(frame, Frame)
        header = bytes(frame.raw[:HEADER_BYTES])
        span, size = (frame.header.base_offset, frame.header.end_offset), frame.header.body_len
        name = next(s.file.name for s in survey.segments if s.end_offset > span[0])
    path = folder / name
    data = bytearray(path.read_bytes())
    position = data.index(header) + HEADER_BYTES + size // 2
    data[position] ^= 1 << 3
    path.write_bytes(data)
    return name, position, span


def _is_data(found: Frame | Damage) -> bool:
    return isinstance(found, Frame) and found.header.type is FrameType.DATA


def _fingerprints(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.seg")
    }


def _read_around(log: Log, damage: list[Damage]) -> Iterator[StoredMessage]:
    """Yield every message that the log will serve."""
    offset = int(log.start)
    while True:
        try:
            for stored in log.read(offset):
                yield stored
                offset = stored.offset + 1
            return
        except FrameDamaged:
            behind = [found.end for found in damage if found.end > offset]
            if not behind:
                raise
            offset = behind[0]
