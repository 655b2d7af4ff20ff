"""A folder to try things on: it shows another folder as it is, and keeps every change to itself.

To see what an opening would find and mend, open the log on an overlay: the code is the same, the
verdict is the same, and not a byte below is changed. Changes live in memory, so this is for
looking, not for work; a write that changes nothing (an opening makes sure of frames by writing
them once more) costs nothing.
"""

from collections.abc import Sequence

from waterclock.model.errors import StorageFailed
from waterclock.storage.folders.folder import Bytes, File, Folder


class OverlayFile:
    """A file below, until it is changed; then a copy of it in memory."""

    def __init__(self, name: str, below: File | None) -> None:
        self.name = name
        self._below = below
        self._copy = bytearray()
        self._size = 0 if below is None else below.size()

    def __repr__(self) -> str:
        return f"<OverlayFile {self.name} {self._size} bytes>"

    def size(self) -> int:
        """Return the length in bytes."""
        return self._size

    def write(self, position: int, parts: Sequence[Bytes]) -> None:
        """Write to the copy; bytes that are there already need none."""
        data = b"".join(parts)
        end = position + len(data)
        if end <= self._size and self.view(position, end) == data:
            return
        self._change(max(end, self._size))
        self._copy[position:end] = data

    def view(self, start: int, end: int) -> memoryview:
        """Return [start, end) of the file below, or of the copy."""
        assert 0 <= start <= end <= self._size
        if self._below is not None:
            return self._below.view(start, end)
        return memoryview(bytes(self._copy[start:end]))

    def allocate(self, size: int) -> None:
        """Grow to `size`, reading as zeros."""
        if size > self._size:
            self._change(size)

    def truncate(self, size: int) -> None:
        self._size = size
        del self._copy[size:]

    def _change(self, size: int) -> None:
        """Copy what is below, if that has not happened yet, and make it this long."""
        if self._below is not None:
            self._copy = bytearray(self._below.view(0, self._size))
            self._below = None
        self._copy.extend(bytes(size - len(self._copy)))
        self._size = size

    def write_out(self, start: int, end: int, *, waits: bool) -> None:
        """Do nothing: nothing here reaches a disk."""

    def sync(self) -> None:
        """Do nothing: nothing here is meant to last."""

    def close(self) -> None:
        """Do nothing: the folder below closes its files."""


class OverlayFolder:
    """A folder that reads from another one and writes nowhere."""

    def __init__(self, below: Folder) -> None:
        self._below = below
        self._files: dict[str, OverlayFile | None] = {}
        """Files opened, created or renamed here; None where one was taken away."""

    def __repr__(self) -> str:
        return f"<OverlayFolder on {self._below!r}>"

    def lock(self) -> None:
        self._below.lock()

    def names(self) -> list[str]:
        """Return the names of all entries, sorted."""
        here = {name for name, file in self._files.items() if file is not None}
        return sorted(here | (set(self._below.names()) - set(self._files)))

    def create(self, name: str) -> File:
        """Create an empty file, here only."""
        if name in self.names():
            raise StorageFailed(f"create {name}: it is there already")
        return self._keep(name, OverlayFile(name, None))

    def open(self, name: str) -> File:
        """Open a file, of here or below."""
        file = self._files.get(name)
        if file is None and name in self._files:
            raise StorageFailed(f"open {name}: no such file")
        return file or self._keep(name, OverlayFile(name, self._below.open(name)))

    def _keep(self, name: str, file: OverlayFile) -> OverlayFile:
        self._files[name] = file
        return file

    def rename(self, old: str, new: str) -> None:
        """Rename here only."""
        file = self.open(old)
        assert isinstance(file, OverlayFile)
        self._files[old] = None
        self._files[new] = file
        file.name = new

    def remove(self, name: str) -> None:
        """Remove here only."""
        self.open(name)
        self._files[name] = None

    def sync(self) -> None:
        """Do nothing: nothing here is meant to last."""

    def close(self) -> None:
        self._below.close()
