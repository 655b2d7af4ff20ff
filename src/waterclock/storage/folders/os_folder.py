"""The operating system's disk: files written by position, read through memory maps.

Writes go out with one `pwritev`, so a header and a borrowed Arrow buffer reach the page cache with
no copy of ours. Reads slice one read-only map per file; the map lives as long as any slice of it,
so views outlast growth, rename, removal and close. Only a cut is felt: bytes past a `truncate`
must not be touched again, the kernel answers SIGBUS. A device that cannot read a mapped page
answers the same way.

One thread owns a file; `sync` alone may be called from others, and a file closed meanwhile keeps
its descriptor until the sync returns, so the number is never reused under it. One open `OsFile`
per file may change its size: sizes are tracked, not asked for.
"""

import contextlib
import errno
import fcntl
import os
import stat
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from waterclock.model.errors import (
    BadInput,
    Closed,
    FolderInUse,
    ForeignFile,
    StorageError,
    StorageFailed,
    StorageFull,
)
from waterclock.storage.folders.folder import Bytes
from waterclock.storage.folders.mapped_file import MappedFile
from waterclock.storage.folders.parts import after, byte_count
from waterclock.storage.folders.write_out import write_out

LOCK_NAME = "LOCK"
"""The entry `lock` writes its process id to; listed by `names`, refused by the rest."""

