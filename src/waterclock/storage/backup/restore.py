"""Restoring a backup: into a folder of its own, all of it or nothing.

Every file is copied by its checksum, then every log is read as `waterclock log check` does. Only
after that the logs move to where a node looks for them, its own records last. Until then a node
that is started there by mistake refuses: `meta` holds a file that is none of its own.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from crc32c import crc32c

from waterclock.log.segment import segment_name
from waterclock.model.backup import META, LogCut, SegmentCut
from waterclock.model.errors import (
    Damaged,
    ForeignFile,
    FrameDamaged,
    StorageFailed,
    StorageFull,
    translate,
)
from waterclock.model.units import MIB
from waterclock.storage.backup.manifest import NAME, Manifest, decode_manifest, segment_file_name
from waterclock.storage.folders.os_folder import OsFolder
from waterclock.storage.folders.read_only_folder import ReadOnlyFolder
from waterclock.storage.recovery_point import save_recovery_point
from waterclock.storage.survey import check

Advance = Callable[[int], None]
PASSES = 3
"""How often each byte is told of: copied, then twice by the check."""
STAGING = ".restore"
UNFINISHED = "RESTORE-UNFINISHED"
_READ_BYTES = 1 * MIB


def load_manifest(backup: Path) -> Manifest:
    """Return what a folder is the backup of; raise ForeignFile if none was finished there."""
    path = backup / NAME
    with translate({OSError: StorageFailed}):
        try:
            data = path.read_bytes()
        except FileNotFoundError as error:
            raise ForeignFile(
                f"{backup} holds no finished backup: name the folder that `waterclock backup` wrote"
            ) from error
    return decode_manifest(str(path), data)


class Restoring:
    """A backup on its way into a new folder. `run` it once; the backup is locked meanwhile."""

    def __init__(self, backup: Path, data: Path) -> None:
        """Raises ForeignFile unless `data` is empty, or not there yet."""
        self._source = ReadOnlyFolder(backup)
        self._backup = self._source.path
        self._data = Path(os.path.abspath(data))
        try:
            self._source.lock()  # a backup taken meanwhile would remove what is being read
            self.manifest = load_manifest(self._backup)
            self._check_empty()
        except BaseException:
            self._source.close()
            raise

    def __repr__(self) -> str:
        return f"<Restoring {self._backup} to {self._data}>"

    def __enter__(self) -> "Restoring":
        return self

    def __exit__(self, *_: object) -> None:
        self._source.close()

    def _check_empty(self) -> None:
        with translate({NotADirectoryError: ForeignFile, OSError: StorageFailed}):
            names = os.listdir(self._data) if self._data.exists() else []
        if names:
            raise ForeignFile(
                f"{self._data} is not empty, it holds {min(names)}: restore into a new folder"
            )

    def run(self, advance: Advance) -> None:
        """Copy, check, and put into place. What fails leaves the folder as empty as it was."""
        OsFolder(self._data).close()
        try:
            self._check_room()
            self._bar_nodes()
            checksums = iter(self.manifest.checksums)
            for log in self.manifest.cut.logs:
                path = self._copy(log, [next(checksums) for _ in log.segments], advance)
                _check(log, path, advance)
        except BaseException:
            shutil.rmtree(self._data / STAGING, ignore_errors=True)
            shutil.rmtree(self._data / META, ignore_errors=True)
            raise
        self._put_in_place()

    def _check_room(self) -> None:
        with translate({OSError: StorageFailed}):
            space = os.statvfs(self._data)
        free = space.f_bavail * space.f_frsize
        if free < self.manifest.size_bytes:
            raise StorageFull(
                f"{self._data} has {free >> 20} MiB free, and the backup needs "
                f"{self.manifest.size_bytes >> 20} MiB: make room, or name a folder elsewhere"
            )

    def _bar_nodes(self) -> None:
        folder = OsFolder(self._data / META)
        folder.create(UNFINISHED).close()
        folder.sync()
        folder.close()

    def _copy(self, log: LogCut, checksums: list[int], advance: Advance) -> Path:
        """Copy a log by its checksums, and make it durable; return where to."""
        folder = OsFolder(self._data / STAGING / log.path)
        try:
            for segment, crc in zip(log.segments, checksums, strict=True):
                self._copy_segment(folder, log, segment, crc, advance)
            save_recovery_point(folder, log.end_offset)
        finally:
            folder.close()
        return folder.path

    def _copy_segment(
        self, folder: OsFolder, log: LogCut, segment: SegmentCut, crc: int, advance: Advance
    ) -> None:
        source = self._backup / log.path / segment_file_name(segment)
        file = folder.create(segment_name(segment.base_offset))
        found, position = 0, 0
        with translate({OSError: StorageFailed}), open(source, "rb") as reading:
            while data := reading.read(_READ_BYTES):
                found = crc32c(data, found)
                file.write(position, [data])
                position += len(data)
                advance(len(data))
        if (position, found) != (segment.size_bytes, crc):
            raise FrameDamaged(
                f"{source} fails its checksum: it is not what was backed up. Restore another copy "
                "of the backup; `waterclock backup --verify` copies the file anew from the node"
            )
        file.sync()
        file.close()

    def _put_in_place(self) -> None:
        staging = self._data / STAGING
        with translate({OSError: StorageFailed}):
            for name in sorted(set(os.listdir(staging)) - {META}):
                os.rename(staging / name, self._data / name)
            os.rename(self._data / META, staging / UNFINISHED)
            os.rename(staging / META, self._data / META)
            shutil.rmtree(staging)
        folder = OsFolder(self._data)
        folder.sync()
        folder.close()


def _check(log: LogCut, path: Path, advance: Advance) -> None:
    """Read all of a restored log; raise Damaged unless it is whole, to where it was cut."""
    with ReadOnlyFolder(path) as held:
        survey = check(held, advance=advance)
        if survey.damage or survey.torn is not None or survey.end != log.end_offset:
            what = survey.damage[0][1] if survey.damage else f"it ends at {survey.end}"
            raise Damaged(f"{log.path} is not whole in the backup: {what}")
