"""`python -m demos.dispatch`, or `make demo-dispatch`: dispatchers and workers on one machine.

It ends with 1 if a message was lost or written twice, so it doubles as a smoke test.
"""

import asyncio
import os
import signal
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer

from demos.command import command
from demos.dispatch.chaos import VICTIMS
from demos.dispatch.outcome import Outcome
from demos.dispatch.run import DemoOptions, run
from demos.dispatch.screen import Screen
from waterclock.cli.app import run as run_program
from waterclock.cli.daemon import ONE_LINE, require_redis
from waterclock.cli.node_call import EXIT_INTERRUPTED
from waterclock.cli.options import AsJson
from waterclock.cli.output.terminal import console, print_json
from waterclock.model.errors import BadInput
from waterclock.runtime.lifecycle import first_error

EXIT_BROKEN = 1
SOURCE_KINDS = ("stream", "pubsub")


def demo(
    seconds: Annotated[float, typer.Option(min=1, metavar="N", help="How long devices send.")] = 20,
    rate: Annotated[
        int, typer.Option(min=1, metavar="N", help="Messages they send each second.")
    ] = 2_000,
    workers: Annotated[int, typer.Option(min=1, max=64, metavar="N", help="Worker processes.")] = 4,
    source_kind: Annotated[
        str, typer.Option(metavar="KIND", help="How devices send: stream or pubsub.")
    ] = "stream",
    is_chaotic: Annotated[
        bool, typer.Option("--chaos", help="Kill the leader or a worker now and then.")
    ] = False,
    victims: Annotated[
        list[str] | None,
        typer.Option("--kill", metavar="WHOM", help="Kill only the leader, or only workers."),
    ] = None,
    every_s: Annotated[
        float, typer.Option("--every", min=0.5, metavar="SECONDS", help="How often one is killed.")
    ] = 4,
    redis: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="A Redis that runs.", show_default="starts one of its own"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show it all at work: devices, a leader, a standby, workers, kills; and what came of it."""
    require_redis("dispatch")
    if source_kind not in SOURCE_KINDS:
        raise BadInput(f"--source-kind {source_kind!r} is neither stream nor pubsub")
    if unknown := set(victims or ()) - set(VICTIMS):
        raise BadInput(f"--kill {unknown.pop()!r} is neither leader nor worker")
    chosen = tuple(victims or (VICTIMS if is_chaotic else ()))
    seed = int.from_bytes(os.urandom(4))
    options = DemoOptions(seconds, rate, source_kind, workers, chosen, every_s, seed, redis)
    outcome = _run(options, as_json=as_json)
    if as_json:
        print_json(outcome.plain())
    if outcome.broken():
        raise typer.Exit(EXIT_BROKEN)


def _run(options: DemoOptions, *, as_json: bool) -> Outcome:
    screen = None if as_json else Screen(console(), seconds=options.seconds)
    with tempfile.TemporaryDirectory(prefix="waterclock-dispatch-") as folder:
        try:
            with asyncio.Runner() as runner:
                if screen is None:
                    return runner.run(_until_sigterm(run(options, Path(folder), lambda _: None)))
                screen.say(_opening(options))
                with screen.open():
                    outcome = runner.run(_until_sigterm(run(options, Path(folder), screen.show)))
                screen.end(outcome)
                return outcome
        except (KeyboardInterrupt, asyncio.CancelledError):
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except ExceptionGroup as problems:
            raise first_error(problems, ONE_LINE) from problems


async def _until_sigterm(work: Coroutine[Any, Any, Outcome]) -> Outcome:
    """Let SIGTERM do what Ctrl-C does: no process is left behind."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    return await work


def _opening(options: DemoOptions) -> str:
    kills = f", and somebody kills the {' or a '.join(options.victims)}" if options.victims else ""
    return (
        f"A Redis, a leader, a standby, {options.workers} workers, {options.rate:,} messages a"
        f" second by {options.source_kind} for {options.seconds:g} s{kills}."
    )


app = command(demo)

if __name__ == "__main__":
    run_program(app, name="python -m demos.dispatch")
