"""A node that waits for etcd or others says so, to who asks as well, and ends when told to."""

import asyncio
import os
import signal

import pytest

from tests.cluster.joined import config_of
from tests.kit.ports import free_in_a_row
from tests.server.http_client import raw_client, until
from waterclock.model.config import Config
from waterclock.server.cluster.replication import start_watch
from waterclock.server.process import run_node


@pytest.fixture(autouse=True)
def _impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_watch, "PATIENCE_S", 0.01)


async def stopped_while_waiting(
    config: Config, caplog: pytest.LogCaptureFixture, awaited: str
) -> list[str]:
    """Start a node, stop it once it says what it waits for; return what it said."""
    stopping: list[None] = []
    running = asyncio.ensure_future(
        run_node(
            config,
            on_ready=lambda at: pytest.fail("it cannot be ready"),
            on_stopping=lambda: stopping.append(None),
        )
    )
    await until(lambda: awaited in caplog.text or running.done())
    await check_health(config.cluster.http_port, awaited.removeprefix("waiting_for "))
    os.kill(os.getpid(), signal.SIGTERM)
    await running
    assert len(stopping) == 1
    return [record.message for record in caplog.records]


async def check_health(port: int, awaited: str) -> None:
    """Check that a node lives, is not ready, and says why to whoever asks it for anything."""
    async with raw_client(port) as client:
        live = await client.get("/health/live")
        ready = await client.get("/api/v1/health/ready")
        other = await client.get("/topics")

    assert (live.status, live.json()) == (200, {"status": "live"})
    assert (ready.status, ready.json()["status"]) == (503, "not ready")
    (problem,) = ready.json()["problems"]
    assert (problem["name"], problem["isBlocking"]) == ("starting", True)
    assert problem["detail"] == f"it waits for {awaited}"
    assert (other.status, other.headers["retry-after"]) == (503, "1")
    assert awaited in other.json()["detail"]


async def test_a_node_without_its_etcd_ends_when_it_is_told_to(tmp_path, caplog):
    cluster = {"etcd": ("127.0.0.1:9",), "http_port": free_in_a_row(1)}
    config = config_of(tmp_path, "a", cluster=cluster)

    said = await stopped_while_waiting(config, caplog, "waiting_for etcd at 127.0.0.1:9")

    assert said[-1] == "stopped_before_ready"


@pytest.mark.etcd
async def test_a_node_that_lacks_others_ends_when_it_is_told_to(tmp_path, caplog, member):
    cluster = {"name": "lonely", "etcd": (member.endpoint,), "expect": 3}
    cluster |= {"http_port": free_in_a_row(1)}
    config = config_of(tmp_path, "a", cluster=cluster)

    said = await stopped_while_waiting(config, caplog, "1 of 3 nodes have registered")

    assert said.count("waiting_for 1 of 3 nodes have registered") == 1
    assert said[-1] == "stopped_before_ready"
