"""The manifest of a backup: which files it is made of, and the checksum of each.

A backup is what its manifest names, and nothing else: the manifest is written last and takes the
place of the one before it by a rename. Drawn in `docs/formats/backup.md`.
"""

import msgspec
from crc32c import crc32c

from waterclock.log.segment import SUFFIX
from waterclock.model.backup import Cut, LogCut, SegmentCut
from waterclock.model.errors import ForeignFile

NAME = "manifest.json"
FORMAT = "waterclock-backup"
VERSION = 1


class Manifest(msgspec.Struct, frozen=True):
    """One finished backup."""

    started_ms: int
    """What was acknowledged before then is in it. By the clock of the machine that took it."""
    finished_ms: int
    cut: Cut
    checksums: tuple[int, ...]
    """The CRC-32C of each segment's file, in the order of the cut."""
    is_secured: bool = False
    """The node had a secure folder, which is not in the backup."""

    @property
    def size_bytes(self) -> int:
        """How long all its segments are together."""
        return sum(segment.size_bytes for _, segment in self.cut.segments())


class _Envelope(msgspec.Struct, frozen=True):
    format: str
    version: int
    crc32c: int
    """Of the bytes of `backup`, as they stand in the file."""
    backup: msgspec.Raw


def segment_file_name(segment: SegmentCut) -> str:
    """Return the name of a segment's file in a backup: each writing of it has its own."""
    return (
        f"{segment.base_offset:020d}-{segment.generation}-{segment.size_bytes}"
        f"-{segment.last_header_crc:08x}{SUFFIX}"
    )


def segment_key(log: LogCut, segment: SegmentCut) -> tuple[bytes, str, str]:
    """Return what two segments have in common only if their bytes are the same."""
    return log.log_id, log.path, segment_file_name(segment)


def encode_manifest(manifest: Manifest) -> bytes:
    body = msgspec.json.encode(manifest)
    return msgspec.json.encode(_Envelope(FORMAT, VERSION, crc32c(body), msgspec.Raw(body)))


def decode_manifest(name: str, data: bytes) -> Manifest:
    """Return what a manifest says; raise ForeignFile unless it is whole, and of a known version."""
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
    except msgspec.DecodeError as error:
        raise ForeignFile(f"{name} is not the manifest of a backup: {error}") from error
    if envelope.format != FORMAT:
        raise ForeignFile(f"{name} is not the manifest of a backup, but of a {envelope.format!r}")
    if envelope.version != VERSION:
        raise ForeignFile(
            f"{name} has version {envelope.version}, and this program reads {VERSION}: use the "
            "program that wrote it, or a newer one"
        )
    if crc32c(bytes(envelope.backup)) != envelope.crc32c:
        raise ForeignFile(f"{name} is damaged: it fails its checksum. Use another copy of it")
    manifest = msgspec.json.decode(envelope.backup, type=Manifest)
    manifest.cut.check()
    if len(manifest.checksums) != sum(1 for _ in manifest.cut.segments()):
        raise ForeignFile(f"{name} does not have a checksum for each segment")
    return manifest
