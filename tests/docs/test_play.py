"""The reader of pages notices what does not hold: each way to be wrong is planted."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import blocks, hidden_commands

PLAY = Path(__file__).with_name("play.py")


@pytest.fixture
def read(tmp_path):
    """Return a function that reads a page; what is said of a block in it comes back."""

    def run(page: str) -> str:
        file = tmp_path / "page.json"
        todo = [block._asdict() for block in blocks(page) if block.not_run is None]
        file.write_text(json.dumps({"name": "page.md", "blocks": todo}))
        played = subprocess.run(
            [sys.executable, PLAY, file], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert (played.returncode == 0) == (not played.stderr)
        return played.stderr or played.stdout

    return run


def test_blocks_share_a_shell_and_a_namespace(read):
    said = read(
        "```sh\nNAME=ada\nexport MORE=2\n```\n```python\nx = 6\n```\n"
        "```sh\n(echo $NAME; \\\n  cat) | tr a-z A-Z   # cat reads nothing\n```\n"
        "```python\nimport asyncio\nawait asyncio.sleep(0)\nprint(x * 7)\n```\n```text\n42\n```\n"
    )

    assert "ADA" in said


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        ("```sh\ntrue\nfalse\necho on\n```\n", "failed: false"),
        ("```sh\nfalse | true\n```\n", "failed: false | true"),
        ("```sh\necho $TOKEN_NOBODY_SET\n```\n", "TOKEN_NOBODY_SET: unbound variable"),
        ("```sh\nno-such-program\n```\n", "no-such-program: command not found"),
        ("```sh\necho 'open\n```\n", "does not end"),
        ("```sh\ntrue   # Ctrl-C ends it\n```\n", "it printed 0 lines"),
        ("```python\n1 / 0\n```\n", "ZeroDivisionError"),
        ("```python\nprint(41)\n```\n```text\n42\n```\n", "and the page says\n42"),
    ],
)
def test_what_does_not_hold_is_told_with_its_line(read, block, problem):
    said = read(f"# A page\n\n{block}")

    assert problem in said
    assert "page.md:3" in said


def test_ctrl_c_is_pressed_for_what_never_ends(read):
    said = read(
        "```sh\nyes   # Ctrl-C ends it\n```\n"
        "```python\nwhile True:  # Ctrl-C ends it\n    print('on')\n```\n"
    )

    assert "y\n" in said
    assert "on\n" in said


def test_a_terminal_of_its_own_goes_on_until_the_page_ends(read, tmp_path):
    said = read(
        "```sh\nsh -c 'trap \"echo down; exit\" TERM; echo up; while :; do sleep 0.01; done'"
        "   # in a terminal of its own\necho meanwhile\n```\n"
    )

    assert "meanwhile" in said
    assert (tmp_path / "terminal-0.txt").read_text() == "up\ndown\n"


def test_a_block_that_is_not_run_says_why():
    (block,) = blocks("<!-- not run: it costs money -->\n```sh\nbuy\n```\n")

    assert block.not_run == "it costs money"


def test_commands_without_a_language_are_found():
    page = "```\ndrawing ──► of it\n```\n```\nwaterclock up\n```\n```shell\nls\n```\n"

    assert hidden_commands(page) == [4, 7]
