"""`waterclock backup`: a copy of all that a node stores, of one that runs or of its data.

The first backup into a folder copies everything, the next ones only the segments that are new. The
folder holds one finished backup at all times, whatever ends this command.
"""

import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from waterclock.cli.connection import call
from waterclock.cli.options import Address, AsJson
from waterclock.cli.output.terminal import (
    console,
    counted,
    print_json,
    program,
    progress,
    size_text,
    time_text,
)
from waterclock.model.errors import (
    BadInput,
    FolderInUse,
    NodeFailed,
    StorageError,
    Unavailable,
    Unreachable,
)

if TYPE_CHECKING:
    from waterclock.client.client import Client
    from waterclock.storage.backup.manifest import Manifest
    from waterclock.storage.backup.writer import BackupFolder, BackupWriter

READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Taken:
    """A backup that was finished."""

    manifest: "Manifest"
    copied: int
    """Segments that were not there before."""
    copied_bytes: int


def backup(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Where to: empty, or with a backup before it.")
    ],
    data: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="The data of a node that is stopped, instead."),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Read what is there, too, and copy anew what has rotted."),
    ] = False,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Copy all that a node stores, while it runs; what FOLDER has already is not copied again."""
    from waterclock.storage.backup.writer import BackupFolder

    if data is not None and address is not None:
        raise BadInput("name the node by --address if it runs, or by --data if it is stopped")
    begun = time.perf_counter()
    with BackupFolder(folder) as opened:
        try:
            if data is not None:
                taken = _of_data(opened, data, verify=verify)
            else:
                taken = _of_node(opened, address, verify=verify)
        except (StorageError, Unavailable, NodeFailed):
            if opened.previous is not None:
                before = time_text(opened.previous.started_ms)
                typer.echo(f"the backup of {before} is still whole in {folder}", err=True)
            raise
    _tell(folder, taken, time.perf_counter() - begun, as_json=as_json)


def _of_node(folder: "BackupFolder", address: str | None, *, verify: bool) -> Taken:
    try:
        return call(address, lambda client: back_up(client, folder, verify=verify))
    except Unreachable as error:
        hint = "of a node that is stopped, name the data: --data FOLDER"
        raise Unreachable(f"{error}; {hint}") from error


async def back_up(client: "Client", folder: "BackupFolder", *, verify: bool = False) -> Taken:
    """Back up a running node into a folder."""
    from waterclock.client.backup import taking_backup
    from waterclock.runtime.clock import SystemClock
    from waterclock.storage.backup.writer import BackupWriter

    clock = SystemClock()
    started_ms = clock.now_ms()
    async with taking_backup(client._connection) as taken:
        is_secured = client._connection.target.credential is not None
        writer = BackupWriter(
            folder, taken.cut, started_ms=started_ms, is_secured=is_secured, verify=verify
        )
        with closing(writer), progress("copying", writer.wanted_bytes) as advance:
            async for number, chunk in taken.segments(writer.wanted):
                writer.write(number, chunk)
                advance(len(chunk))
            return _taken(writer, writer.commit(now_ms=clock.now_ms()))


def _of_data(folder: "BackupFolder", data: Path, *, verify: bool) -> Taken:
    from waterclock.node.backup.stopped import StoppedCut
    from waterclock.runtime.clock import SystemClock
    from waterclock.security.folder import FOLDER_NAME
    from waterclock.storage.backup.writer import BackupWriter

    clock = SystemClock()
    try:
        opened = StoppedCut(data)
    except FolderInUse as error:
        raise FolderInUse(
            f"{data} is in use, so its node runs: leave --data out, and name the node by --address"
        ) from error
    with closing(opened) as stopped:
        now_ms = clock.now_ms()
        is_secured = (data / FOLDER_NAME).exists()
        writer = BackupWriter(
            folder, stopped.cut, started_ms=now_ms, is_secured=is_secured, verify=verify
        )
        with closing(writer), progress("copying", writer.wanted_bytes) as advance:
            segments = [segment for _, segment in stopped.cut.segments()]
            for number in writer.wanted:
                size = segments[number].size_bytes
                for position in range(0, size, READ_BYTES):
                    count = min(READ_BYTES, size - position)
                    writer.write(number, stopped.read(number, position, count))
                    advance(count)
            return _taken(writer, writer.commit(now_ms=clock.now_ms()))


def _taken(writer: "BackupWriter", manifest: "Manifest") -> Taken:
    return Taken(manifest, len(writer.wanted), writer.wanted_bytes)


def _tell(folder: Path, taken: Taken, seconds: float, *, as_json: bool) -> None:
    manifest = taken.manifest
    cut = manifest.cut
    segments = len(manifest.checksums)
    if as_json:
        print_json(
            {
                "folder": str(folder.absolute()),
                "node": cut.node,
                "started_ms": manifest.started_ms,
                "logs": len(cut.logs),
                "segments": segments,
                "bytes": manifest.size_bytes,
                "copied_segments": taken.copied,
                "copied_bytes": taken.copied_bytes,
                "streams_elsewhere": cut.streams_elsewhere,
                "seconds": round(seconds, 3),
            }
        )
        return
    out = console()
    held = f"{counted(len(cut.logs), 'log')} in {counted(segments, 'segment')}"
    new = f"{counted(taken.copied, 'segment')} ({size_text(taken.copied_bytes)}) copied"
    out.print(
        f"Backed up {cut.node} to {folder}: {held} ({size_text(manifest.size_bytes)}), {new} in "
        f"{seconds:.1f} s.",
        style="green",
        soft_wrap=True,
    )
    out.print(f"It holds all that was acknowledged before {time_text(manifest.started_ms)}.")
    if cut.streams_elsewhere:
        out.print(
            f"Stored streams are kept by {cut.streams_elsewhere} and are not in it: back that up, "
            "too.",
            style="yellow",
        )
    if manifest.is_secured:
        out.print("Its secure folder is not in it: keep a copy of that elsewhere.", style="yellow")
    command = f"{program()} restore {quote(str(folder))} --data NEW_FOLDER"
    out.print(f"To restore it: {command}", soft_wrap=True)
