"""`waterclock demo`: a short tour of a node, with real time, real failures and a real crash.

The acts are in `tour`, whose `narrator` tells them. It ends with 1 if any promise was broken, so it
doubles as a smoke test of an installation.
"""

import asyncio
import logging
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waterclock.cli.options import AsJson
from waterclock.cli.output.terminal import busy, console, print_json
from waterclock.model.errors import BadInput, StorageFailed

if TYPE_CHECKING:
    from waterclock.cli.tour.acts import Act, Acts

EXIT_BROKEN = 1


def demo(
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Where: a new or empty folder.", show_default="a temporary one"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a node at work: schedule, retry, dead-letter, redrive, kill -9, recover, replay."""
    import uvloop

    folder = _folder(data)
    with busy("getting ready"):
        from waterclock.cli.tour.narrator import Narrator
        from waterclock.cli.tour.performance import play
    started = time.perf_counter()
    narrator = None if as_json else Narrator(console(), folder)
    if narrator is not None:
        narrator.begin()

    def tell(act: "Act") -> None:
        if narrator is not None:
            narrator.tell(act)

    with _quiet_client(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        acts = runner.run(play(folder, tell))
    seconds = time.perf_counter() - started
    if narrator is None:
        print_json(_plain(folder, acts, seconds))
    else:
        narrator.end(acts, seconds)
    if acts.broken():
        raise typer.Exit(EXIT_BROKEN)


@contextmanager
def _quiet_client() -> Iterator[None]:
    """The show kills the node itself, and tells of it: that its client waits is no news."""
    log = logging.getLogger("waterclock.client")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _folder(data: Path | None) -> Path:
    """Return a folder with nothing in it."""
    try:
        if data is None:
            return Path(tempfile.mkdtemp(prefix="waterclock-demo-"))
        if data.exists() and (not data.is_dir() or any(data.iterdir())):
            raise BadInput(f"{data} is not an empty folder: choose a new one for the demo")
        data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        where = "a temporary folder" if data is None else data
        raise StorageFailed(f"cannot make {where} ({error.strerror}): choose another") from error
    return data.absolute()


def _plain(folder: Path, acts: "Acts", seconds: float) -> dict[str, object]:
    broken = acts.broken()
    plain = asdict(acts)
    plain["crashed"]["lost"] = acts.crashed.lost
    return {
        "ok": not broken,
        "broken": broken,
        "lost": acts.crashed.lost,
        "folder": str(folder),
        "seconds": round(seconds, 3),
        **plain,
    }
