"""Writing a backup: the segments that are not there yet, then the manifest, then what is left over.

    backup/
        waterclock-backup                      says that the folder is ours to tidy
        manifest.json                          the finished backup: the files that it names
        meta/, streams/, topics/.../log/       segments, each under a name of its own

A segment has a name that tells its place, generation, length and last checksum, so no file is ever
written over: until the new manifest takes the place of the old one by a rename, the old backup is
as whole as before, whatever happens. What no manifest names is removed after that. A backup that
was cut short leaves whole segments behind, which the next one checks and takes over.

Segments arrive in chunks, in the order in which they were wanted. A segment counts once each frame
of it was read and it was fsynced under its name.
"""

import os
import re
from contextlib import suppress
from pathlib import Path

from crc32c import crc32c

from waterclock.log.frame import Frame
from waterclock.log.recovery import scan
from waterclock.log.segment import HEADER_BYTES, decode_segment_header, log_tag, segment_name
from waterclock.model.backup import Cut, LogCut, SegmentCut
from waterclock.model.errors import (
    BadInput,
    Damaged,
    ForeignFile,
    FrameDamaged,
    StorageFailed,
    translate,
)
from waterclock.model.ids import Offset
from waterclock.storage.backup.manifest import (
    NAME,
    Manifest,
    decode_manifest,
    encode_manifest,
    segment_file_name,
    segment_key,
)
from waterclock.storage.folders.folder import TEMPORARY, File, create_temporary, write_whole
from waterclock.storage.folders.os_folder import LOCK_NAME, OsFolder

MARK = "waterclock-backup"
"""A file without which nothing is ever removed from a folder that is not empty."""
_MARK_TEXT = b"The backup of a Waterclock node: `waterclock restore` makes one of it.\n"
_OURS = re.compile(rf"\d{{20}}-\d+-\d+-[0-9a-f]{{8}}\.seg(\{TEMPORARY})?")


class BackupFolder:
    """A folder with a backup, or for one; locked until it is closed."""

    def __init__(self, path: Path) -> None:
        self._folder = OsFolder(path)
        self.path = self._folder.path
        try:
            self._claim()
            self.previous = self._load()
        except BaseException:
            self._folder.close()
            raise

    def __repr__(self) -> str:
        return f"<BackupFolder {self.path}>"

    def __enter__(self) -> "BackupFolder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of it."""
        self._folder.close()

    def _claim(self) -> None:
        names = set(self._folder.names()) - {LOCK_NAME, MARK + TEMPORARY}
        if names and MARK not in names:
            raise ForeignFile(
                f"{self.path} is no backup, and holds {min(names)}: name an empty folder, or one "
                "with a backup of this node"
            )
        self._folder.lock()
        if not names:
            write_whole(self._folder, MARK, [_MARK_TEXT])
            self._folder.sync()

    def _load(self) -> Manifest | None:
        if NAME not in self._folder.names():
            return None
        file = self._folder.open(NAME)
        try:
            data = bytes(file.view(0, file.size()))
        finally:
            file.close()
        return decode_manifest(str(self.path / NAME), data)

    def save(self, manifest: Manifest) -> None:
        """Make this the backup, and remove what it does not need."""
        write_whole(self._folder, NAME, [encode_manifest(manifest)])
        self._folder.sync()
        self.previous = manifest
        keep = {self.path / log.path / segment_file_name(s) for log, s in manifest.cut.segments()}
        with translate({OSError: StorageFailed}):
            _prune(self.path, keep)


