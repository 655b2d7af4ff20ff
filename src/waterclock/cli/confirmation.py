"""Asking before something is gone for good.

On a terminal a person is asked, on stderr, so that stdout stays for what was asked for. Where
nobody can answer, nothing is done unless `--yes` says so.
"""

import sys

import typer

from waterclock.cli.output.terminal import one_line
from waterclock.model.errors import BadInput

EXIT_DECLINED = 1


def ask(question: str, *, is_agreed: bool) -> None:
    """Return if it may be done; end the command if it was declined."""
    if is_agreed:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise BadInput(f"{one_line(question)} Nobody is here to ask: add --yes to do it")
    if not typer.confirm(one_line(question), err=True):
        typer.echo("Nothing was changed.", err=True)
        raise typer.Exit(EXIT_DECLINED)
