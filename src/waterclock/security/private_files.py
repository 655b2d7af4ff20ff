"""Files whose modes hold whatever the umask is, written whole or not at all.

A file is made under another name with its mode, flushed, and renamed into its place; then the
folder is flushed. Nobody sees half of one, and no moment has a key that others can read.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from waterclock.model.errors import BadInput

FOLDER_MODE = 0o750
PUBLIC_MODE = 0o640
SECRET_MODE = 0o600
_TEMPORARY = ".new"
_OTHERS = 0o007


def make_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing, each for us and our group alone."""
    if not path.parent.exists():
        make_folder(path.parent)
    path.mkdir(mode=0o700)
    path.chmod(FOLDER_MODE)


def write_file(path: Path, data: bytes, *, mode: int) -> None:
    """Put a file in its place, durable when this returns."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}{_TEMPORARY}")
    temporary.unlink(missing_ok=True)
    try:
        # Never more than its mode, so that no umask opens it for a moment; then no less.
        number = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with open(number, "wb") as file:
            os.fchmod(number, mode)
            file.write(data)
            file.flush()
            os.fsync(number)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_link(path: Path, target: str) -> None:
    """Point a symbolic link elsewhere, in one step that is durable when this returns."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}{_TEMPORARY}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    number = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other writers out of a folder meanwhile."""
    number = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(number, fcntl.LOCK_EX)
        yield
    finally:
        os.close(number)


def read_secret(path: Path) -> bytes:
    """Return what a file holds; raises BadInput if everyone on the machine can read it."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_mode & _OTHERS:
            raise BadInput(f"{path} is open to everyone on this machine: chmod 600 {path}")
        return file.read()
