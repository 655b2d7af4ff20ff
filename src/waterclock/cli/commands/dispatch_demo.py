"""`waterclock dispatch demo`: the whole of it on one machine, live, with processes that die.

It ends with 1 if a message was lost or written twice, so it doubles as a test of an installation.
"""

import asyncio
import os
import signal
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waterclock.cli.connection import EXIT_INTERRUPTED
from waterclock.cli.daemon import require_redis, told_error
from waterclock.cli.options import AsJson
from waterclock.cli.output.terminal import busy, console, print_json
from waterclock.model.errors import BadInput

if TYPE_CHECKING:
    from waterclock.cli.dispatch_show.outcome import Outcome
    from waterclock.cli.dispatch_show.run import Play

EXIT_BROKEN = 1
INLETS = ("stream", "pubsub")


def demo(
    seconds: Annotated[float, typer.Option(min=1, metavar="N", help="How long devices send.")] = 20,
    rate: Annotated[
        int, typer.Option(min=1, metavar="N", help="Messages they send each second.")
    ] = 2_000,
    workers: Annotated[int, typer.Option(min=1, max=64, metavar="N", help="Worker processes.")] = 4,
    inlet: Annotated[
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
    with busy("getting ready"):
        from waterclock.cli.dispatch_show.chaos import VICTIMS
        from waterclock.cli.dispatch_show.run import Play

    if inlet not in INLETS:
        raise BadInput(f"--inlet {inlet!r} is neither stream nor pubsub")
    if unknown := set(victims or ()) - set(VICTIMS):
        raise BadInput(f"--kill {unknown.pop()!r} is neither leader nor worker")
    chosen = tuple(victims or (VICTIMS if is_chaotic else ()))
    seed = int.from_bytes(os.urandom(4))
    play = Play(seconds, rate, inlet, workers, chosen, every_s, seed, redis)
    outcome = _played(play, as_json=as_json)
    if as_json:
        print_json(outcome.plain())
    if outcome.broken():
        raise typer.Exit(EXIT_BROKEN)


def _played(play: "Play", *, as_json: bool) -> "Outcome":
    from waterclock.cli.dispatch_show.run import perform
    from waterclock.cli.dispatch_show.screen import Screen

    screen = None if as_json else Screen(console(), seconds=play.seconds)
    with tempfile.TemporaryDirectory(prefix="waterclock-dispatch-") as folder:
        try:
            with asyncio.Runner() as runner:
                if screen is None:
                    return runner.run(_until_sigterm(perform(play, Path(folder), lambda _: None)))
                screen.say(_opening(play))
                with screen.open():
                    outcome = runner.run(_until_sigterm(perform(play, Path(folder), screen.show)))
                screen.end(outcome)
                return outcome
        except (KeyboardInterrupt, asyncio.CancelledError):
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except ExceptionGroup as problems:
            raise told_error(problems) from problems


async def _until_sigterm(work: "Coroutine[Any, Any, Outcome]") -> "Outcome":
    """Let SIGTERM do what Ctrl-C does: nobody of the cast is left behind."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    return await work


def _opening(play: "Play") -> str:
    kills = f", and somebody kills the {' or a '.join(play.victims)}" if play.victims else ""
    return (
        f"A Redis, a leader, a standby, {play.workers} workers, {play.rate:,} messages a second"
        f" by {play.inlet} for {play.seconds:g} s{kills}."
    )
