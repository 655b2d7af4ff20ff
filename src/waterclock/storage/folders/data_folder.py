"""The folder with all of a node's data: whether it is still the one it was, and has room.

Files go on working after their folder was deleted, or moved away: the system keeps them until they
are closed, and then they are gone with all that was acknowledged in them. So somebody must look.
"""

import errno
import os
from pathlib import Path
from typing import NamedTuple

from waterclock.model.errors import StorageFailed
from waterclock.model.units import MIB
from waterclock.storage.folders.os_folder import FULL, reserve

ROOM_BYTES = 1 * MIB
"""With less the disk counts as full: a publish may need as much at once."""
ROOM_NAME = "room.tmp"
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE})


class DiskSpace(NamedTuple):
    """How large a disk is, and how much of it the node can have."""

    size_bytes: int
    free_bytes: int


class DataFolder:
    """The folders of a node, as they were when it was opened. May be asked on any thread."""

    def __init__(self, path: Path, *inner: str) -> None:
        """`inner` are the folders in it without which it is not the same, once they are there."""
        self.path = Path(os.path.abspath(path))
        self._known: dict[Path, tuple[int, int] | None] = {self.path: _identity(self.path)}
        self._known |= dict.fromkeys(self.path / name for name in inner)
        self.check()

    def __repr__(self) -> str:
        return f"<DataFolder {self.path}>"

    def check(self) -> str | None:
        """Raise StorageFailed if it was deleted, moved or replaced; return why that cannot be told
        at the moment, None if it can."""
        unseen = None
        for folder, known in tuple(self._known.items()):
            try:
                now = _identity(folder)
            except OSError as error:
                if error.errno not in _GONE:
                    unseen = f"{folder}: {error.strerror or error}"
                elif known is not None:
                    raise StorageFailed(_lost(folder, "is gone")) from error
                continue
            if known is None:
                self._known[folder] = now
            elif now != known:
                raise StorageFailed(_lost(folder, "is another one now"))
        return unseen

    def space(self) -> DiskSpace | None:
        """Return what the disk has, None if that cannot be told at the moment."""
        try:
            found = os.statvfs(self.path)
        except OSError:
            return None  # `check` says why
        return DiskSpace(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)

    def shortage(self) -> str | None:
        """Return why nothing can be written at the moment, None if it can; it is tried."""
        room = self.path / ROOM_NAME
        try:
            number = os.open(room, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                space = os.fstatvfs(number)
                # Where space cannot be reserved, a file may have holes: so the system is asked too.
                if space.f_bavail * space.f_frsize < ROOM_BYTES:
                    return f"{self.path} has less than {ROOM_BYTES >> 20} MiB free"
                reserve(number, 0, ROOM_BYTES)
            finally:
                os.close(number)
                os.unlink(room)
        except OSError as error:
            if error.errno in FULL:
                return f"{self.path}: {error.strerror}"
        return None


def _identity(folder: Path) -> tuple[int, int]:
    found = os.stat(folder)
    return found.st_dev, found.st_ino


def _lost(folder: Path, how: str) -> str:
    return (
        f"{folder} {how}, under the running node: what was stored there cannot be kept any more. "
        "Bring the folder back, or restore it from a copy; then start the node again"
    )
