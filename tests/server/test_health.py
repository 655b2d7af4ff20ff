"""Readiness tells the truth: whatever clients are refused for stands among the problems."""

import shutil
from typing import Any

import pytest

from tests.server.http_client import raw_client, until
from tests.server.served import running_server
from tests.server.test_app import NOT_SERVING, SERVING, health
from waterclock.model.errors import StorageFailed, StorageFull, StoreUnavailable
from waterclock.model.sections import StreamsConfig
from waterclock.node.streams import persister
from waterclock.storage.segment_file import SegmentFile
from waterclock.stores.sqlite import SqliteStore

MESSAGE = {"value": "x"}
STORED = {"streamId": "s", "message": "x"}


async def ready(client: Any) -> tuple[int, list[str]]:
    answer = await client.get("/health/ready")
    return answer.status, [problem["name"] for problem in answer.json()["problems"]]


async def test_a_full_disk_is_not_ready_until_there_is_room_also_if_nobody_publishes(
    tmp_path, monkeypatch, caplog
):
    def full(*_: object, **settings: object) -> None:
        raise StorageFull("no space left on device")

    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        await client.post("/topics", {"topic": "t"})
        with monkeypatch.context() as patch:
            patch.setattr(SegmentFile, "_write", full)
            patch.setattr(it.node.disk._folder, "shortage", lambda: "still full")
            assert (await client.post("/topics/t/messages", MESSAGE)).status == 507
            assert await ready(client) == (503, ["diskFull"])
            assert await health(it) == NOT_SERVING
            await it.node.disk.look()
            answer = await client.get("/health/ready")
            [problem] = answer.json()["problems"]
            assert (problem["detail"], problem["isBlocking"]) == (
                "no space left on device",
                True,
            )
            assert problem["sinceMs"] <= it.node.clock.now_ms()
            assert "free space" in problem["advice"]
        await it.node.disk.look()

        assert await ready(client) == (200, [])
        assert await health(it) == SERVING
        assert (await client.post("/topics/t/messages", MESSAGE)).status == 201
    assert caplog.text.count("disk_full reason=no space left on device") == 1


@pytest.mark.parametrize("write", ["records", "streams", "topic"])
async def test_whoever_finds_no_room_makes_the_node_say_so(tmp_path, monkeypatch, write):
    def full(*_: object, **settings: object) -> None:
        raise StorageFull("no space left on device")

    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        monkeypatch.setattr(it.node.disk._folder, "shortage", lambda: "still full")
        if write == "topic":
            monkeypatch.setattr("waterclock.storage.opening.create_segment", full)
        else:
            monkeypatch.setattr(SegmentFile, "_write", full)
        if write == "streams":
            refused = await client.post("/streams/sendAndStore", STORED)
        else:
            refused = await client.post("/topics", {"topic": "t"})

        assert refused.status == 507
        assert await ready(client) == (503, ["diskFull"])
        monkeypatch.undo()


async def test_the_first_message_after_the_start_can_be_stored(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        assert await ready(client) == (200, [])
        assert (await client.post("/streams/sendAndStore", STORED)).status == 201


async def test_a_database_that_is_away_is_told_while_all_else_is_served(
    tmp_path, monkeypatch, caplog
):
    caplog.set_level("INFO")
    monkeypatch.setattr(persister, "REOPEN_S", 0)
    monkeypatch.setattr(persister, "CHECK_S", 0)
    is_away = True
    real = SqliteStore._run

    async def run_unless_away(*arguments: Any) -> Any:
        if is_away:
            raise StoreUnavailable("the database is away")
        return await real(*arguments)

    monkeypatch.setattr(SqliteStore, "_run", run_unless_away)

    streams = StreamsConfig(store=f"sqlite://{tmp_path}/streams.sqlite")
    async with (
        running_server(tmp_path, streams=streams) as it,
        raw_client(it.server.http_port) as client,
    ):
        for times in (1, 2):
            assert await ready(client) == (200, ["storeAway"])
            assert await health(it) == SERVING
            refused = await client.post("/streams/sendAndStore", STORED)
            assert (refused.status, refused.json()["error"]) == (503, "StoreUnavailable")
            assert (await client.post("/topics/t/messages", MESSAGE)).status in (200, 201)
            assert caplog.text.count("store_unavailable reason=the database is away") == times
            is_away = False
            await until(lambda: it.node.persister.problem is None)
            assert await ready(client) == (200, [])
            assert caplog.text.count("store_available away_s=") == times
            assert (await client.post("/streams/sendAndStore", STORED)).status == 201
            is_away = True
            # Nobody asks for anything stored: the node finds out by itself.
            await until(lambda: it.node.persister.problem is not None)
        is_away = False


@pytest.mark.parametrize("name", ["", "topics"])
async def test_nothing_is_acknowledged_in_a_data_folder_that_was_deleted(tmp_path, name):
    async def test():
        async with (
            running_server(tmp_path / "data") as it,
            raw_client(it.server.http_port) as client,
        ):
            assert (await client.post("/topics/t/messages", MESSAGE)).status == 201
            shutil.rmtree(tmp_path / "data" / name)
            assert (await client.post("/topics/t/messages", MESSAGE)).status == 503
            await it.node._failure

    with pytest.raises(StorageFailed, match="it was deleted while it was in use"):
        await test()


async def test_a_data_folder_that_was_moved_away_ends_the_node(tmp_path, caplog):
    async def test():
        async with (
            running_server(tmp_path / "data") as it,
            raw_client(it.server.http_port) as client,
        ):
            assert (await client.post("/topics/t/messages", MESSAGE)).status == 201
            (tmp_path / "data").rename(tmp_path / "elsewhere")
            await it.node.disk.look()
            assert not it.node.is_ready
            [problem] = it.node.problems()
            assert (problem.name, problem.is_blocking) == ("diskFailed", True)
            await it.node._failure

    with pytest.raises(StorageFailed, match="is gone, under the running node"):
        await test()
    assert "data_folder_gone" in caplog.text
