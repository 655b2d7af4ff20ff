"""What /openapi.json says is what the server does: asked by schemathesis, nothing left out."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kit.aside import aside
from tests.server.http_client import raw_client
from tests.server.served import running_server
from waterclock.model.sections import TopicsConfig
from waterclock.server.calls import Calls
from waterclock.server.rest import consume
from waterclock.server.streams.api import StreamsApi

IS_LONG = bool(os.environ.get("WATERCLOCK_FUZZ"))
"""It is `make fuzz` that runs."""
EXAMPLES = 3 if IS_LONG else 1
PHASES = "examples" if os.environ.get("WATERCLOCK_QUICK") else "examples,coverage,fuzzing,stateful"
WAIT_MS = 20
RUN_S_MAX = 300
CONFIG = Path(__file__).parent / "schemathesis.toml"
ROOT = Path(__file__).parents[2]
FORMATS = "tests.server.schemathesis_formats"


@contextmanager
def served_aside(folder: Path) -> Iterator[int]:
    """Serve a node in a thread of its own; give its HTTP port."""
    topics = TopicsConfig(partitions_max=64, topics_max=400)
    with aside(lambda: running_server(folder, topics=topics)) as it:
        yield it.server.http_port


@pytest.fixture
def brief_waits(monkeypatch):
    """Let polls and streams end soon."""
    monkeypatch.setattr(consume, "WAIT_MS_MAX", WAIT_MS)
    monkeypatch.setattr(consume, "LISTEN_S", WAIT_MS / 1_000)
    waiting = Calls.waiting
    monkeypatch.setattr(
        Calls, "waiting", lambda calls, seconds: waiting(calls, min(seconds, WAIT_MS / 1_000))
    )
    timeout = StreamsApi._timeout
    monkeypatch.setattr(
        StreamsApi, "_timeout", lambda *given, **named: min(WAIT_MS, timeout(*given, **named))
    )


STREAMS = "^(/api/v1)?/streams"
OF_A_CLUSTER = "^/cluster/(drain|move|replace)$"
"""What a node alone has nothing for, and answers with 501."""
ENDLESS = "^/console/live$"


@pytest.mark.parametrize(
    "part",
    [f"--exclude-path-regex={STREAMS}|{OF_A_CLUSTER}|{ENDLESS}", f"--include-path-regex={STREAMS}"],
)
def test_schemathesis_finds_nothing(tmp_path, brief_waits, part):
    with served_aside(tmp_path / "data") as port:
        found = subprocess.run(
            [
                Path(sys.executable).parent / "st",
                f"--config-file={CONFIG}",
                "run",
                f"http://127.0.0.1:{port}/openapi.json",
                part,
                f"--max-examples={EXAMPLES}",
                f"--phases={PHASES}",
                "--seed=4",
                "--no-shrink",
                "--request-timeout=10",
                "--warnings=off",
                "--no-color",
            ],
            cwd=tmp_path,
            env={**os.environ, "SCHEMATHESIS_HOOKS": FORMATS, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=RUN_S_MAX,
            check=False,
        )

    assert found.returncode == 0, found.stdout[-20_000:]


async def test_every_operation_is_described_and_shown(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        described = (await client.get("/openapi.json")).json()
        page = (await client.get("/docs")).body.decode()

        names = [
            operation["operationId"]
            for methods in described["paths"].values()
            for operation in methods.values()
        ]
        assert len(set(names)) == len(names) > 35
        for path in described["paths"]:
            assert f"<code>{path}</code>" in page
        assert "<script" not in page
        assert not re.search(r"(src|href)=['\"]?http", page)


async def test_the_same_stands_below_the_prefix(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        plain = await client.get("/openapi.json")
        assert (await client.get("/api/v1/openapi.json")).body == plain.body
