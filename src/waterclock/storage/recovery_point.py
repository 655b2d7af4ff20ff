"""The recovery point: a note, on disk, that everything below an offset was fsynced.

It tells a torn tail from bit rot when no frame can (see `waterclock.log.recovery`). 32 bytes,
drawn in `docs/formats/recovery_point.md`, replaced whole. It may lag behind the truth but never
runs ahead of it.
"""

import struct

from crc32c import crc32c

from waterclock.model.ids import Offset
from waterclock.storage.folders.folder import Folder, write_whole

NAME = "recovery-point"
_MAGIC = b"\xf3WCRP\r\n\x01"
_FIELDS = struct.Struct("<8sQ12x")
_CRC = struct.Struct("<I")


def save_recovery_point(folder: Folder, offset: int) -> None:
    """Note that everything below `offset` is durable. You must have fsynced it before."""
    write_whole(folder, NAME, [encode_note(_MAGIC, offset)])
    folder.sync()


def load_recovery_point(folder: Folder) -> Offset | None:
    """Return it; 0 if none was ever saved, None if it is there but cannot be read."""
    if NAME not in folder.names():
        return Offset(0)
    file = folder.open(NAME)
    offset = decode_note(_MAGIC, file.view(0, file.size()))
    file.close()
    return offset


def encode_note(magic: bytes, offset: int) -> bytes:
    """Return the 32 bytes of a file that holds one offset."""
    fields = _FIELDS.pack(magic, offset)
    return fields + _CRC.pack(crc32c(fields))


def decode_note(magic: bytes, data: bytes | memoryview) -> Offset | None:
    """Return the offset in such a file, None if it cannot be read."""
    if len(data) != _FIELDS.size + _CRC.size:
        return None
    found, offset = _FIELDS.unpack_from(data)
    (expected,) = _CRC.unpack_from(data, _FIELDS.size)
    if found != magic or crc32c(data[: _FIELDS.size]) != expected:
        return None
    return Offset(offset)
