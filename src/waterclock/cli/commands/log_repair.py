"""`waterclock log repair`: give up what cannot be read, so that the log takes messages again.

A log with damage is readable around it and refuses to grow, because restoring the files from a
copy is better than this. Where there is no copy, an operator may accept the loss: lost offsets are
marked as lost and never used again, and the damaged files stay beside the log under another name.
"""

import os
from pathlib import Path
from typing import Annotated

import typer

from waterclock.cli.commands.log_check import EXIT_DAMAGED, damage_json
from waterclock.cli.commands.log_folders import one_log
from waterclock.cli.output.terminal import console, counted, one_line, print_json, progress


def repair(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of a log.")],
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Do it; otherwise only tell what would be lost.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Give up messages that cannot be read; end with 1 if something is left to repair."""
    from waterclock.model.sections import DedupConfig, LogConfig
    from waterclock.storage.clock import SystemClock
    from waterclock.storage.folders.os_folder import OsFolder
    from waterclock.storage.folders.read_only_folder import ReadOnlyFolder
    from waterclock.storage.opening import open_partition
    from waterclock.storage.repair import accept_loss as give_up
    from waterclock.storage.survey import check

    with ReadOnlyFolder(one_log(folder)) as held:
        size = sum(file.lstat().st_size for file in held.path.glob("*.seg"))
        with progress("checking", 2 * size) as advance:
            lost = [damage for _, damage in check(held, advance=advance).damage]
    if lost and accept_loss:
        store = open_partition(
            OsFolder(folder),
            log=LogConfig(),
            dedup=DedupConfig(),
            now_ms=SystemClock().now_ms(),
            new_log_id=os.urandom(16),
        )
        give_up(store, lost)
    is_repaired = accept_loss or not lost
    if as_json:
        found = [damage_json(damage) for damage in lost]
        print_json({"folder": str(folder), "lost": found, "repaired": is_repaired})
    else:
        _tell([str(damage) for damage in lost], is_repaired=is_repaired)
    if not is_repaired:
        raise typer.Exit(EXIT_DAMAGED)


def _tell(lost: list[str], *, is_repaired: bool) -> None:
    out = console()
    if not lost:
        out.print("Nothing to repair: every frame is whole.")
        return
    given = "Given up" if is_repaired else "Would be given up"
    out.print(f"{given}: {counted(len(lost), 'damaged range')}.")
    for line in lost:
        out.print(f"  {one_line(line)}", soft_wrap=True)
    if is_repaired:
        out.print("The damaged files stay beside the log, ending in .damaged and a number.")
    else:
        out.print("Restore the files from a copy if there is one; else add --accept-loss.")
