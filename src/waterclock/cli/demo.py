"""`waterclock demo`: a short tour of the log, on a real disk, with a real crash and real rot.

The acts are in `tour`, and `narrator` tells them. It ends with 1 if any promise was broken, so it
doubles as a smoke test of an installation.
"""

import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waterclock.cli.terminal import busy, console, print_json
from waterclock.model.errors import BadInput, StorageFailed

if TYPE_CHECKING:
    from waterclock.cli.tour import Act, Acts

EXIT_BROKEN = 1


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
    folder = _folder(data)
    with busy("getting ready"):
        from waterclock.cli.narrator import Narrator
    started = time.perf_counter()
    if as_json:
        acts = _play(folder, tell=lambda act: None)
        print_json(_plain(folder, acts, time.perf_counter() - started))
    else:
        narrator = Narrator(console(), folder)
        narrator.begin()
        acts = _play(folder, tell=narrator.tell)
        narrator.end(acts, time.perf_counter() - started)
    if acts.broken():
        raise typer.Exit(EXIT_BROKEN)


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


def _play(folder: Path, *, tell: "Callable[[Act], None]") -> "Acts":
    """Play all acts, telling of each when it is over."""
    from waterclock.cli import tour
    from waterclock.storage.local_log import open_log

    path = folder / "log"
    with open_log(path, log=tour.LOG) as log:
        with busy("publishing"):
            published = tour.publish(log)
        tell(published)
        with busy("publishing again"):
            repeated = tour.repeat(log, published)
        tell(repeated)
        promised = tour.promise(log)
        tell(promised)
    with busy("another process is publishing"):
        crashed = tour.crash(path)
    tell(crashed)
    with busy("copying the log, flipping a bit, reading all of it"):
        rotted = tour.rot(path, folder / "damaged", at=tour.BATCH * 3 // 2)
    tell(rotted)
    return tour.Acts(published, repeated, promised, crashed, rotted)


def _plain(folder: Path, acts: "Acts", seconds: float) -> dict[str, object]:
    broken = acts.broken()
    plain = asdict(acts)
    plain["promised"]["soonest"] = [promise._asdict() for promise in acts.promised.soonest]
    plain["crashed"]["lost"] = acts.crashed.lost
    return {
        "ok": not broken,
        "broken": broken,
        "lost": acts.crashed.lost,
        "folder": str(folder),
        "seconds": round(seconds, 3),
        **plain,
    }
