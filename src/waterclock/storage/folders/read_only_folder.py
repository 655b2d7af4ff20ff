"""A log's folder for looking only: nothing in it is created, written, or given a new time.

For inspection of what may be damaged, in use, or a backup mounted read-only. The lock is taken
shared and leaves no trace, so that several may look at once while nobody writes; a folder without
a `LOCK` was never used where it lies, so there is nothing to wait for.

A memory map answers a bad sector by killing the process (SIGBUS). Whoever means to find bad sectors
calls `read_through` before looking at a file through a map: there the answer is an error.
"""

import fcntl
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from waterclock.model.errors import BadInput, FolderInUse, ForeignFile, StorageFailed
from waterclock.model.units import MIB
from waterclock.storage.folders.os_folder import LOCK_NAME, OsFile, check_name

_FLAGS = os.O_RDONLY | os.O_CLOEXEC
_READ_BYTES = 1 * MIB


class ReadOnlyFolder:
    """An existing directory; see `storage.folders.folder.Folder`. What changes it raises."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(os.path.abspath(path))
        self._files: list[OsFile] = []
        self._lock: int | None = None
        self._number: int | None = None
        try:
            self._number = os.open(self.path, _FLAGS | os.O_DIRECTORY)
        except FileNotFoundError as error:
            raise BadInput(f"{self.path} does not exist: name the folder of a log") from error
        except NotADirectoryError as error:
            raise BadInput(f"{self.path} is not a folder: name the folder of a log") from error
        except OSError as error:
            raise self._error("open folder", self.path, error) from error

    def __repr__(self) -> str:
        return f"<ReadOnlyFolder {self.path}{' locked' if self._lock is not None else ''}>"

    def __enter__(self) -> "ReadOnlyFolder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def lock(self) -> None:
        """Keep writers out until `close`, or raise FolderInUse; again is harmless."""
        if self._lock is not None or LOCK_NAME not in self.names():
            return
        assert self._number is not None, "closed"
        number = self._open(LOCK_NAME)
        try:
            # Writers lock the folder itself; earlier releases, and those on NFS, this file.
            fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.flock(self._number, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.pread(number, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(number)
            raise FolderInUse(
                f"{self.path} is in use by process {owner}: stop it first, or look at a copy"
            ) from error
        except OSError as error:
            os.close(number)
            raise self._error("lock", self.path, error) from error
        self._lock = number

    def names(self) -> list[str]:
        assert self._number is not None, "closed"
        try:
            return sorted(os.listdir(self._number))
        except OSError as error:
            raise self._error("list", self.path, error) from error

    def open(self, name: str) -> OsFile:
        """Open a file for reading; writing to it raises StorageFailed."""
        check_name(name)
        file = OsFile(name, self.path / name, self._open(name))
        self._files.append(file)
        return file

    def read_through(self, name: str, advance: Callable[[int], None]) -> None:
        """Read a file from start to end, telling how many bytes more were read."""
        buffer = bytearray(_READ_BYTES)
        position = 0
        number = self._open(name)
        try:
            while count := os.preadv(number, [buffer], position):
                position += count
                advance(count)
        except OSError as error:
            raise self._error(f"read byte {position} of", self.path / name, error) from error
        finally:
            os.close(number)

    def close(self) -> None:
        """Close all files opened here and let the lock go."""
        for file in self._files:
            file.close()
        self._files.clear()
        for number in (self._lock, self._number):
            if number is not None:
                os.close(number)
        self._lock = self._number = None

    def create(self, name: str) -> NoReturn:
        self._refuse(name)

    def rename(self, old: str, new: str) -> NoReturn:
        self._refuse(old)

    def remove(self, name: str) -> NoReturn:
        self._refuse(name)

    def sync(self) -> None:
        """Nothing was changed, so all of it is durable."""

    def _open(self, name: str) -> int:
        # No link is followed; no pipe waited for.
        flags = _FLAGS | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            number = os.open(name, flags, dir_fd=self._number)
        except OSError as error:
            raise self._error("open", self.path / name, error) from error
        mode = os.fstat(number).st_mode
        if not stat.S_ISREG(mode):
            os.close(number)
            raise ForeignFile(
                f"{self.path / name} is not a regular file ({stat.filemode(mode)}); move it away"
            )
        return number

    def _refuse(self, name: str) -> NoReturn:
        raise StorageFailed(f"{self.path / name}: the folder was opened for reading only")

    def _error(self, verb: str, path: Path, error: OSError) -> StorageFailed:
        return StorageFailed(f"{verb} {path}: {error.strerror or error}")
