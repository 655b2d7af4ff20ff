"""`python -m demos.node`, or `make demo`: a node at work, with failures and a real crash.

It ends with 1 if any guarantee was broken, so it doubles as a smoke test.
"""

import asyncio
import logging
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from demos.command import command
from demos.node.printer import Printer
from demos.node.run import run
from demos.node.steps import Step, Steps
from waterclock.cli.app import run as run_program
from waterclock.cli.options import AsJson
from waterclock.cli.output.terminal import console, print_json
from waterclock.model.errors import BadInput, StorageFailed

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
    folder = _folder(data)
    started = time.perf_counter()
    printer = None if as_json else Printer(console(), folder)
    if printer is not None:
        printer.begin()

    def on_step(step: Step) -> None:
        if printer is not None:
            printer.print_step(step)

    with _quiet_client(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        steps = runner.run(run(folder, on_step))
    seconds = time.perf_counter() - started
    if printer is None:
        print_json(_plain(folder, steps, seconds))
    else:
        printer.end(steps, seconds)
    if steps.broken():
        raise typer.Exit(EXIT_BROKEN)


@contextmanager
def _quiet_client() -> Iterator[None]:
    """Silence the client, which would warn of a node that the demo itself has killed."""
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


def _plain(folder: Path, steps: Steps, seconds: float) -> dict[str, object]:
    broken = steps.broken()
    plain = asdict(steps)
    crashes = [steps.crashed, *filter(None, [steps.failed_over.orders])]
    lost = sum(crashed.lost for crashed in crashes)
    plain["crashed"]["lost"] = steps.crashed.lost
    return {
        "ok": not broken,
        "broken": broken,
        "lost": lost,
        "folder": str(folder),
        "seconds": round(seconds, 3),
        **plain,
    }


app = command(demo)

if __name__ == "__main__":
    run_program(app, name="python -m demos.node")
