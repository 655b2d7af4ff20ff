"""A secure folder whose principals are shared with the other nodes of a cluster.

Beside `principals.json` it has `shared.json`: what it last had in common with the records of the
cluster (docs/formats/shared_rights.md). Principals are written first. After a crash between the two
some of what was taken from the records looks like changes of people: the records have it already,
or something later, so nothing comes of it.
"""

import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgspec

from waterclock.model.errors import BadInput, StorageFailed, translate
from waterclock.security.principals import (
    FILE,
    PrincipalRecord,
    Principals,
    decode_principals,
    encode_principals,
    known_of,
    record_of,
)
from waterclock.security.private_files import PUBLIC_MODE, locked, write_file
from waterclock.security.shared_rights import Change, Common, Records, begun, exchanged

COMMON_FILE = "shared.json"
ASIDE_FILE = "principals.aside.json"
"""What a folder had before it took the records of a cluster that knew less."""
VERSION = 1


class CommonFile(msgspec.Struct, frozen=True):
    """All of `shared.json`."""

    version: int
    common: Common


class Settled(NamedTuple):
    """What came of looking at a folder and the records."""

    changes: tuple[Change, ...]
    """What the folder has to tell the records."""
    keeps_admin: bool
    """Whether it knows an admin."""
    revision: int
    """Of the records that it goes by."""
    has_changed: bool
    """Others are let in by it now."""
    dropped: tuple[str, ...] = ()
    """Who is let in no more, because the records do not know them; the file was put aside."""


class SharedFolder:
    """The principals of a secure folder, as one of several nodes keeps them. Everything blocks."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __repr__(self) -> str:
        return f"<SharedFolder {self._path}>"

    def is_writable(self) -> bool:
        """Say if this process may write to it. What is mounted to be read is changed elsewhere."""
        return os.access(self._path, os.W_OK)

    def exchange(self, records: Records, *, now_ms: int, kept: Collection[str] = ()) -> Settled:
        """Take what the records have, and return what they have yet to hear; raises BadInput or
        StorageFailed, and then nothing is changed."""
        with translate({OSError: StorageFailed}), locked(self._path):
            principals, changed_ms = self._principals()
            common = self._common()
            found = _records_of(principals)
            result = exchanged(
                found, common, records, changed_ms=min(changed_ms, now_ms), kept=kept
            )
            has_changed = result.found != found
            if result.dropped:
                self._write(ASIDE_FILE, encode_principals(principals))
            if has_changed:
                known = {name: known_of(name, each) for name, each in result.found.items()}
                self._write(FILE, encode_principals(replace(principals, known=known)))
            if result.common != common:
                self._write_common(result.common)
        keeps_admin = any(each.rights.get("admin") for each in result.found.values())
        revision = result.common.revision
        return Settled(result.changes, keeps_admin, revision, has_changed, result.dropped)

    def begin(self, identity: str) -> Mapping[str, PrincipalRecord]:
        """Have the folder in common with records that are to be made of it; return those."""
        with translate({OSError: StorageFailed}), locked(self._path):
            found = _records_of(self._principals()[0])
            self._write_common(begun(found, identity))
        return found

    def _principals(self) -> tuple[Principals, int]:
        """Return who is in the folder, and when that was last changed."""
        with (self._path / FILE).open("rb") as file:
            changed_ms = os.fstat(file.fileno()).st_mtime_ns // 1_000_000
            return decode_principals(file.read()), changed_ms

    def _common(self) -> Common | None:
        try:
            return read_common(self._path)
        except BadInput:
            return None  # then the records hold

    def _write_common(self, common: Common) -> None:
        self._write(COMMON_FILE, msgspec.json.encode(CommonFile(VERSION, common)) + b"\n")

    def _write(self, name: str, data: bytes) -> None:
        write_file(self._path / name, data, mode=PUBLIC_MODE)


def read_common(folder: Path) -> Common | None:
    """Return what a folder last had in common with the records, None if it never had anything.

    Raises BadInput if that cannot be read, and OSError.
    """
    try:
        data = (folder / COMMON_FILE).read_bytes()
    except FileNotFoundError:
        return None
    try:
        file = msgspec.json.decode(data, type=CommonFile)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"{COMMON_FILE}: {error}") from None
    if file.version != VERSION:
        raise BadInput(f"{COMMON_FILE}: version {file.version} is not {VERSION}")
    return file.common


def known_until_ms(folder: Path, name: str) -> int:
    """Return when the standing of a principal began that a folder has in common with the records;
    whoever is added anew must be later than that. 0 if there is none."""
    try:
        common = read_common(folder)
    except BadInput:
        return 0
    standing = None if common is None else common.principals.get(name)
    return 0 if standing is None else standing.at_ms


def _records_of(principals: Principals) -> dict[str, PrincipalRecord]:
    return {name: record_of(known) for name, known in principals.known.items()}
