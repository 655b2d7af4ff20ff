"""Putting a copied log in the place of a replica's own: all of it, whenever the power goes.

The copy lies beside the log, each segment under a name that counts for nothing (`.install`), until
a note is durable that says it shall be the log. It is drawn in `docs/formats/installation.md`. The
next opening does the work before it judges anything, and again from the start if the power is cut
meanwhile: each step leaves what the next attempt brings to the same end.
"""

import logging
import re
import struct
from typing import NamedTuple

from crc32c import crc32c

from waterclock.cluster.replication.lineage import EpochStart
from waterclock.log.segment import SUFFIX, parse_segment_name, segment_name
from waterclock.model.errors import PartitionFaulty
from waterclock.model.ids import Epoch, Offset
from waterclock.storage.epoch_file import save_epochs
from waterclock.storage.folders.folder import Folder, write_whole
from waterclock.storage.installation.lost_log import NAME as LOST
from waterclock.storage.recovery_point import save_recovery_point

NAME = "installation"
COPIED = ".install"
"""Ending of a segment that was copied and is no part of the log yet."""
_MAGIC = b"\xf3WCIN\r\n\x01"
_HEAD = struct.Struct("<8sQII")
_EPOCH = struct.Struct("<QQ")
_BASE = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_SIDECAR = re.compile(r"(\d{20})\.(index|ids|due)")
events = logging.getLogger(__name__)


class Intent(NamedTuple):
    """What the log shall be."""

    end: Offset
    """Where it ends: behind the segments that were copied."""
    bases: tuple[Offset, ...]
    """Its segments, the empty one at the end included."""
    starts: tuple[EpochStart, ...]
    """Its leader epochs."""


def copied_name(base: int) -> str:
    """Return the name of a copied segment."""
    return segment_name(base) + COPIED


def save_intent(folder: Folder, intent: Intent) -> None:
    """Have the next opening take the copied segments for the log. They must be durable."""
    write_whole(folder, NAME, [_encode(intent)])
    folder.sync()


def finish_installation(folder: Folder) -> None:
    """Replace the log, if that was intended. You must have locked the folder, and opened nothing.

    A copied segment has its place when that name is gone: so whatever part of this was done
    before, it is not done twice.
    """
    names = frozenset(folder.names())
    if NAME not in names:
        return
    end, bases, starts = _load(folder)
    lost = [base for base in bases if not {copied_name(base), segment_name(base)} & names]
    if lost:
        raise PartitionFaulty(f"{copied_name(lost[0])} is gone: copy this replica anew")
    events.info("log_installed folder=%r end_offset=%d", folder, end)
    for name in names:
        is_other = name.endswith(SUFFIX) and parse_segment_name(name) not in bases
        if is_other or _SIDECAR.fullmatch(name) or name == LOST:
            folder.remove(name)
    for base in bases:
        if copied_name(base) in names:
            folder.rename(copied_name(base), segment_name(base))
    save_epochs(folder, starts)
    save_recovery_point(folder, end)
    folder.sync()
    folder.remove(NAME)
    # Before anything is appended: an intent that comes back would take side-cars, and no segment.
    folder.sync()


def remove_copied(folder: Folder) -> None:
    """Remove what was copied for nothing."""
    for name in folder.names():
        if name.endswith(COPIED):
            folder.remove(name)


def _encode(intent: Intent) -> bytes:
    parts = [_HEAD.pack(_MAGIC, intent.end, len(intent.starts), len(intent.bases))]
    parts += [_EPOCH.pack(*start) for start in intent.starts]
    parts += [_BASE.pack(base) for base in intent.bases]
    data = b"".join(parts)
    return data + _CRC.pack(crc32c(data))


def _load(folder: Folder) -> Intent:
    file = folder.open(NAME)
    data = bytes(file.view(0, file.size()))
    file.close()
    found = _decode(data)
    if found is None:
        raise PartitionFaulty(f"{NAME} cannot be read: copy this replica anew")
    return found


def _decode(data: bytes) -> Intent | None:
    if len(data) < _HEAD.size + _CRC.size:
        return None
    magic, end, epochs, segments = _HEAD.unpack_from(data)
    bases_at = _HEAD.size + epochs * _EPOCH.size
    crc_at = bases_at + segments * _BASE.size
    if magic != _MAGIC or len(data) != crc_at + _CRC.size:
        return None
    if _CRC.unpack_from(data, crc_at)[0] != crc32c(data[:crc_at]):
        return None
    starts = _EPOCH.iter_unpack(data[_HEAD.size : bases_at])
    bases = _BASE.iter_unpack(data[bases_at:crc_at])
    return Intent(
        Offset(end),
        tuple(Offset(base) for (base,) in bases),
        tuple(EpochStart(Epoch(epoch), Offset(offset)) for epoch, offset in starts),
    )
