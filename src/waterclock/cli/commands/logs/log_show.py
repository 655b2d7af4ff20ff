"""`waterclock log show`: segments, open scheduled messages and messages of a log, from its frames.

It trusts side-cars for what they cover, so a large log opens as fast as a small one, and reads
only the frames it shows. Damage that it meets stands in its place; `log check` looks for the rest.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from waterclock.cli.commands.logs.log import damage_json, one_log
from waterclock.cli.output.terminal import (
    bytes_json,
    bytes_text,
    console,
    counted,
    due_text,
    one_line,
    print_json,
    size_text,
    table,
    time_text,
)

if TYPE_CHECKING:
    from waterclock.log.frame import Frame
    from waterclock.log.recovery import Damage
    from waterclock.model.message import Message
    from waterclock.storage.segment_file import SegmentFile
    from waterclock.storage.survey import Survey

COUNT_DEFAULT = 20
SCHEDULED_SHOWN = 5
OFFSETS_SHOWN = 8
ID_CHARS = 36
KEY_CHARS = 20
VALUE_CHARS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the listing: a message, or what else stands in the log."""

    offset: int
    kind: str
    append_ms: int | None = None
    message: "Message | None" = None
    note: str = ""
    damage: "Damage | None" = None


def show(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of a log.")],
    first: Annotated[
        int | None,
        typer.Option(
            "--from",
            metavar="OFFSET",
            help="First offset; negative counts from the end.",
            show_default="the start",
        ),
    ] = None,
    count: Annotated[int, typer.Option(min=0, help="How many messages, at most.")] = COUNT_DEFAULT,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the segments of a log, its open scheduled messages, and some of its messages."""
    from waterclock.storage.folders.read_only_folder import ReadOnlyFolder
    from waterclock.storage.survey import look

    with ReadOnlyFolder(one_log(folder)) as held:
        survey = look(held)
        offset = _absolute(first, survey)
        rows = list(islice(_rows(survey, offset), count))
        if as_json:
            print_json(_plain(held.path, survey, rows, count))
        else:
            _tell(console(), held.path, survey, rows)


def _absolute(first: int | None, survey: "Survey") -> int:
    """Return the offset to begin with; one past the end counts back from there."""
    if first is None:
        return survey.start
    return first if first >= 0 else max(survey.start, survey.end + first)


# From frames to rows


def _rows(survey: "Survey", offset: int) -> Iterator[Row]:
    from waterclock.log.recovery import Damage

    for found in survey.walk(offset):
        if isinstance(found, Damage):
            note = one_line(str(found))
            yield Row(offset=found.start, kind="damaged", note=note, damage=found)
        else:
            yield from _frame_rows(found, offset)


def _frame_rows(frame: "Frame", offset: int) -> Iterator[Row]:
    from waterclock.log.frame import FrameType
    from waterclock.storage.local_log import stored_messages

    header = frame.header
    kind = header.type.name.lower()
    if header.type in (FrameType.DATA, FrameType.SCHEDULED, FrameType.FIRED):
        for at, message in stored_messages(frame, offset):
            yield Row(offset=at, kind=kind, append_ms=header.append_ms, message=message)
    else:
        note = _note(frame)
        yield Row(offset=header.base_offset, kind=kind, append_ms=header.append_ms, note=note)


def _note(frame: "Frame") -> str:
    """Say what a frame without messages says."""
    from waterclock.log.frame import FLAG_EXPIRED, FrameType
    from waterclock.log.schema import decode

    header = frame.header
    if header.type is FrameType.EPOCH:
        return f"epoch {header.epoch} begins"
    if header.type is FrameType.NOOP:
        return f"nothing is left of [{header.base_offset}, {header.end_offset})"
    if header.type is FrameType.SEEN:
        return f"{header.rows} ids of messages that are gone"
    rows = decode(header, frame.body)
    scheduled = rows.column("scheduled_offset").slice(0, OFFSETS_SHOWN).to_pylist()
    if header.type is FrameType.RESCHEDULE:
        dues = rows.column("due_ms").slice(0, OFFSETS_SHOWN).to_pylist()
        shown = [f"{at} to {time_text(due)}" for at, due in zip(scheduled, dues, strict=True)]
    else:
        shown = [str(at) for at in scheduled]
    what = "expired scheduled messages" if header.flags & FLAG_EXPIRED else "scheduled messages"
    return f"{what} {', '.join(shown)}{', …' if header.rows > OFFSETS_SHOWN else ''}"


# For machines


def _plain(path: Path, survey: "Survey", rows: list[Row], count: int) -> dict[str, object]:
    offsets, dues = survey.scheduled
    soonest = sorted(zip(dues.tolist(), offsets.tolist(), strict=True))[:count]
    return {
        "folder": str(path),
        "start": survey.start,
        "end": survey.end,
        "segments": [
            {
                "file": segment.file.name,
                "start": segment.base_offset,
                "end": segment.end_offset,
                "bytes": segment.end_position,
                "generation": segment.header.generation,
                "created_ms": segment.header.created_ms,
                "damage": [damage_json(found) for at, found in survey.damage if at is segment],
            }
            for segment in survey.segments
        ],
        "torn": None if survey.torn is None else survey.torn._asdict(),
        "scheduled": {
            "open": len(offsets),
            "next": [{"offset": offset, "due_ms": due_ms} for due_ms, offset in soonest],
        },
        "messages": [_plain_row(row) for row in rows],
    }


def _plain_row(row: Row) -> dict[str, object]:
    plain: dict[str, object] = {"offset": row.offset, "kind": row.kind}
    if row.damage is not None:
        return {**plain, "damage": damage_json(row.damage)}
    plain["append_ms"] = row.append_ms
    message = row.message
    if message is None:
        return {**plain, "note": row.note}
    headers = message.headers
    return {
        **plain,
        "id": bytes_json(message.message_id),
        "key": bytes_json(message.key),
        "value": bytes_json(message.value),
        "headers": None if headers is None else {k: bytes_json(v) for k, v in headers.items()},
        "due_ms": message.due_ms,
    }


# For people


def _tell(out: Console, path: Path, survey: "Survey", rows: list[Row]) -> None:
    now_ms = time.time_ns() // 1_000_000
    out.print(f"{path}: offsets [{survey.start}, {survey.end})", style="bold", soft_wrap=True)
    out.print()
    _tell_segments(out, survey, rows)
    out.print()
    _tell_scheduled(out, survey, now_ms)
    out.print()
    if not rows:
        out.print("No messages there.")
        return
    lines = table(out, ">offset", "kind", "~id", "~key", "~value", "due")
    for row in rows:
        lines.add_row(*_cells(row, now_ms))
    out.print(lines)


def _tell_segments(out: Console, survey: "Survey", rows: list[Row]) -> None:
    met = [row.damage for row in rows if row.damage is not None]
    opened = [damage for _, damage in survey.damage]
    known = [*opened, *(damage for damage in met if damage not in opened)]
    lines = table(out, ">segment", ">end", ">bytes", "begun", "damage")
    for segment in survey.segments:
        lines.add_row(
            str(segment.base_offset),
            str(segment.end_offset),
            size_text(segment.end_position),
            time_text(segment.header.created_ms),
            _damage(segment, known),
        )
    out.print(lines)
    if survey.torn is not None:
        out.print(f"The end is torn; an opening cuts it off at offset {survey.torn.offset}.")


def _damage(segment: "SegmentFile", known: "list[Damage]") -> Text:
    count = sum(segment.base_offset <= damage.start < segment.end_offset for damage in known)
    if count:
        return Text(f"{count} known", style="bold red")
    return Text("none known", style="dim")


def _tell_scheduled(out: Console, survey: "Survey", now_ms: int) -> None:
    offsets, dues = survey.scheduled
    soonest = sorted(zip(dues.tolist(), offsets.tolist(), strict=True))[:SCHEDULED_SHOWN]
    if not soonest:
        out.print("0 open scheduled messages.")
        return
    out.print(f"{counted(len(offsets), 'open scheduled message')}, the next:")
    lines = table(out, ">offset", "due", "")
    for due_ms, offset in soonest:
        lines.add_row(str(offset), time_text(due_ms), due_text(due_ms, now_ms))
    out.print(lines)


def _cells(row: Row, now_ms: int) -> tuple[str | Text, ...]:
    message = row.message
    if message is None:
        style = "bold red" if row.damage is not None else "dim"
        return str(row.offset), Text(row.kind, style=style), "", "", Text(row.note, style=style), ""
    assert message.message_id is not None
    value = message.value
    return (
        str(row.offset),
        row.kind,
        bytes_text(message.message_id, chars_max=ID_CHARS),
        "" if message.key is None else bytes_text(message.key, chars_max=KEY_CHARS),
        "(tombstone)" if value is None else bytes_text(value, chars_max=VALUE_CHARS),
        "" if message.due_ms is None else due_text(message.due_ms, now_ms),
    )
