"""The folder in which the snapshots of a topic lie: written so that a crash leaves whole ones only.

A snapshot is a folder of its own, and its manifest is written last, when every file and folder is
on disk: so a folder without a manifest is a compaction that did not end, and is swept away by the
next. Only one compaction works in a folder at a time: the lock goes with the process that holds it.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from waterclock.log.snapshot import MANIFEST, BadManifest, Manifest, SnapshotFile, parse_manifest
from waterclock.model.errors import Busy, StorageError

LOCK = ".lock"
FILE_MODE = 0o640
FOLDER_MODE = 0o750
"""As those of the node, whose group has to read them."""
WRITTEN = "written.json"
"""What the tasks wrote, left by the sink for the job; gone before there is a manifest."""


class SnapshotFolder:
    """The snapshots of one topic."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __repr__(self) -> str:
        return f"<SnapshotFolder {self.folder}>"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only compaction here for as long as the block lasts; raise Busy if one is."""
        make_folders(self.folder)
        number = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            try:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Busy(
                    f"another compaction works in {self.folder}: wait for it, or end it first"
                ) from None
            yield
        finally:
            os.close(number)

    def whole(self) -> dict[str, Manifest]:
        """Return the snapshots that are whole, the oldest first."""
        found = {}
        for path in sorted(self._folders()):
            manifest = read_whole(path)
            if manifest is not None and manifest.snapshot == path.name:
                found[path.name] = manifest
        return found

    def sweep(self) -> int:
        """Remove what compactions left that did not end; return how many folders."""
        leftovers = [path for path in self._folders() if not (path / MANIFEST).exists()]
        for path in leftovers:
            shutil.rmtree(path)
        return len(leftovers)

    def remove(self, snapshot: str) -> None:
        """Remove a snapshot: its manifest first, so that none is ever half there."""
        path = self.folder / snapshot
        (path / MANIFEST).unlink(missing_ok=True)
        sync_folder(path)
        shutil.rmtree(path)

    def _folders(self) -> list[Path]:
        if not self.folder.is_dir():
            return []
        return [path for path in self.folder.iterdir() if path.is_dir()]


def read_whole(folder: Path) -> Manifest | None:
    """Return the manifest of a snapshot whose files are all there; None if it is not whole."""
    try:
        manifest = parse_manifest((folder / MANIFEST).read_bytes())
        for partition in manifest.partitions:
            for file in partition.files:
                if (folder / file.path).stat().st_size != file.size_bytes:
                    return None
    except (OSError, BadManifest):
        return None
    return manifest


def partition_folder(folder: Path, partition: int) -> Path:
    """Return where the files of a partition are. Spark reads the number from the name."""
    return folder / f"partition={partition}"


def make_folders(path: Path) -> None:
    """Make a folder and its missing parents, for us and our group alone whatever the umask."""
    if not path.is_dir():
        make_folders(path.parent)
        path.mkdir(FOLDER_MODE, exist_ok=True)


def make_file(path: Path) -> None:
    """Make a file for whoever writes it by its name, for us and our group alone."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))


def file_name(first_offset: int, chance: str) -> str:
    """Return the name of a file that may hold rows from an offset on."""
    return f"{first_offset:020d}-{chance}.parquet"


def link_file(source: Path, target: Path, file: SnapshotFile) -> SnapshotFile:
    """Let a file of an older snapshot be one of a new one too: no bytes are copied if it can be."""
    make_folders((target / file.path).parent)
    try:
        os.link(source / file.path, target / file.path)
    except OSError:  # another file system, or one without links
        make_file(target / file.path)
        shutil.copyfile(source / file.path, target / file.path)
        sync_file(target / file.path)
    return file


def tell_written(folder: Path, files: Iterable[tuple[int, SnapshotFile]]) -> None:
    """Note which files count: of a task that ran twice, one attempt's."""
    rows = [
        [partition, file.path, file.rows, file.size_bytes, file.first_offset, file.last_offset]
        for partition, file in files
    ]
    write_durably(folder / WRITTEN, json.dumps(rows).encode())


def take_written(folder: Path) -> list[tuple[int, SnapshotFile]]:
    """Return what `tell_written` noted, and forget the note and the files that do not count."""
    rows = json.loads((folder / WRITTEN).read_bytes())
    files = [(partition, SnapshotFile(*facts)) for partition, *facts in rows]
    for _, file in files:
        path = folder / file.path
        if not path.exists() or path.stat().st_size != file.size_bytes:
            raise StorageError(
                f"{path} was written by a task and is not here: the folder must be one that all "
                "machines of the cluster share; name it with --to"
            )
    (folder / WRITTEN).unlink()
    return files


def finish(folder: Path, manifest: Manifest) -> None:
    """Make a snapshot whole: remove what it does not list, then write the manifest, durably."""
    listed = {file.path for partition in manifest.partitions for file in partition.files}
    for path in folder.glob("partition=*/*"):
        if path.relative_to(folder).as_posix() not in listed:
            path.unlink()
    for path in folder.glob("partition=*"):
        sync_folder(path)
    write_durably(folder / MANIFEST, manifest.encode())
    sync_folder(folder.parent)


def write_durably(path: Path, data: bytes) -> None:
    """Write a file so that it is there whole or not at all, whatever happens."""
    fresh = path.with_name(path.name + ".tmp")
    make_file(fresh)
    with open(fresh, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(path)
    sync_folder(path.parent)


def sync_file(path: Path) -> None:
    """Return when a file's bytes are on disk."""
    _sync(path, os.O_RDONLY)


def sync_folder(path: Path) -> None:
    """Return when the names in a folder are on disk."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    number = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)
