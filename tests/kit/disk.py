"""A disk in memory that loses, tears, flips, fills up and lies; the real storage code runs on it.

`SimulatedFolder` keeps the contract of `storage.folders.folder.Folder` and nothing more than the
contract: bytes live in a page cache until `File.sync`, names in a journal until `Folder.sync`, and
`crash` hands back a new folder with what a power cut could have left. All chance comes in through
`choose`, so a seed or Hypothesis decides, replays and shrinks.

What it models, harsher than any one file system and no harsher than all of them together:
- un-synced sectors survive one by one, sizes on their own (see `platter`);
- creates, renames and removes survive as a prefix, in order (see `medium`); syncing a file does
  not sync its name;
- after a failed fsync the lost pages count as clean: the next fsync succeeds and saves nothing
  (Rebello et al., "Can Applications Recover from fsync Failures?", ATC 2020).
"""

from collections.abc import Callable, Sequence

from tests.kit.medium import Created, DiskCounters, Medium, Removed, Renamed
from tests.kit.platter import Choose, Platter
from waterclock.model.errors import Closed, FolderInUse, StorageError, StorageFailed, StorageFull
from waterclock.storage.folders.folder import Bytes, File
from waterclock.storage.folders.os_folder import LOCK_NAME, check_name

__all__ = [
    "Choose",
    "DiskCounters",
    "SimulatedFile",
    "SimulatedFileSystem",
    "SimulatedFolder",
    "keep_all",
    "lose_all",
]

SECTOR_BYTES = 512


def lose_all(count: int) -> int:
    """Choose the crash after which nothing un-synced is left."""
    return 0


def keep_all(count: int) -> int:
    """Choose the crash that takes nothing."""
    return count - 1


class SimulatedFile:
    """An open file of a `SimulatedFolder`; see `waterclock.storage.folders.folder.File`."""

    def __init__(self, name: str, platter: Platter, medium: Medium) -> None:
        self.name = name
        self._platter = platter
        self._medium = medium
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self._platter.size} bytes"
        return f"<SimulatedFile {self.name} {state}>"

    @property
    def is_closed(self) -> bool:
        return self._closed

    def size(self) -> int:
        return self._platter.size

    def write(self, position: int, parts: Sequence[Bytes]) -> None:
        """Write, or as much of it as the capacity or `fail_next_write` allows, then raise."""
        assert position >= 0, f"write to {self.name} at {position}"
        data = b"".join(parts)
        medium = self._medium
        with medium.mutex:
            self._check_open()
            allowed, error = self._allowed(position, len(data))
            if allowed:
                self._platter.write(position, data[:allowed])
            medium.counters.writes += 1
            medium.counters.bytes_written += allowed
        if error is not None:
            raise error

    def view(self, start: int, end: int) -> memoryview:
        with self._medium.mutex:
            self._check_open()
            size = self._platter.size
            assert 0 <= start <= end <= size, f"view [{start}, {end}) of {self.name}, size {size}"
            return self._platter.view(start, end)

    def allocate(self, size: int) -> None:
        with self._medium.mutex:
            self._check_open()
            grown, free = size - self._platter.size, self._medium.free_bytes()
            if free is not None and grown > free:
                raise StorageFull(f"allocate {self.name}: {grown} bytes wanted, {free} left")
            if grown > 0:
                self._platter.resize(size)

    def truncate(self, size: int) -> None:
        """Shrink to `size`; old views show poison past it, where real ones would bite."""
        with self._medium.mutex:
            self._check_open()
            old = self._platter.size
            assert 0 <= size <= old, f"truncate {self.name} from {old} to {size}"
            self._platter.resize(size)

    def write_out(self, start: int, end: int, *, waits: bool) -> None:
        """Do nothing: what is not synced may be lost, wherever it is."""
        with self._medium.mutex:
            self._check_open()
            assert 0 <= start <= end <= self._platter.size

    def sync(self) -> None:
        """Make durable what was written before this call began, faults permitting.

        `on_sync` runs in the middle: what it writes is not covered, as on a real disk.
        """
        mark = self.begin_sync()
        if self._medium.on_sync is not None:
            self._medium.on_sync(self.name)
        self.end_sync(mark)

    def begin_sync(self) -> int:
        """Note what was written before now; you must call `end_sync` with that."""
        with self._medium.mutex:
            self._check_open()
            self._medium.counters.syncs += 1
            return self._platter.mark()

    def end_sync(self, mark: int) -> None:
        """Make what was noted durable, faults permitting; also if it was closed meanwhile."""
        medium, platter = self._medium, self._platter
        faults = medium.faults
        with medium.mutex:
            if faults.sync_fails or platter.has_error:
                if faults.sync_fails and faults.sync_drops:
                    platter.forget(mark)
                faults.sync_fails = platter.has_error = False
                raise StorageFailed(f"sync {self.name}: simulated failure")
        error = self._settle(mark)
        if error is not None:
            raise error

    def _settle(self, mark: int) -> StorageFailed | None:
        """Make changes durable; return what is wrong with the file nevertheless."""
        medium, platter = self._medium, self._platter
        with medium.mutex:
            if not medium.faults.lie_on_sync:
                medium.counters.bytes_synced += platter.settle(mark)
            if any(each is platter for each in medium.names.values()):
                return None
        return StorageFailed(f"sync {self.name}: it was deleted while it was in use")

    def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"{self.name} is closed")

    def _allowed(self, position: int, wanted: int) -> tuple[int, StorageError | None]:
        """Return how many bytes the disk takes, and the error to raise after them."""
        faults = self._medium.faults
        if faults.write_fails_after is not None:
            allowed = min(wanted, faults.write_fails_after)
            faults.write_fails_after = None
            return allowed, StorageFailed(f"write {self.name}: simulated failure")
        free = self._medium.free_bytes()
        if free is None or position + wanted <= self._platter.size + free:
            return wanted, None
        allowed = max(0, self._platter.size + free - position)
        return allowed, StorageFull(f"write {self.name}: {wanted} bytes wanted, {allowed} fit")


