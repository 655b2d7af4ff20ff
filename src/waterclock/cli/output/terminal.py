"""How things are shown: consoles, tables, questions, and bytes, sizes and times for people.

Messages come from strangers. Their bytes are escaped before they reach a terminal, so that a value
can neither move the cursor nor pass for markup.
"""

import json
import re
import shlex
import shutil
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import typer

from waterclock.model.errors import BadInput
from waterclock.model.units import DAY_MS, HOUR_MS, KIB, MIB, MINUTE_MS, SECOND_MS

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

PIPE_WIDTH = 160
"""In a pipe there is no edge to fit; this only bounds what a line may become."""
_UUID_BYTES = 16
_ODD_SHARE = 4
"""Text of which more than one character in so many must be escaped is not meant as text."""
_SURROGATE = re.compile("[\udc80-\udcff]")
_PROGRESS_BYTES = 1 * MIB


def console() -> "Console":
    """Return the console of stdout: coloured on a terminal, plain text in a pipe."""
    from rich.console import Console

    class Stdout(Console):
        def on_broken_pipe(self) -> None:
            """Let `Commands` print it as all other errors: Rich would end the process as failed."""
            raise

    is_pipe = not sys.stdout.isatty()
    width = PIPE_WIDTH if is_pipe else None
    return Stdout(width=width, soft_wrap=is_pipe, highlight=False, markup=False, emoji=False)


def say(line: str) -> None:
    """Print a line for people that has no colours, without Rich, which takes its time to load."""
    print(line)


def styled(text: str, style: str = "", **options: Any) -> "Text":  # noqa: ANN401 - Rich's own
    """Return text that stands out on a terminal."""
    from rich.text import Text

    return Text(text, style=style, **options)


def grid() -> "Table":
    """Return a table without a head or lines, of facts and their names."""
    from rich.table import Table

    return Table.grid(padding=(0, 2))


def table(out: "Console", *columns: str) -> "Table":
    """Return an empty table; a column named `>…` is of numbers, only a column `~…` may wrap."""
    from rich import box
    from rich.table import Table

    made = Table(
        box=box.SIMPLE_HEAD if out.is_terminal else None,
        header_style="bold",
        pad_edge=False,
        show_edge=False,
        padding=(0, 1, 0, 0) if out.is_terminal else (0, 2, 0, 0),
    )
    for column in columns:
        made.add_column(
            styled(column.lstrip(">~")),
            justify="right" if column.startswith(">") else "left",
            no_wrap=not column.startswith("~"),
            overflow="fold" if column.startswith("~") else "ellipsis",
        )
    return made


def print_json(found: object) -> None:
    """Print one object for machines, at once: somebody may be waiting at the other end."""
    print(json.dumps(found), flush=True)


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show on stderr, if it is a terminal, how much of so many bytes is done."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    err = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bars:
        task = bars.add_task(what, total=total)
        waiting = 0

        def advance(count: int) -> None:
            nonlocal waiting
            waiting += count
            if waiting >= _PROGRESS_BYTES:  # a step for every small frame would cost more than it
                bars.update(task, advance=waiting)
                waiting = 0

        yield advance


@contextmanager
def busy(what: str) -> Iterator[Callable[[str], None]]:
    """Show on stderr, if it is a terminal, what is being done; yields a way to say it anew."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    err = Console(stderr=True)
    with err.status(what) as status:
        yield status.update


def note(text: str) -> None:
    """Print something for a person at a terminal, on stderr; a pipe gets nothing."""
    if sys.stderr.isatty():
        from rich.console import Console

        err = Console(stderr=True, highlight=False, markup=False, emoji=False)
        err.print(styled(text, "dim"), soft_wrap=True)


def tell_made(topic: str, partitions: int) -> None:
    """Tell on stderr that a command has made a topic, if it has: the name may be mistyped."""
    if partitions:
        typer.echo(f"topic {topic} was made ({counted(partitions, 'partition')})", err=True)


def counted(count: int, noun: str) -> str:
    """Return how many there are of something."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def one_line(text: str) -> str:
    """Return text without line breaks or anything a terminal would act on."""
    return "".join(c if c.isprintable() else _escaped(c) for c in " ".join(text.split()))


