"""The one door to the file system: a folder of files, real or simulated.

All storage code speaks to `Folder` and `File`; `OsFolder` is the operating system, and
`tests.kit.disk.SimulatedFolder` is a disk that loses, tears and flips bytes. Both pass
the same contract suite (`tests/contracts/test_disk.py`).

Rules every implementation keeps:
- Bytes written but not synced may be lost or torn by a crash; synced bytes may not.
- A created, renamed or removed name is durable only after `Folder.sync()`.
- A view handed out by `File.view` stays valid (though not current) until it is released, whatever
  happens to the file, except past a later `truncate`: bytes beyond the cut must not be touched.
- Errors leave as `StorageFull`, `StorageFailed`, `FolderInUse`, `ForeignFile`, `Closed` or
  `BadInput`, never as OSError.
"""

from collections.abc import Sequence
from typing import Protocol

from waterclock.model.errors import StorageFull
from waterclock.storage.folders.parts import Bytes
from waterclock.storage.folders.write_out import write_in_steps

__all__ = ["TEMPORARY", "Bytes", "File", "Folder", "create_temporary", "write_whole"]

TEMPORARY = ".tmp"
"""Ending of files that are being written; whatever bears it after a crash was never finished."""


class File(Protocol):
    """An open file, written at explicit positions and read through views."""

    name: str

    def size(self) -> int:
        """Return the length in bytes, preallocated zeros included."""
        ...

    def write(self, position: int, parts: Sequence[Bytes]) -> None:
        """Write all parts at `position`, or raise; after a raise the range is undefined."""
        ...

    def view(self, start: int, end: int) -> memoryview:
        """Return [start, end) without copying; it must lie within `size()`."""
        ...

    def allocate(self, size: int) -> None:
        """Grow to `size`, reading as zeros; StorageFull leaves the file as it was."""
        ...

    def truncate(self, size: int) -> None:
        """Shrink to `size`."""
        ...

    def write_out(self, start: int, end: int, *, waits: bool) -> None:
        """Have the disk take [start, end) now, and perhaps wait until it has. Only `sync` makes
        it durable, and what was raised here it need not tell again. From any thread."""
        ...

    def sync(self) -> None:
        """Make all written bytes and the size durable. May be called from another thread."""
        ...

    def close(self) -> None:
        """Release the file; views handed out stay valid."""
        ...


class Folder(Protocol):
    """One directory, owned by one process."""

    def lock(self) -> None:
        """Take the folder for this process, or raise FolderInUse naming who has it."""
        ...

    def names(self) -> list[str]:
        """Return the names of all entries, sorted."""
        ...

    def create(self, name: str) -> File:
        """Create an empty file; a file of that name must not exist."""
        ...

    def open(self, name: str) -> File:
        """Open an existing file for reading and writing."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Rename atomically, replacing `new` if it exists."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file; views of it stay valid."""
        ...

    def sync(self) -> None:
        """Make creates, renames and removes durable."""
        ...

    def close(self) -> None:
        """Release the lock and all that is held."""
        ...


def create_temporary(folder: Folder, name: str) -> File:
    """Create the file that will become `name`; one left by an attempt that failed makes room."""
    if name + TEMPORARY in folder.names():
        folder.remove(name + TEMPORARY)
    return folder.create(name + TEMPORARY)


def write_whole(folder: Folder, name: str, parts: list[Bytes]) -> None:
    """Write a file that is either there whole or not at all. Sync the folder after it."""
    file = create_temporary(folder, name)
    try:
        file.allocate(sum(len(part) for part in parts))
        write_in_steps(file, 0, parts)
        file.sync()
        folder.rename(name + TEMPORARY, name)
    except StorageFull:
        folder.remove(name + TEMPORARY)
        raise
    finally:
        file.close()
