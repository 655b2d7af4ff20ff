"""All commands put together, and the one place where an error becomes a line and an exit code."""

import io
import os
import sys
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup, TyperOption

import waterclock
from waterclock.cli import credential_option
from waterclock.cli.commands import (
    bench,
    dlq,
    groups,
    pipeline,
    schedule,
    secure,
    streams,
    topics,
)
from waterclock.cli.commands.backups.backup import backup
from waterclock.cli.commands.backups.restore import restore
from waterclock.cli.commands.cluster import cluster
from waterclock.cli.commands.dispatch import dispatch
from waterclock.cli.commands.log import check, repair
from waterclock.cli.commands.log_show import show
from waterclock.cli.commands.publish import publish
from waterclock.cli.commands.receive import receive
from waterclock.cli.commands.replay import replay, replays_app
from waterclock.cli.commands.send import send
from waterclock.cli.commands.subscribe import subscribe
from waterclock.cli.commands.up import up
from waterclock.cli.commands.worker import worker
from waterclock.cli.output.terminal import one_line
from waterclock.model.errors import WaterclockError

EXIT_ERROR = 2


def _say_no_type_of_flags() -> None:
    """Keep `<bool>` out of the help: it reads as if `--json` took a value."""
    display = TyperOption.display_type_rich

    def display_type_rich(option: TyperOption, ctx: object) -> str | None:
        return None if option.is_flag else display(option, cast(Any, ctx))

    cast(Any, TyperOption).display_type_rich = display_type_rich


_say_no_type_of_flags()


class Commands(TyperGroup):
    """A group whose commands fail with one line instead of a traceback."""

    def invoke(self, ctx: object) -> object:
        """Run the command; an error of ours is one line: the user can mend it."""
        try:
            try:
                return super().invoke(cast(typer.Context, ctx))
            finally:
                sys.stdout.flush()  # what cannot be written fails here, not after the end
        except WaterclockError as error:
            print(f"error: {one_line(str(error))}", file=sys.stderr)
            raise typer.Exit(EXIT_ERROR) from error
        except BrokenPipeError as error:
            # The reader has enough, as with `| head`: that is no failure.
            _write_no_more()
            raise typer.Exit from error
        except OSError as error:
            _write_no_more()
            where = f"{error.filename}: " if error.filename else ""
            print(f"error: {one_line(f'{where}{error.strerror or error}')}", file=sys.stderr)
            raise typer.Exit(EXIT_ERROR) from error


def _write_no_more() -> None:
    """Let what is still to be written to stdout, by Python when it ends, go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


app = typer.Typer(
    cls=Commands,
    name="waterclock",
    help="Waterclock: when a message is delivered matters as much as to whom.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
log_app = typer.Typer(help="Look into a log on disk, or repair it.", no_args_is_help=True)

RUNNING, MESSAGES, UPKEEP = "Running", "Messages", "Looking after a node"

app.command("up", rich_help_panel=RUNNING)(up)
app.command("dispatch", rich_help_panel=RUNNING)(dispatch)
app.command("worker", rich_help_panel=RUNNING)(worker)
app.command("publish", rich_help_panel=MESSAGES)(publish)
app.command("subscribe", rich_help_panel=MESSAGES)(subscribe)
app.command("replay", rich_help_panel=MESSAGES)(replay)
app.command("send", rich_help_panel=MESSAGES)(send)
app.command("receive", rich_help_panel=MESSAGES)(receive)
app.add_typer(schedule.app, name="schedule", rich_help_panel=MESSAGES)
app.add_typer(dlq.app, name="dlq", rich_help_panel=MESSAGES)
app.add_typer(secure.app, name="secure", rich_help_panel=RUNNING)
app.add_typer(topics.app, name="topics", rich_help_panel=UPKEEP)
app.add_typer(groups.app, name="groups", rich_help_panel=UPKEEP)
app.add_typer(streams.app, name="streams", rich_help_panel=UPKEEP)
app.add_typer(cluster.app, name="cluster", rich_help_panel=UPKEEP)
app.add_typer(pipeline.app, name="pipeline", rich_help_panel=UPKEEP)
app.add_typer(replays_app, name="replays", rich_help_panel=UPKEEP)
app.command("backup", rich_help_panel=UPKEEP)(backup)
app.command("restore", rich_help_panel=UPKEEP)(restore)
app.add_typer(bench.app, name="bench", rich_help_panel=RUNNING)
app.add_typer(log_app, name="log", rich_help_panel=UPKEEP)
log_app.command("show")(show)
log_app.command("check")(check)
log_app.command("repair")(repair)
credential_option.add_to_all(app)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"waterclock {waterclock.__version__}")
        raise typer.Exit


@app.callback()
def waterclock_command(
    _: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Waterclock: when a message is delivered matters as much as to whom."""


def main() -> None:
    """Run the command line of this process."""
    run(app, name="waterclock")


def run(app: typer.Typer, *, name: str) -> None:
    """Run a program on the command line of this process."""
    # gRPC reports to stderr whatever it does to a connection; what matters comes as an error.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    for stream in (sys.stdout, sys.stderr):
        # Names and messages hold any bytes; a terminal that cannot show one gets its code.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app(prog_name=name)
