"""A demo as a program: it takes options, and an error is one line, as with `waterclock`."""

from collections.abc import Callable

import typer

from waterclock.cli.app import Commands


def command(demo: Callable[..., None]) -> typer.Typer:
    """Return a program that runs a demo; the function's parameters are its options."""
    app = typer.Typer(
        cls=Commands,
        subcommand_metavar="",
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(demo)
    return app
