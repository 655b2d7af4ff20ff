"""What a node has promised as a replica: of each log, the least epoch it accepts, and whose it is.

One small file for all logs of a node, drawn in `docs/formats/promises.md` and replaced whole, so
that a hundred promises made at once cost one write. It also names the disk. A node that has lost
the file has lost its promises: with it goes the name, and it comes back as another replica, which
nobody counts on.
"""

import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from waterclock.model.errors import PartitionFaulty
from waterclock.model.ids import Epoch
from waterclock.storage.folders.folder import TEMPORARY, Folder, write_whole
from waterclock.storage.folders.os_folder import OsFolder

FOLDER: Final = "replica"
"""In the data folder of a node."""
NAME: Final = "promises"
DISK_ID_BYTES: Final = 8
_MAGIC = b"\xf3WCPR\r\n\x02"
_MAGIC_1 = b"\xf3WCPR\r\n\x01"
_HEAD = struct.Struct("<8s8sI")
_CRC = struct.Struct("<I")
_ENTRY = struct.Struct("<16sQH")
_ENTRY_1 = struct.Struct("<16sQ")
_ENTRIES_AT = _HEAD.size + _CRC.size


class KeptPromise(NamedTuple):
    """The least epoch that is accepted for a log, and whose it is."""

    epoch: Epoch = Epoch(0)
    candidate: str = ""
    """Empty: nobody knows. The epoch is promised to whoever asks first."""

    def renewed(self, other: "KeptPromise") -> "KeptPromise":
        """Return what holds when another promise is made: of two for one epoch, the first."""
        is_later = other.epoch > self.epoch
        return other if is_later or (other.epoch == self.epoch and not self.candidate) else self


NOTHING: Final = KeptPromise()


class Promises:
    """The promises of one node. Reading belongs to its loop; `save` may run on one thread."""

    def __init__(self, folder: Folder, *, new_disk_id: bytes) -> None:
        """Take up a folder, or begin one as the disk `new_disk_id`.

        Raises PartitionFaulty if what is there cannot be read.
        """
        assert len(new_disk_id) == DISK_ID_BYTES, new_disk_id
        folder.lock()
        self._folder = folder
        self._kept: dict[bytes, KeptPromise] = {}
        self.disk_id = new_disk_id.hex()
        """Which disk this is, in hex: kept as long as the promises are."""
        try:
            names = folder.names()
            if NAME + TEMPORARY in names:
                folder.remove(NAME + TEMPORARY)
            if NAME in names:
                self._load()
            else:
                self._write({})
        except BaseException:
            folder.close()
            raise

    def __repr__(self) -> str:
        return f"<Promises of disk {self.disk_id} for {len(self._kept)} logs>"

    def get(self, log_id: bytes) -> KeptPromise:
        """Return what is accepted for a log; epoch 0 if nothing was promised."""
        return self._kept.get(log_id, NOTHING)

    def save(self, promises: Mapping[bytes, KeptPromise]) -> None:
        """Make promises; they are durable when this returns. None is ever taken back."""
        made = {log_id: self.get(log_id).renewed(each) for log_id, each in promises.items()}
        self._write({**self._kept, **made})
        self._kept.update(made)

    def close(self) -> None:
        """Let go of the folder."""
        self._folder.close()

    def _write(self, kept: Mapping[bytes, KeptPromise]) -> None:
        head = _HEAD.pack(_MAGIC, bytes.fromhex(self.disk_id), len(kept))
        entries = b"".join(_encoded(log_id, each) for log_id, each in sorted(kept.items()))
        write_whole(self._folder, NAME, [head + _CRC.pack(crc32c(head + entries)) + entries])
        self._folder.sync()

    def _load(self) -> None:
        file = self._folder.open(NAME)
        data = bytes(file.view(0, file.size()))
        file.close()
        found = _decode(data)
        if found is None:
            # Another replica could have been chosen on the word of this one: it must not forget.
            raise PartitionFaulty(
                f"what this node promised as a replica ({FOLDER}/{NAME}) cannot be read: restore "
                "it, or remove the data folder and let all be copied anew"
            )
        self.disk_id, self._kept = found


def _encoded(log_id: bytes, kept: KeptPromise) -> bytes:
    name = kept.candidate.encode()
    return _ENTRY.pack(log_id, kept.epoch, len(name)) + name


def _decode(data: bytes) -> tuple[str, dict[bytes, KeptPromise]] | None:
    if len(data) < _ENTRIES_AT:
        return None
    magic, disk_id, count = _HEAD.unpack_from(data)
    (expected,) = _CRC.unpack_from(data, _HEAD.size)
    entries = data[_ENTRIES_AT:]
    if magic not in (_MAGIC, _MAGIC_1) or crc32c(data[: _HEAD.size] + entries) != expected:
        return None
    try:
        kept = dict(_entries(entries) if magic == _MAGIC else _entries_1(entries))
    except (struct.error, UnicodeDecodeError):
        return None
    return (disk_id.hex(), kept) if len(kept) == count else None


def _entries(data: bytes) -> Iterator[tuple[bytes, KeptPromise]]:
    at = 0
    while at < len(data):
        log_id, epoch, size = _ENTRY.unpack_from(data, at)
        at += _ENTRY.size
        yield log_id, KeptPromise(Epoch(epoch), data[at : at + size].decode())
        at += size


def _entries_1(data: bytes) -> Iterator[tuple[bytes, KeptPromise]]:
    """Yield those of version 1, which did not say whose the epochs are."""
    for log_id, epoch in _ENTRY_1.iter_unpack(data):
        yield log_id, KeptPromise(Epoch(epoch))


def open_promises(data_folder: Path) -> Promises:
    """Open the promises of the node whose data is in a folder, or begin them."""
    return Promises(OsFolder(data_folder / FOLDER), new_disk_id=os.urandom(DISK_ID_BYTES))