LOCK_BYTES = 32
"""How long that is, whatever the number."""
FILE_MODE = 0o640
FOLDER_MODE = 0o750
PARTS_MAX = os.sysconf("SC_IOV_MAX")

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Shortages that pass: of space, of descriptors, of memory."""
NO_FOLDER_LOCK = frozenset({errno.EBADF, errno.EOPNOTSUPP, errno.EINVAL, errno.EISDIR})
NOT_SUPPORTED = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})


def check_name(name: str) -> None:
    """Raise BadInput unless `name` is one entry of a folder, and not the lock."""
    if name in ("", ".", "..", LOCK_NAME) or "/" in name or "\0" in name:
        raise BadInput(f"{name!r} cannot name a file in a folder")


def sync_descriptor(number: int) -> None:
    """Make what is behind a descriptor durable, down to the medium."""
    if sys.platform == "darwin":  # fsync there stops at the drive's cache
        fcntl.fcntl(number, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(number)


class Descriptor:
    """A descriptor the owner uses freely and other threads only inside `with`.

    Its number is given back to the system when it is closed *and* nobody is inside.
    """

    def __init__(self, number: int, label: str) -> None:
        self._number = number
        self._label = label
        self._mutex = threading.Lock()
        self._users = 0
        self._closed = False

    def number(self) -> int:
        """Return the number, for use by the thread that closes; raise Closed after that."""
        if self._closed:
            raise Closed(f"{self._label} is closed")
        return self._number

    def __enter__(self) -> int:
        with self._mutex:
            number = self.number()
            self._users += 1
            return number

    def __exit__(self, *_: object) -> None:
        with self._mutex:
            self._users -= 1
            self._release()

    def close(self) -> None:
        """Refuse new use; release now, or when the last user leaves. Again is harmless."""
        with self._mutex:
            if not self._closed:
                self._closed = True
                self._release()

    def link_count(self) -> int:
        """Return how many names the file has; from any thread, as that waits for no disk."""
        with self._mutex:
            return os.fstat(self.number()).st_nlink

    @property
    def is_closed(self) -> bool:
        return self._closed

    def _release(self) -> None:
        if self._closed and self._users == 0:
            os.close(self._number)


class OsFile:
    """An open regular file; see `waterclock.storage.folders.folder.File`."""

    def __init__(self, name: str, path: Path | str, number: int) -> None:
        self.name = name
        self._path = path
        self._descriptor = Descriptor(number, str(path))
        found = os.fstat(number)
        self._size = found.st_size
        self.device = found.st_dev
        """The number of the file system it lies on."""
        self._has_links = found.st_nlink > 0  # not all file systems tell
        self._map = memoryview(b"")

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else f"{self._size} bytes"
        return f"<OsFile {self.name} {state}>"

    @property
    def is_closed(self) -> bool:
        return self._descriptor.is_closed

    @property
    def descriptor(self) -> Descriptor:
        """For readers on other threads: inside `with` the bytes stay, whatever happens to the
        name, and an unreadable sector is an error, where a view of it would end the process."""
        return self._descriptor

    def size(self) -> int:
        return self._size

    def write(self, position: int, parts: Sequence[Bytes]) -> None:
        """Write all parts, in one system call unless the system takes less."""
        assert position >= 0, f"write to {self._path} at {position}"
        number = self._descriptor.number()
        wanted = byte_count(parts[0]) if len(parts) == 1 else sum(map(byte_count, parts))
        if wanted == 0:
            return
        rest = parts
        try:
            while True:
                if len(rest) == 1:  # half the time of a list
                    written = os.pwrite(number, rest[0], position)
                else:
                    written = os.pwritev(number, rest[:PARTS_MAX], position)
                position += written
                if position > self._size:
                    self._size = position
                wanted -= written
                if wanted == 0:
                    return
                if written == 0:
                    raise OSError(errno.EIO, "the system took no bytes")
                rest = after(rest, written)
        except OSError as error:
            raise self._error("write", error, full=True) from error

    def view(self, start: int, end: int) -> memoryview:
        number = self._descriptor.number()
        assert 0 <= start <= end <= self._size, f"view [{start}, {end}) of {self!r}"
        if end > len(self._map):
            try:
                if os.fstat(number).st_size < self._size:  # to read there would end the process
                    raise StorageFailed(f"map {self._path}: it was cut short behind our back")
                self._map = MappedFile(number, self._size).view()
            except OSError as error:
                raise StorageFailed(f"map {self._path}: {error}") from error
        return self._map[start:end]

    def allocate(self, size: int) -> None:
        number = self._descriptor.number()
        if size <= self._size:
            return
        try:
            reserve(number, self._size, size)
        except OSError as error:
            # A file system may keep what it reserved before it ran out.
            with contextlib.suppress(OSError):
                os.ftruncate(number, self._size)
            raise self._error("allocate", error, full=True) from error
        self._size = size

    def truncate(self, size: int) -> None:
        """Shrink to `size`; views that reach past it must not be touched there again."""
        number = self._descriptor.number()
        assert 0 <= size <= self._size, f"truncate {self!r} to {size}"
        try:
            os.ftruncate(number, size)
        except OSError as error:
            raise self._error("truncate", error) from error
        self._size = size

    def write_out(self, start: int, end: int, *, waits: bool) -> None:
        with self._descriptor as number:
            try:
                write_out(number, start, end, waits=waits)
            except OSError as error:
                raise self._error("write out", error) from error

    def sync(self) -> None:
        """Make all written so far durable; never reported full, for nothing can be retried.

        What was deleted meanwhile is not durable: nobody will find it.
        """
        code = 0
        with self._descriptor as number:
            try:
                sync_descriptor(number)
            except OSError as error:
                code = error.errno or errno.EIO
            self.synced(number, code)

    def synced(self, number: int, code: int) -> None:
        """Raise what `sync` does after the system has tried it; within its `descriptor`."""
        try:
            if code:
                raise OSError(code, os.strerror(code))
            links = os.fstat(number).st_nlink
        except OSError as error:
            raise self._error("sync", error) from error
        if not links:
            self._check_links(links)

    def check_kept(self) -> None:
        """Raise StorageFailed if it was deleted: all that is left to know of a file whose whole
        file system was synced. May be called from another thread, as `sync`."""
        try:
            links = self._descriptor.link_count()
        except OSError as error:
            raise self._error("sync", error) from error
        self._check_links(links)

    def _check_links(self, links: int) -> None:
        if not links and self._has_links:
            raise StorageFailed(f"sync {self._path}: it was deleted while it was in use")

    def close(self) -> None:
        """Release the file; the map goes with its last view."""
        self._descriptor.close()
        self._map = memoryview(b"")

    def _error(self, verb: str, error: OSError, *, full: bool = False) -> StorageError:
        return _translated(verb, self._path, error, full=full)


class OsFolder:
    """A directory of the system, made if missing; see `storage.folders.folder.Folder`."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        is_durable: bool = False,
        is_deferred: bool = False,
    ) -> None:
        """`is_durable`: its name was made durable before, or need not be; that takes an fsync.

        `is_deferred`: its name, and those of the parents it has to make, become durable with the
        first `sync`.
        """
        self.path = Path(os.path.abspath(path))
        self._prefix = f"{self.path}{os.sep}"
        self._unsynced: list[Path] = []
        """Parents of folders that were made, whose names are not durable yet."""
        self._files: list[OsFile] = []
        self._is_locked = False
        self._lock: int | None = None
        """The descriptor of `LOCK`, where the lock is on that."""
        try:
            if is_deferred:
                self._unsynced = _make_deferred(self.path)
            elif is_durable:
                make_folders(self.path)
            else:
                _make_durably(self.path)
            number = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (NotADirectoryError, FileExistsError) as error:
            raise ForeignFile(f"{error.filename} is not a folder; move it away") from error
        except OSError as error:
            raise _translated("open folder", self.path, error, full=True) from error
        self._descriptor = Descriptor(number, str(self.path))

    def __repr__(self) -> str:
        return f"<OsFolder {self.path}{' locked' if self._is_locked else ''}>"

    def lock(self) -> None:
        """Take the folder until `close` or the end of the process; again is harmless."""
        self._descriptor.number()
        if self._is_locked:
            return
        number = self._open(LOCK_NAME, os.O_CREAT)
        try:
            is_on_folder = self._take(number)
        except BlockingIOError as error:
            owner = os.pread(number, LOCK_BYTES, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(number)
            raise FolderInUse(
                f"{self.path} is in use by process {owner}: stop it, or use another folder"
            ) from error
        except OSError as error:
            os.close(number)
            raise _translated("lock", self.path, error) from error
        self._is_locked = True
        # The id is for people; a full disk must not keep a node from starting to read.
        with contextlib.suppress(OSError):
            os.pwrite(number, f"{os.getpid()}\n".ljust(LOCK_BYTES).encode(), 0)
            # To change a length takes milliseconds, for each partition of a node: seldom, then.
            if os.fstat(number).st_size != LOCK_BYTES:
                os.ftruncate(number, LOCK_BYTES)
        if is_on_folder:
            os.close(number)
        else:
            self._lock = number

    def _take(self, number: int) -> bool:
        """Lock the folder itself: that takes no descriptor more. Return False if it was `LOCK`."""
        # Earlier releases lock this alone, and so do we where a folder cannot be locked (NFS).
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(self._descriptor.number(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in NO_FOLDER_LOCK:
                raise
            return False
        return True

    def names(self) -> list[str]:
        try:
            return sorted(os.listdir(self._descriptor.number()))
        except OSError as error:
            raise _translated("list", self.path, error, full=True) from error

    def create(self, name: str) -> OsFile:
        check_name(name)
        return self._opened(name, self._open(name, os.O_CREAT | os.O_EXCL))

    def open(self, name: str) -> OsFile:
        check_name(name)
        return self._opened(name, self._open(name, 0))

    def rename(self, old: str, new: str) -> None:
        check_name(old)
        check_name(new)
        number = self._descriptor.number()
        try:
            os.rename(old, new, src_dir_fd=number, dst_dir_fd=number)
        except OSError as error:
            raise _translated("rename", self.path / old, error, full=True) from error

    def remove(self, name: str) -> None:
        check_name(name)
        try:
            os.unlink(name, dir_fd=self._descriptor.number())
        except OSError as error:
            raise _translated("remove", self.path / name, error) from error

    def sync(self) -> None:
        with self._descriptor as number:
            try:
                for parent in self._unsynced:
                    _sync_folder(parent)
                os.fsync(number)
            except OSError as error:
                raise _translated("sync", self.path, error) from error
        self._unsynced = []

    def close(self) -> None:
        """Close all files opened here, then let the lock go. `LOCK` stays: removal would race."""
        for file in self._files:
            file.close()
        self._files.clear()
        if self._is_locked:
            self._is_locked = False
            # Not left to the close: a forked child may hold a copy of the descriptor.
            held = self._descriptor.number() if self._lock is None else self._lock
            fcntl.flock(held, fcntl.LOCK_UN)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        self._descriptor.close()

    def _opened(self, name: str, number: int) -> OsFile:
        self._files = [file for file in self._files if not file.is_closed]
        file = OsFile(name, f"{self._prefix}{name}", number)
        self._files.append(file)
        return file

    def _open(self, name: str, flags: int) -> int:
        """Open a regular file and nothing else: no link is followed, no device woken."""
        folder = self._descriptor.number()
        path = f"{self._prefix}{name}"
        flags |= os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            if not flags & os.O_EXCL:
                _check_regular(folder, name, path, may_miss=bool(flags & os.O_CREAT))
            return os.open(name, flags, FILE_MODE, dir_fd=folder)
        except OSError as error:
            verb = "create" if flags & os.O_CREAT else "open"
            raise _translated(verb, path, error, full=True) from error


def _check_regular(folder: int, name: str, path: str, *, may_miss: bool) -> None:
    try:
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        if may_miss:
            return
        raise
    if not stat.S_ISREG(mode):
        raise ForeignFile(f"{path} is not a regular file ({stat.filemode(mode)}); move it away")


def _translated(verb: str, path: Path | str, error: OSError, *, full: bool = False) -> StorageError:
    """Return our error for the system's; StorageFull only where the caller may try again."""
    kind = StorageFull if full and error.errno in FULL else StorageFailed
    return kind(f"{verb} {path}: {error.strerror or error}")


def reserve(number: int, start: int, end: int) -> None:
    """Grow a file with blocks behind it where the system can, with a hole where it cannot."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(number, start, end - start)
        except OSError as error:
            if error.errno not in NOT_SUPPORTED:
                raise
        else:
            return
    os.ftruncate(number, end)


def make_folders(path: Path) -> None:
    """Make a folder and its missing parents, each for us and our group alone: the system would give
    parents the mode that everybody may read."""
    if not path.is_dir():
        if path.parent != path:
            make_folders(path.parent)
        path.mkdir(FOLDER_MODE, exist_ok=True)


def _make_deferred(path: Path) -> list[Path]:
    """Make a folder and its missing parents; return the folders that must be synced for them."""
    try:
        path.mkdir(FOLDER_MODE)
    except FileNotFoundError:
        above = _make_deferred(path.parent)
        path.mkdir(FOLDER_MODE, exist_ok=True)
        return [*above, path.parent]
    except FileExistsError:  # perhaps made by another just now
        if not path.is_dir():
            raise
    return [path.parent]


def _make_durably(path: Path) -> None:
    """Make a folder and its missing parents, each durable in its own parent."""
    exists = path.is_dir()
    if not exists:
        if path.parent != path:
            _make_durably(path.parent)
        with contextlib.suppress(FileExistsError):  # made by another meanwhile, or not a folder
            path.mkdir(FOLDER_MODE)
    try:
        _sync_folder(path.parent)
    except PermissionError:
        if not exists:
            raise


def _sync_folder(path: Path) -> None:
    number = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)
