"""`waterclock demo`: a short tour of the log, on a real disk, with a real crash and real rot.

The acts are in `tour`; here they are told. It ends with 1 if any promise was broken, so it doubles
as a smoke test of an installation.
"""

import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

import waterclock
from waterclock.cli.terminal import (
    busy,
    console,
    due_text,
    one_line,
    print_json,
    table,
    time_text,
)
from waterclock.model.errors import BadInput, StorageFailed, translate

if TYPE_CHECKING:
    from waterclock.cli.tour import Crashed, Promised, Published, Repeated, Rotted

EXIT_BROKEN = 1
BAR_CHARS = 40
INDENT = 3


@dataclass(frozen=True, slots=True)
class Acts:
    """All that was done, in order."""

    published: "Published"
    repeated: "Repeated"
    promised: "Promised"
    crashed: "Crashed"
    rotted: "Rotted"

    def broken(self) -> list[str]:
        """Name the promises that were not kept."""
        crashed, rotted = self.crashed, self.rotted
        kept = {
            "an acknowledged message was lost": crashed.lost == 0,
            "an earlier message was lost": crashed.earlier == self.published.messages,
            "a promise was lost": crashed.promises == self.promised.messages,
            "a message was written twice": self.repeated.written == 0,
            "a repeat was not answered with its first offset": (
                self.repeated.same_offsets == self.repeated.messages
            ),
            "damage was not found": rotted.is_found,
            "a wrong message was served": rotted.wrong == 0,
            "bytes were changed around damage": rotted.is_unchanged,
        }
        return [what for what, is_kept in kept.items() if not is_kept]


def demo(
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Where: a new or empty folder.", show_default="a temporary one"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the log at work: publish, repeat, promise, kill, recover, and find a flipped bit."""
    started = time.perf_counter()
    folder = _folder(data)
    teller = None if as_json else Teller(console())
    acts = _play(folder, teller)
    seconds = time.perf_counter() - started
    broken = acts.broken()
    if teller is None:
        print_json(_plain(folder, acts, broken, seconds))
    else:
        teller.end(folder, broken, seconds)
    if broken:
        raise typer.Exit(EXIT_BROKEN)


def _folder(data: Path | None) -> Path:
    """Return a folder with nothing in it."""
    with translate({OSError: StorageFailed}):
        if data is None:
            return Path(tempfile.mkdtemp(prefix="waterclock-demo-"))
        if data.exists() and (not data.is_dir() or any(data.iterdir())):
            raise BadInput(f"{data} is not an empty folder: choose a new one for the demo")
        data.mkdir(parents=True, exist_ok=True)
        return data.absolute()


def _play(folder: Path, teller: "Teller | None") -> Acts:
    with busy("getting ready"):
        from waterclock.cli import tour
        from waterclock.storage.local_log import open_log

    path = folder / "log"
    if teller:
        teller.begin(folder)
    with open_log(path, log=tour.LOG) as log:
        with busy("publishing"):
            published = tour.publish(log)
        if teller:
            teller.published(published)
        with busy("publishing again"):
            repeated = tour.repeat(log, published)
        if teller:
            teller.repeated(repeated, published)
        promised = tour.promise(log)
        if teller:
            teller.promised(promised)
    with busy("another process is publishing"):
        crashed = tour.crash(path)
    if teller:
        teller.crashed(crashed)
    with busy("copying the log, flipping a bit, reading all of it"):
        rotted = tour.rot(path, folder / "damaged")
    if teller:
        teller.rotted(rotted)
    return Acts(published, repeated, promised, crashed, rotted)
