"""`waterclock restore`: a backup made into the data of a node, checked to the last byte."""

import time
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from waterclock.cli.options import AsJson
from waterclock.cli.output.terminal import (
    console,
    counted,
    print_json,
    program,
    progress,
    size_text,
    time_text,
)


def restore(
    backup: Annotated[
        Path, typer.Argument(metavar="BACKUP", help="A folder that `waterclock backup` wrote.")
    ],
    data: Annotated[
        Path, typer.Option(metavar="NEW_FOLDER", help="Where to: a folder that is new, or empty.")
    ],
    as_json: AsJson = False,
) -> None:
    """Make the data of a node from a backup; every checksum, frame and row is checked."""
    from waterclock.security.folder import FOLDER_NAME
    from waterclock.storage.backup.restore import PASSES, Restoring

    begun = time.perf_counter()
    with Restoring(backup, data) as restoring:
        manifest = restoring.manifest
        with progress("restoring", PASSES * manifest.size_bytes) as advance:
            restoring.run(advance)
    seconds = time.perf_counter() - begun
    cut, segments = manifest.cut, len(manifest.checksums)
    if as_json:
        print_json(
            {
                "data": str(data.absolute()),
                "node": cut.node,
                "started_ms": manifest.started_ms,
                "logs": len(cut.logs),
                "segments": segments,
                "bytes": manifest.size_bytes,
                "is_secured": manifest.is_secured,
                "seconds": round(seconds, 3),
            }
        )
        return
    out = console()
    held = f"{counted(len(cut.logs), 'log')} in {counted(segments, 'segment')}"
    out.print(
        f"Restored {cut.node} to {data}, as it was at {time_text(cut.cut_ms)}: {held} "
        f"({size_text(manifest.size_bytes)}), all whole, in {seconds:.1f} s.",
        style="green",
        soft_wrap=True,
    )
    if cut.streams_elsewhere:
        out.print(
            f"Stored streams were kept by {cut.streams_elsewhere}: restore that, too.",
            style="yellow",
        )
    if manifest.is_secured:
        out.print(
            f"The node was secured, and its secure folder is in no backup: copy it to "
            f"{data / FOLDER_NAME}, or the node asks nobody who they are.",
            style="yellow",
            soft_wrap=True,
        )
    out.print(f"To run it: {program()} up --data {quote(str(data))}", soft_wrap=True)
