"""The file system that a node's folders lie on: what was written to many of its files, synced once.

`syncfs(2)` writes out all that is dirty on a file system, ours or not, and commits its journal. It
is used only where it is known to mean what an fsync of each file means:

- On Linux from 5.17 on: before 5.8 it told of no failed write, and before 5.17 of no failed commit.
- On ext4, XFS and Btrfs. Others, those over a network or in user space above all, may take it for
  a wish.

A descriptor hears of each error of the file system once, whichever file it was in. So after a
failure nobody may ask here again: an error that was meant for another would be gone. Each file
still tells of its own. Not all of them empty the drive's cache when there was nothing to commit,
so one of the files is synced last, which does. And ext4 took a sync for done, without an error, on
a file system that was shut down: an fsync of a file says what is wrong there.
"""

import contextlib
import ctypes
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from waterclock.model.errors import Closed, StorageFailed
from waterclock.storage.folders.folder import File
from waterclock.storage.folders.os_folder import OsFile

KINDS = frozenset({"ext4", "xfs", "btrfs"})
KERNEL_MIN = (5, 17)
MOUNTS = Path("/proc/self/mountinfo")


class OsFileSystem:
    """A file system of the system; find one with `file_system_at`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._number = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._device = os.fstat(self._number).st_dev
        self._libc = ctypes.CDLL(None, use_errno=True)

    def __repr__(self) -> str:
        return f"<OsFileSystem of {self._path}>"

    def sync(self, files: Sequence[File]) -> list[StorageFailed | None]:
        """Make all that was written to these files durable; say of each what went wrong."""
        if self._libc.syncfs(self._number):
            reason = os.strerror(ctypes.get_errno())
            raise StorageFailed(f"sync the file system of {self._path}: {reason}")
        errors: list[StorageFailed | None] = []
        is_flushed, device = False, self._device
        for file in files:
            assert isinstance(file, OsFile)
            try:
                # What lies elsewhere, on a mount below this one, was not covered.
                is_covered = file.device == device
                if is_covered and is_flushed:
                    file.check_kept()
                else:
                    file.sync()
                    is_flushed = is_flushed or is_covered
            except StorageFailed as error:
                errors.append(error)
                continue
            except Closed:
                pass  # it was sealed, and so durable, before that
            errors.append(None)
        return errors

    def covers(self, file: File) -> bool:
        """Tell whether it lies here, and not on a mount below."""
        assert isinstance(file, OsFile)
        return file.device == self._device

    def close(self) -> None:
        """Let go of it."""
        os.close(self._number)


def file_system_at(path: Path) -> OsFileSystem | None:
    """Return the file system of a folder, made or to be made, if it syncs many files at once."""
    if sys.platform != "linux" or _kernel() < KERNEL_MIN:
        return None
    path = nearest(path)
    with contextlib.suppress(OSError):
        if kind_of(os.stat(path).st_dev) in KINDS:
            return OsFileSystem(path)
    return None


def nearest(path: Path) -> Path:
    """Return a folder, or the one above it that there is if it is yet to be made."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _kernel() -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def kind_of(device: int) -> str:
    """Return the type of a mounted file system; empty if no mount is known by that number."""
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in MOUNTS.read_text().splitlines():
        fields = line.split()
        if fields[2] == number:
            return fields[fields.index("-") + 1]
    return ""