class SimulatedFileSystem:
    """What several simulated folders lie on; see `waterclock.storage.fsyncs.FileSystem`.

    As `syncfs` does, it tells of each error once, whichever file it was in; the file itself tells
    of it too.
    """

    def __init__(self) -> None:
        self.has_error = False
        self.syncs = 0

    def fail_write_back(self, file: "SimulatedFile") -> None:
        """Drop what was written to a file and not synced yet, before anybody asks for it."""
        with file._medium.mutex:
            file._platter.forget(file._platter.mark())
            file._platter.has_error = self.has_error = True

    def sync(self, files: Sequence[File]) -> list[StorageFailed | None]:
        """Make durable what was written before this call began, or raise."""
        self.syncs += 1
        marks = []
        for file in files:
            assert isinstance(file, SimulatedFile)
            with file._medium.mutex:
                marks.append((file, file._platter.mark()))
        for file, _ in marks:
            if file._medium.on_sync is not None:
                file._medium.on_sync(file.name)
        if self.has_error:
            self.has_error = False
            raise StorageFailed("sync of the file system: simulated failure")
        return [None if file.is_closed else file._settle(mark) for file, mark in marks]

    def covers(self, file: File) -> bool:
        """Tell that names are not: a folder of this disk is synced for itself."""
        return False

    def close(self) -> None:
        """There is nothing to let go of."""


