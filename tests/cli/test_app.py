"""The command as a whole: version, help, and errors told in one line."""

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import pytest
import typer
from typer.core import TyperGroup

import waterclock as package
from waterclock.cli.app import app
from waterclock.cli.catalog import COMMANDS as COMMANDS_OF_THE_CATALOG


def test_the_version_is_that_of_the_project(waterclock):
    result = waterclock("--version")

    assert (result.exit_code, result.stdout) == (0, f"waterclock {version('waterclock')}\n")
    assert package.__version__ == version("waterclock")


def paths(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words that call each command there is."""
    yield path
    if isinstance(command, TyperGroup):
        for name, below in command.commands.items():
            yield from paths(below, (*path, name))


def command_at(path: tuple[str, ...]) -> Any:
    """Return the command that some words call."""
    command: Any = typer.main.get_group(app)
    for word in path:
        command = command.commands[word]
    return command


COMMANDS = list(paths(typer.main.get_group(app)))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_explains_itself_and_all_it_takes(waterclock, path):
    command = command_at(path)

    result = waterclock(*path, "--help")

    assert f"Usage: {' '.join(('waterclock', *path))}" in result.output
    assert command.help
    assert [parameter.name for parameter in command.params if not parameter.help] == []


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_that_works_can_print_json(path):
    command = command_at(path)

    assert isinstance(command, TyperGroup) or "--json" in [
        option for parameter in command.params for option in parameter.opts
    ]


def test_an_unknown_command_is_refused(waterclock):
    result = waterclock("frobnicate")

    assert result.exit_code == 2
    assert "No such command" in result.stderr


def test_the_package_runs_as_a_module():
    run = subprocess.run(
        [sys.executable, "-m", "waterclock", "log", "check", "/nowhere/at all"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert run.returncode == 2
    assert run.stderr == "error: /nowhere/at all does not exist: name the folder of a log\n"
    assert run.stdout == ""


def test_what_only_completion_and_help_need_is_light():
    """Importing the commands must not load Arrow or numpy, nor must importing the package."""
    program = "import sys, waterclock, waterclock.cli; print({'numpy', 'pyarrow'} & {*sys.modules})"

    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stdout == "set()\n"


def test_a_name_the_package_does_not_have_is_refused():
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        package.absent  # noqa: B018


@pytest.mark.parametrize("words", [["topics", "create"], ["up"], ["log", "check"], ["publish"]])
def test_help_says_no_type_of_flags(waterclock, words):
    said = waterclock(*words, "--help").stdout

    assert "--json" in said
    assert "<bool>" not in said


@pytest.mark.parametrize("name", COMMANDS_OF_THE_CATALOG)
def test_the_catalog_says_of_a_command_what_it_says_of_itself(name):
    command: Any = typer.main.get_group(app).commands[name]

    entry = COMMANDS_OF_THE_CATALOG[name]
    assert (" ".join(command.help.split()), command.rich_help_panel) == (entry.help, entry.panel)