class BackupWriter:
    """One backup that is being taken. Feed `write` what is `wanted`, in order, then `commit`."""

    def __init__(
        self,
        folder: BackupFolder,
        cut: Cut,
        *,
        started_ms: int,
        is_secured: bool = False,
        verify: bool = False,
    ) -> None:
        """With `verify`, segments that are there already are read, too, not only looked for."""
        cut.check()
        self._folder = folder
        self._cut = cut
        self._started_ms = started_ms
        self._is_secured = is_secured
        self._segments = list(cut.segments())
        self._log: OsFolder | None = None
        self._file: File | None = None
        self._written = 0
        self._check_node()
        known = self._known()
        self._checksums = [
            self._there(log, segment, known.get(segment_key(log, segment)), verify=verify)
            for log, segment in self._segments
        ]
        self.wanted = [n for n, crc in enumerate(self._checksums) if crc is None]
        """The segments that are not there, as they are counted in the cut."""
        self.wanted_bytes = sum(self._segments[n][1].size_bytes for n in self.wanted)
        self._left = list(reversed(self.wanted))

    def __repr__(self) -> str:
        return f"<BackupWriter {len(self._left)} of {len(self.wanted)} segments to come>"

    def _check_node(self) -> None:
        before = self._folder.previous
        if before is not None and before.cut.identity() != self._cut.identity():
            raise BadInput(
                f"{self._folder.path} holds a backup of another node ({before.cut.node}): name "
                "another folder"
            )

    def _known(self) -> dict[tuple[bytes, str, str], int]:
        before = self._folder.previous
        if before is None:
            return {}
        keys = (segment_key(*each) for each in before.cut.segments())
        return dict(zip(keys, before.checksums, strict=True))

    def _there(
        self, log: LogCut, segment: SegmentCut, known: int | None, *, verify: bool
    ) -> int | None:
        """Return the checksum of a segment that is there already; None: it has to be copied."""
        path = self._folder.path / log.path / segment_file_name(segment)
        try:
            size = path.stat().st_size
        except OSError:
            return None
        if size != segment.size_bytes:
            return None
        if known is not None and not verify:
            return known
        # Left by a backup that was cut short, or to be looked at: it must prove what it is.
        folder = self._open_log(log)
        file = folder.open(path.name)
        try:
            found = checked_crc(file, log, segment)
        except Damaged:
            return None
        finally:
            file.close()
        return found if known is None or found == known else None

    def write(self, number: int, data: bytes) -> None:
        """Take in the next bytes of a segment; with the last of them it is checked and durable."""
        if not self._left or self._left[-1] != number:
            raise BadInput(f"segment {number} of the cut comes out of turn")
        log, segment = self._segments[number]
        if self._file is None:
            self._file = create_temporary(self._open_log(log), segment_file_name(segment))
            self._written = 0
        if not data or self._written + len(data) > segment.size_bytes:
            raise BadInput(f"{log.path}: more or less came than {segment.size_bytes} bytes")
        self._file.write(self._written, [data])
        self._written += len(data)
        if self._written == segment.size_bytes:
            self._checksums[number] = self._finish(self._file, log, segment)
            self._left.pop()

    def _finish(self, file: File, log: LogCut, segment: SegmentCut) -> int:
        assert self._log is not None
        try:
            crc = checked_crc(file, log, segment)
            file.sync()
        finally:
            file.close()
            self._file = None
        name = segment_file_name(segment)
        self._log.rename(name + TEMPORARY, name)
        return crc

    def _open_log(self, log: LogCut) -> OsFolder:
        path = self._folder.path / log.path
        if self._log is None or self._log.path != path:
            self._close_log()
            self._log = OsFolder(path)
        return self._log

    def _close_log(self) -> None:
        if self._log is not None:
            self._log.sync()
            self._log.close()
            self._log = None

    def commit(self, *, now_ms: int) -> Manifest:
        """Make this the backup of the folder. All that is wanted must have come."""
        if self._left:
            raise BadInput(f"{len(self._left)} segments did not come")
        self._close_log()
        checksums = tuple(crc for crc in self._checksums if crc is not None)
        manifest = Manifest(self._started_ms, now_ms, self._cut, checksums, self._is_secured)
        self._folder.save(manifest)
        return manifest

    def close(self) -> None:
        """Let go of what was not finished; the folder keeps the backup that it had."""
        if self._log is not None:
            self._log.close()
            self._log = self._file = None


def _prune(root: Path, keep: set[Path]) -> None:
    """Remove segments that the backup does not need, and folders that are left without any."""
    for top in ("meta", "streams", "topics"):
        for folder, _, names in os.walk(root / top, topdown=False):
            for name in names:
                path = Path(folder, name)
                if _OURS.fullmatch(name) and path not in keep:
                    path.unlink()
            with suppress(OSError):  # it is not empty
                os.rmdir(folder)


def checked_crc(file: File, log: LogCut, segment: SegmentCut) -> int:
    """Return the CRC-32C of a file; raise Damaged unless it is this segment, whole to its end."""
    where = f"{log.path}/{segment_name(segment.base_offset)}"
    data = file.view(0, file.size())
    header = decode_segment_header(segment_name(segment.base_offset), data[:HEADER_BYTES])
    expected = (log.log_id, segment.base_offset, segment.generation)
    if (header.log_id, header.base_offset, header.generation) != expected:
        raise FrameDamaged(f"{where} is of another log, or another writing of it")
    base, tag = Offset(segment.base_offset), log_tag(log.log_id)
    found = scan(data, HEADER_BYTES, base, tag, _ignore)
    if found.damage:
        raise FrameDamaged(f"{where} is damaged at its source: {found.damage[0]}")
    ends = (found.end_offset, found.end_position, found.last_header_crc)
    if ends != (segment.end_offset, segment.size_bytes, segment.last_header_crc):
        raise FrameDamaged(
            f"{where} ends at offset {found.end_offset}, byte {found.end_position}, and should at "
            f"offset {segment.end_offset}, byte {segment.size_bytes}"
        )
    return crc32c(data)


def _ignore(frame: Frame, position: int) -> None:
    """Want nothing of a frame but that it is whole."""