class SimulatedFolder:
    """A handle on one simulated disk; see `storage.folders.folder.Folder`.

    Closing it ends the process, not the machine: `reopen` finds the page cache as it was, synced
    or not. `crash` ends the machine.
    """

    def __init__(
        self, *, capacity_bytes: int | None = None, sector_bytes: int = SECTOR_BYTES
    ) -> None:
        self._medium = Medium(sector_bytes, capacity_bytes)
        self._files: list[SimulatedFile] = []
        self._closed = False

    def __repr__(self) -> str:
        return f"<SimulatedFolder on {self._medium!r}>"

    def lock(self) -> None:
        """Take the folder until this handle is closed; again is harmless."""
        with self._medium.mutex:
            self._check_open()
            if self._medium.owner not in (None, self):
                raise FolderInUse("the simulated folder is locked by another handle: close it")
            self._medium.owner = self
            if LOCK_NAME not in self._medium.names:
                self._medium.engrave(LOCK_NAME, self._medium.blank())

    def names(self) -> list[str]:
        with self._medium.mutex:
            self._check_open()
            return sorted(self._medium.names)

    def create(self, name: str) -> SimulatedFile:
        check_name(name)
        with self._medium.mutex:
            self._check_open()
            if name in self._medium.names:
                raise StorageFailed(f"create {name}: the file exists")
            platter = self._medium.blank()
            self._medium.change(Created(name, platter))
            return self._opened(name, platter)

    def open(self, name: str) -> SimulatedFile:
        check_name(name)
        with self._medium.mutex:
            return self._opened(name, self._existing("open", name))

    def rename(self, old: str, new: str) -> None:
        check_name(old)
        check_name(new)
        with self._medium.mutex:
            self._existing("rename", old)
            self._medium.change(Renamed(old, new))

    def remove(self, name: str) -> None:
        check_name(name)
        with self._medium.mutex:
            self._existing("remove", name)
            self._medium.change(Removed(name))

    def sync(self) -> None:
        medium = self._medium
        with medium.mutex:
            self._check_open()
            mark = medium.mark()
            medium.counters.folder_syncs += 1
        if medium.on_sync is not None:
            medium.on_sync(".")
        with medium.mutex:
            if medium.faults.folder_sync_fails:
                medium.faults.folder_sync_fails = False
                raise StorageFailed("sync of the folder: simulated failure")
            if not medium.faults.lie_on_sync:
                medium.settle(mark)

    def close(self) -> None:
        """Close all files opened here and let the lock go; nothing is synced by it."""
        with self._medium.mutex:
            self._closed = True
            for file in self._files:
                file.close()
            self._files.clear()
            if self._medium.owner is self:
                self._medium.owner = None

    # The faults.

    def crash(self, choose: Choose = lose_all) -> "SimulatedFolder":
        """Return a new folder with what a power cut now could leave; this one goes on untouched.

        Nothing in the new folder is pending, locked, faulty or counted; the capacity stays.
        """
        with self._medium.mutex:
            return self._on(self._medium.survivor(choose))

    def reopen(self) -> "SimulatedFolder":
        """Return another handle on the same disk, as a second or a later process has it.

        It shares the page cache, the faults and the counters; close this handle first, or the
        other cannot lock.
        """
        return self._on(self._medium)

    def flip(self, name: str, position: int, bit: int) -> None:
        """Flip one bit of a file, as rot does: on the medium and for all readers."""
        with self._medium.mutex:
            self._existing("flip", name).flip(position, bit)

    def fail_next_sync(self, *, drop: bool = True) -> None:
        """Make the next `File.sync` raise; with `drop`, what it covered counts as clean after.

        Dropped bytes stay readable and are made durable by no later sync, unless written again.
        """
        self._medium.faults.sync_fails = True
        self._medium.faults.sync_drops = drop

    def fail_no_sync(self) -> None:
        """Take `fail_next_sync` back, if it has not struck."""
        self._medium.faults.sync_fails = False

    def fail_next_folder_sync(self) -> None:
        """Make the next `Folder.sync` raise; the names stay pending."""
        self._medium.faults.folder_sync_fails = True

    def fail_next_write(self, *, after_bytes: int = 0) -> None:
        """Make the next write raise StorageFailed once `after_bytes` of it are written."""
        self._medium.faults.write_fails_after = after_bytes

    @property
    def lie_on_sync(self) -> bool:
        """Whether syncs of files and folder return without making anything durable."""
        return self._medium.faults.lie_on_sync

    @lie_on_sync.setter
    def lie_on_sync(self, lies: bool) -> None:
        self._medium.faults.lie_on_sync = lies

    @property
    def on_sync(self) -> Callable[[str], None] | None:
        """Called within each sync with the file's name (`.` for the folder); no lock is held."""
        return self._medium.on_sync

    @on_sync.setter
    def on_sync(self, hook: Callable[[str], None] | None) -> None:
        self._medium.on_sync = hook

    @property
    def capacity_bytes(self) -> int | None:
        """The size all named files may have together; None for no limit."""
        return self._medium.capacity_bytes

    @capacity_bytes.setter
    def capacity_bytes(self, capacity: int | None) -> None:
        self._medium.capacity_bytes = capacity

    @property
    def counters(self) -> DiskCounters:
        """What was done since this disk came to be, by all handles."""
        return self._medium.counters

    def durable_bytes(self, name: str) -> bytes | None:
        """Return what of `name` no crash can take, or None if the name itself may not survive."""
        with self._medium.mutex:
            return self._medium.durable_bytes(name)

    @classmethod
    def _on(cls, medium: Medium) -> "SimulatedFolder":
        folder = cls()
        folder._medium = medium
        return folder

    def _opened(self, name: str, platter: Platter) -> SimulatedFile:
        self._files = [file for file in self._files if not file.is_closed]
        file = SimulatedFile(name, platter, self._medium)
        self._files.append(file)
        return file

    def _existing(self, verb: str, name: str) -> Platter:
        self._check_open()
        platter = self._medium.names.get(name)
        if platter is None:
            raise StorageFailed(f"{verb} {name}: no such file")
        return platter

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the simulated folder is closed")
