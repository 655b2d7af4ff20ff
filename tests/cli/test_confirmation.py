"""Nothing is gone for good unless somebody said yes."""

import io
import sys

import pytest

from tests.cli.terminals import Seen, at_terminal
from waterclock.cli.output.terminal import ask
from waterclock.model.errors import BadInput

PROGRAM = """
import typer
from waterclock.cli.output.terminal import ask
app = typer.Typer()
@app.command()
def main():
    ask("Delete it?", is_agreed=False)
    print("deleted")
app()
"""


def asked(answer: str) -> Seen:
    return at_terminal("-c", PROGRAM, typed=answer)


def test_yes_is_not_asked(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO())

    ask("Delete it?", is_agreed=True)


def test_where_nobody_can_answer_it_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))

    with pytest.raises(BadInput, match="Nobody is here to ask: add --yes"):
        ask("Delete it?", is_agreed=False)


def test_a_person_may_agree():
    seen = asked("y\n")

    assert seen.exit_code == 0
    assert "deleted" in seen.screen


def test_a_person_may_decline_and_that_is_the_default():
    seen = asked("\n")

    assert seen.exit_code == 1
    assert "Delete it? [y/N]" in seen.screen
    assert "Nothing was changed." in seen.screen
    assert "deleted" not in seen.screen
