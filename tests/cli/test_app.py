"""The command as a whole: version, help, and errors told in one line."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import waterclock as package

ROOT = Path(__file__).parents[2]


def test_the_version_is_that_of_the_project(waterclock):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    result = waterclock("--version")

    assert (result.exit_code, result.stdout) == (0, f"waterclock {project['version']}\n")
    assert package.__version__ == project["version"]


@pytest.mark.parametrize("args", [[], ["--help"], ["log", "--help"], ["demo", "-h"]])
def test_help_is_there(waterclock, args):
    result = waterclock(*args)

    assert "Usage: waterclock" in result.output
    assert "demo-writer" not in result.output


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
    """Importing the commands must not load Arrow, nor must importing the package."""
    program = "import sys, waterclock, waterclock.cli; sys.exit('pyarrow' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_name_the_package_does_not_have_is_refused():
    with pytest.raises(AttributeError, match="no attribute 'connect'"):
        package.connect  # noqa: B018
