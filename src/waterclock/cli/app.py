"""All commands put together, and the one place where an error becomes a line and an exit code."""

import io
import os
import sys
from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

import waterclock
from waterclock.cli import credential_option
from waterclock.cli.catalog import COMMANDS
from waterclock.cli.output.terminal import one_line
from waterclock.cli.plain_parameters import use_plain_parameters
from waterclock.model.errors import WaterclockError

EXIT_ERROR = 2


def _say_no_type_of_flags() -> None:
    """Keep `<bool>` out of the help: it reads as if `--json` took a value."""
    display = TyperOption.display_type_rich

    def display_type_rich(option: TyperOption, ctx: object) -> str | None:
        return None if option.is_flag else display(option, cast(Any, ctx))

    cast(Any, TyperOption).display_type_rich = display_type_rich


_say_no_type_of_flags()
use_plain_parameters()


class Loaded(MutableMapping[str, Any]):
    """The commands of the catalog, each imported when it is first looked up."""

    def __init__(self) -> None:
        self._found: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - a class that typer keeps to itself
        if name not in self._found:
            self._found[name] = _load(name)
        return self._found[name]

    def __setitem__(self, name: str, command: object) -> None:
        self._found[name] = command

    def __delitem__(self, name: str) -> None:
        del self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)

    def __contains__(self, name: object) -> bool:
        return name in COMMANDS


def _load(name: str) -> object:
    """Import a command, and return it as it is called."""
    entry = COMMANDS[name]
    found = getattr(import_module(f"waterclock.cli.commands.{entry.module}"), entry.attribute)
    alone = typer.Typer()
    alone.callback()(lambda: None)
    if isinstance(found, typer.Typer):
        alone.add_typer(found, name=name, rich_help_panel=entry.panel)
    else:
        alone.command(name, rich_help_panel=entry.panel)(found)
    credential_option.add_to_all(alone)
    return typer.main.get_group(alone).commands[name]


class Commands(TyperGroup):
    """A group whose commands fail with one line instead of a traceback.

    Only the command that is called is loaded; of the others there is what the catalog says.
    """

    def __init__(self, **given: Any) -> None:  # noqa: ANN401 - of many kinds, typer's own
        super().__init__(**given)
        self.commands = Loaded()

    def list_commands(self, ctx: object) -> list[str]:
        """Return the names of all, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: object, cmd_name: str) -> Any:  # noqa: ANN401
        """Return what the help needs of a command."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        return TyperCommand(name=cmd_name, help=entry.help, rich_help_panel=entry.panel)

    def resolve_command(self, ctx: object, args: list[str]) -> Any:  # noqa: ANN401
        """Return the command that is called, loaded."""
        name, command, rest = super().resolve_command(cast(Any, ctx), args)
        return name, None if command is None else self.commands[cast(str, name)], rest

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
