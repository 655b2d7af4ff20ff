"""A command line to call in-process, a small log and a running node to call it on."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.cli.logs import SMALL
from tests.cli.nodes import RunningNode, running
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
def held() -> Iterator[ExitStack]:
    """Return what holds ports until the test is over, as a command does until it ends."""
    with ExitStack() as held:
        yield held


@pytest.fixture
def log_folder(tmp_path: Path) -> Path:
    """Return the folder of a closed log: 60 messages in batches of 5, then 3 scheduled messages."""
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


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """Return a node that all tests of this process share; each uses a topic of its own."""
    settings = ("delivery.retry_delay=100ms", "delivery.max_retries=1", "log.preallocate_bytes=0")
    options = [word for text in settings for word in ("--set", text)]
    with running(tmp_path_factory.mktemp("node"), *options) as found:
        yield found


@pytest.fixture
def call(waterclock: Waterclock, node: RunningNode) -> Waterclock:
    """Return a function that runs a command line on the node."""

    def run(*args: object) -> Result:
        return waterclock(*args, "--address", node.address)

    return run


@pytest.fixture
def ask(call: Waterclock) -> Callable[..., Any]:
    """Return a function that runs a command line on the node and reads its JSON."""

    def run(*args: object) -> Any:
        result = call(*args, "--json")
        assert result.exit_code == 0, result.output
        lines = [json.loads(line) for line in result.stdout.splitlines()]
        return lines[0] if len(lines) == 1 else lines

    return run


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """Return the name of a topic that only this test uses."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    return f"{name[:40]}-{os.urandom(4).hex()}"
