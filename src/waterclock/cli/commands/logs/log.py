"""`waterclock log check` and `log repair`: find what is damaged in a log, and give it up.

`check` reads every frame and changes nothing, not even what an opening would mend. The exit code is
for scripts: 0 if all is whole, 1 if something acknowledged cannot be read, 2 if the log cannot be
opened at all. A torn end is no damage: it was never acknowledged.

A log with damage is readable around it and refuses to grow, because restoring the files from a
copy is better than `repair`. Where there is no copy, an operator may accept the loss: lost offsets
are marked as lost and never used again, and the damaged files stay beside the log under another
name.
"""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from waterclock.cli.output.terminal import (
    console,
    counted,
    one_line,
    print_json,
    progress,
    size_text,
    table,
)
from waterclock.model.errors import BadInput

if TYPE_CHECKING:
    from waterclock.log.recovery import Damage
    from waterclock.storage.survey import Survey

EXIT_DAMAGED = 1


def check(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A log, or a node's data: all logs in it.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a log.")] = False,
) -> None:
    """Read every frame, checksum and row of a log; end with 1 if something is damaged."""
    found = logs_in(folder)
    damaged = [log for log in found if not _is_whole(log, as_json=as_json)]
    if len(found) > 1 and not as_json:
        verdict = (
            f"{len(damaged)} of {len(found)} logs are damaged." if damaged else "All is whole."
        )
        console().print(f"{counted(len(found), 'log')} in {folder}: {verdict}", soft_wrap=True)
    if damaged:
        raise typer.Exit(EXIT_DAMAGED)


def _is_whole(folder: Path, *, as_json: bool) -> bool:
    """Check one log, and tell of it."""
    from waterclock.storage.folders.read_only_folder import ReadOnlyFolder
    from waterclock.storage.survey import check as survey_all

    started = time.perf_counter()
    with ReadOnlyFolder(folder) as held:
        size = sum(file.lstat().st_size for file in held.path.glob("*.seg"))
        with progress("checking", 2 * size) as advance:
            survey = survey_all(held, advance=advance)
        seconds = time.perf_counter() - started
        if as_json:
            print_json(_plain(held.path, survey, seconds))
        else:
            _tell(console(), held.path, survey, seconds)
        return not survey.damage


def _plain(path: Path, survey: "Survey", seconds: float) -> dict[str, object]:
    counts = survey.counts
    return {
        "folder": str(path),
        "ok": not survey.damage,
        "start": survey.start,
        "end": survey.end,
        "segments": len(survey.segments),
        "scheduled": len(survey.scheduled[0]),
        "types": {
            kind.name.lower(): {
                "frames": counts.frames[kind],
                "rows": counts.rows[kind],
                "bytes": counts.bytes[kind],
            }
            for kind in sorted(counts.frames)
        },
        "damage": [
            {"file": segment.file.name, **damage_json(damage)} for segment, damage in survey.damage
        ],
        "torn": None if survey.torn is None else survey.torn._asdict(),
        "seconds": round(seconds, 3),
    }


def damage_json(damage: "Damage") -> dict[str, object]:
    """Return a stretch of damage for machines."""
    return {
        "start": damage.start,
        "end": damage.end,
        "position": damage.position,
        "end_position": damage.end_position,
        "reason": damage.reason,
    }


def _tell(out: Console, path: Path, survey: "Survey", seconds: float) -> None:
    counts = survey.counts
    size = size_text(counts.bytes.total())
    where = f"offsets [{survey.start}, {survey.end}) in {counted(len(survey.segments), 'segment')}"
    out.print(f"{path}: {where}", style="bold", soft_wrap=True)
    out.print()
    rows = table(out, "type", ">frames", ">rows", ">bytes")
    for kind in sorted(counts.frames):
        rows.add_row(
            kind.name.lower(),
            f"{counts.frames[kind]:,}",
            f"{counts.rows[kind]:,}",
            size_text(counts.bytes[kind]),
        )
    out.print(rows)
    out.print()
    out.print(f"{counted(len(survey.scheduled[0]), 'open scheduled message')}.")
    if survey.torn is not None:
        out.print(
            f"The end is torn at offset {survey.torn.offset}: it was being written when a process"
            " died. It was never acknowledged, and the next opening cuts it off.",
            style="yellow",
        )
    if survey.damage:
        _tell_damage(out, survey)
    else:
        out.print(
            f"All {counts.frames.total():,} frames ({size}) are whole; checked in {seconds:.2f} s.",
            style="green",
        )


def _tell_damage(out: Console, survey: "Survey") -> None:
    lost = sum(damage.end - damage.start for _, damage in survey.damage)
    out.print(f"DAMAGED: {counted(lost, 'offset')} cannot be read.", style="bold red")
    for segment, damage in survey.damage:
        out.print(f"{segment.file.name}: {one_line(str(damage))}")
    out.print(
        "Nothing was changed, and all else can be read. Keep the folder as it is, and restore the"
        " files named here from a replica or a backup."
    )


SHOWN_MAX = 5


def logs_in(folder: Path) -> list[Path]:
    """Return the folder itself if it is a log, or could be; else the logs below it, in order."""
    if not folder.is_dir() or any(folder.glob("*.seg")):
        return [folder]
    return sorted({file.parent for file in folder.rglob("*.seg")}) or [folder]


def one_log(folder: Path) -> Path:
    """Return the folder if it is a log; raise BadInput if it holds some, and say which."""
    found = logs_in(folder)
    if found == [folder]:
        return folder
    shown = ", ".join(map(str, found[:SHOWN_MAX]))
    more = f" and {len(found) - SHOWN_MAX} more" if len(found) > SHOWN_MAX else ""
    raise BadInput(f"{folder} is no log, but holds some: name one of {shown}{more}")


def repair(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of a log.")],
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Do it; otherwise only tell what would be lost.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Give up messages that cannot be read; end with 1 if something is left to repair."""
    from waterclock.model.sections import DedupConfig, LogConfig
    from waterclock.runtime.clock import SystemClock
    from waterclock.storage.folders.os_folder import OsFolder
    from waterclock.storage.folders.read_only_folder import ReadOnlyFolder
    from waterclock.storage.opening import open_partition
    from waterclock.storage.repair import accept_loss as give_up
    from waterclock.storage.survey import check as survey_all

    with ReadOnlyFolder(one_log(folder)) as held:
        size = sum(file.lstat().st_size for file in held.path.glob("*.seg"))
        with progress("checking", 2 * size) as advance:
            lost = [damage for _, damage in survey_all(held, advance=advance).damage]
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
        _tell_repair(lost, is_repaired=is_repaired)
    if not is_repaired:
        raise typer.Exit(EXIT_DAMAGED)


def _tell_repair(lost: "list[Damage]", *, is_repaired: bool) -> None:
    out = console()
    if not lost:
        out.print("Nothing to repair: every frame is whole.")
        return
    given = "Given up" if is_repaired else "Would be given up"
    out.print(f"{given}: {counted(len(lost), 'damaged range')}.")
    for damage in lost:
        out.print(f"  {one_line(str(damage))}", soft_wrap=True)
    if not is_repaired:
        out.print("Restore the files from a copy if there is one; else add --accept-loss.")
    elif any(damage.end_position for damage in lost):  # else there is no file that was damaged
        out.print("The damaged files stay beside the log, ending in .damaged and a number.")
