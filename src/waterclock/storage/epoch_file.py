"""The epoch table on disk: where each leader epoch begins in a replica's log.

Drawn in `docs/formats/epoch_table.md`. An epoch stands here, durably, before its first frame is
written; so the table may know of an epoch that the log has not, and never the other way round. The
frames say it too, until compaction drops them.
"""

import struct

from crc32c import crc32c

from waterclock.cluster.replication.lineage import EpochStart
from waterclock.model.ids import Epoch, Offset
from waterclock.storage.folders.folder import Folder, write_whole

NAME = "epoch-table"
_MAGIC = b"\xf3WCET\r\n\x01"
_HEAD = struct.Struct("<8sI")
_CRC = struct.Struct("<I")
_ENTRY = struct.Struct("<I4xQ")
_ENTRIES_AT = _HEAD.size + _CRC.size


def save_epochs(folder: Folder, starts: tuple[EpochStart, ...]) -> None:
    """Replace the table; it is durable when this returns."""
    head = _HEAD.pack(_MAGIC, len(starts))
    entries = b"".join(_ENTRY.pack(*start) for start in starts)
    write_whole(folder, NAME, [head + _CRC.pack(crc32c(head + entries)) + entries])
    folder.sync()


def load_epochs(folder: Folder) -> tuple[EpochStart, ...] | None:
    """Return the table; None if there is none that can be read."""
    if NAME not in folder.names():
        return None
    file = folder.open(NAME)
    data = bytes(file.view(0, file.size()))
    file.close()
    if len(data) < _ENTRIES_AT:
        return None
    magic, count = _HEAD.unpack_from(data)
    (expected,) = _CRC.unpack_from(data, _HEAD.size)
    entries = data[_ENTRIES_AT:]
    if magic != _MAGIC or len(entries) != count * _ENTRY.size:
        return None
    if crc32c(data[: _HEAD.size] + entries) != expected:
        return None
    return tuple(EpochStart(Epoch(e), Offset(o)) for e, o in _ENTRY.iter_unpack(entries))
