"""A command line to call in-process, and a small log to call it on."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.cli.logs import SMALL
from waterclock.cli.app import app
from waterclock.model.ids import Millis
from waterclock.model.message import Message
from waterclock.storage.local_log import open_log

Waterclock = Callable[..., Result]


@pytest.fixture
def waterclock() -> Waterclock:
    """Return a function that runs a command line and answers with its output and exit code."""

    def run(*args: object) -> Result:
        return CliRunner().invoke(app, [str(arg) for arg in args], prog_name="waterclock")

    return run


@pytest.fixture
def log_folder(tmp_path: Path) -> Path:
    """Return the folder of a closed log: 60 messages in batches of 5, then 3 promises."""
    path = tmp_path / "log"
    with open_log(path, log=SMALL) as log:
        for first in range(0, 60, 5):
            log.publish(
                [
                    Message(b"value %d" % n, key=b"key %d" % (n % 3), message_id=b"id-%d" % n)
                    for n in range(first, first + 5)
                ]
            )
        due_ms = log.now_ms() + 3_600_000
        log.publish(
            [
                Message(b"later %d" % n, message_id=b"p-%d" % n, due_ms=Millis(due_ms + n))
                for n in range(3)
            ]
        )
    return path