def bytes_text(data: bytes, *, chars_max: int) -> str:
    """Return bytes as people read them: text, a UUID, or hexadecimal; shortened."""
    # Not all of it: a value may be megabytes. A letter cut in half at the end is left out.
    text = data[: 4 * chars_max + 4].decode(errors="surrogateescape")
    if len(data) > 4 * chars_max + 4:
        text = text[: chars_max + 1]
    odd = sum(not char.isprintable() for char in text)
    if odd * _ODD_SHARE <= len(text) and not _SURROGATE.search(text):
        return _shortened("".join(c if c.isprintable() else _escaped(c) for c in text), chars_max)
    if len(data) == _UUID_BYTES and data[6] >> 4 == 7 and data[8] >> 6 == 2:
        return str(UUID(bytes=data))
    return _shortened(f"0x{data[:chars_max].hex()}", chars_max)


def bytes_json(data: bytes | None) -> str | dict[str, str] | None:
    """Return bytes as JSON: a string if they are text, else an object with their base64."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(data).decode()}


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode()


def _shortened(text: str, chars_max: int) -> str:
    return text if len(text) <= chars_max else f"{text[: chars_max - 1]}…"


def size_text(count: int) -> str:
    """Return a number of bytes with three digits and a unit."""
    if count < KIB:
        return f"{count} B"
    value, units = float(count), iter(("KiB", "MiB", "GiB", "TiB"))
    unit = ""
    while value >= 1000 and (following := next(units, "")):
        value, unit = value / KIB, following
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def time_text(ms: int) -> str:
    """Return a time in the local zone, to the second."""
    try:
        return f"{datetime.fromtimestamp(ms / SECOND_MS):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):  # past the year 9999
        return f"{ms} ms"


def span_text(ms: int) -> str:
    """Return a length of time in its greatest unit, and the next smaller one if there is some."""
    units = ((DAY_MS, "d"), (HOUR_MS, "h"), (MINUTE_MS, "min"), (SECOND_MS, "s"), (1, "ms"))
    for (size, unit), (size_below, unit_below) in pairwise(units):
        if ms >= size:
            count, rest = divmod(ms, size)
            below = rest // size_below if size_below >= SECOND_MS else 0
            return f"{count} {unit} {below} {unit_below}" if below else f"{count} {unit}"
    return f"{ms} ms"


def due_text(due_ms: int, now_ms: int) -> str:
    """Return how far a due time is from now."""
    away = due_ms - now_ms
    return f"in {span_text(away)}" if away >= 0 else f"{span_text(-away)} ago"


def program() -> str:
    """Return how this program can be called again from here."""
    found = shutil.which(sys.argv[0])
    if found is not None and Path(found).name == "waterclock":
        return "waterclock" if shutil.which("waterclock") == found else shlex.quote(sys.argv[0])
    return f"{shlex.quote(sys.executable)} -m waterclock"


def next_lines(out: "Console", lines: Sequence[tuple[str, str]]) -> None:
    """Show commands to type, each with what it is for."""
    width = max(len(line) for line, _ in lines)
    for line, why in lines:
        command = styled(f"   {line:<{width}}  ", "cyan").append(f"# {why}", style="dim")
        out.print(command, soft_wrap=True)


EXIT_DECLINED = 1


def ask(question: str, *, is_agreed: bool) -> None:
    """Ask before something is gone for good; end the command if it was declined.

    A person is asked on stderr, so that stdout stays for what was asked for. Where nobody can
    answer, nothing is done unless `--yes` says so.
    """
    if is_agreed:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise BadInput(f"{one_line(question)} Nobody is here to ask: add --yes to do it")
    if not typer.confirm(one_line(question), err=True):
        typer.echo("Nothing was changed.", err=True)
        raise typer.Exit(EXIT_DECLINED)
