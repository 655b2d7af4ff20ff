"""A backup of a node that runs: one moment of it, only what is new copied, never half a backup."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tests.server.served import Served, running_server
from waterclock.cli.commands.backups.backup import Taken, back_up
from waterclock.client.backup import TakenCut, taking_backup
from waterclock.client.client import Client, connect
from waterclock.model.errors import (
    BadInput,
    Busy,
    FolderInUse,
    ForeignFile,
    FrameDamaged,
    PartitionFaulty,
    Stopping,
    WaterclockError,
)
from waterclock.model.sections import LogConfig
from waterclock.storage.backup.restore import STAGING, Restoring
from waterclock.storage.backup.writer import BackupFolder, BackupWriter

SMALL = LogConfig(segment_bytes=4 << 10, preallocate_bytes=0)


@asynccontextmanager
async def node_in(folder: Path, **sections: Any) -> AsyncIterator[tuple[Served, Client]]:
    async with (
        running_server(folder, **{"log": SMALL, **sections}) as it,
        connect(it.server.addresses.grpc) as client,
    ):
        yield it, client


async def fill(client: Client, topic: str = "orders", count: int = 40) -> None:
    """Publish enough for several segments."""
    for number in range(count):
        await client.publish(topic, b"%d" % number * 300, message_id=b"id-%d" % number)


async def saved(client: Client, folder: Path, **options: Any) -> Taken:
    with BackupFolder(folder) as opened:
        return await back_up(client, opened, **options)


async def take_in(taken: TakenCut, folder: BackupFolder) -> None:
    """Write a cut that was begun before."""
    with closing(BackupWriter(folder, taken.cut, started_ms=0)) as writer:
        async for number, data in taken.segments(writer.wanted):
            writer.write(number, data)
        writer.commit(now_ms=0)


def restored(backup: Path, data: Path) -> Path:
    with Restoring(backup, data) as restoring:
        restoring.run(lambda count: None)
    return data


async def values(client: Client, topic: str = "orders") -> list[bytes | None]:
    return [message.value async for message in client.replay(topic)]


def segments(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.seg"))


def flip(file: Path) -> None:
    """Let a bit rot, in place."""
    middle = file.stat().st_size // 2
    with file.open("r+b") as opened:
        opened.seek(middle)
        (byte,) = opened.read(1)
        opened.seek(middle)
        opened.write(bytes([byte ^ 1]))


async def test_a_restored_node_has_what_the_node_had(tmp_path):
    async with node_in(tmp_path / "data") as (_, client):
        await fill(client)
        later = await client.publish("orders", b"later", at="+6h")
        dropped = await client.publish("orders", b"dropped", at="+6h")
        await client.cancel("orders", dropped)
        await client.repeat("daily", "orders", b"again", every="12h", start="+6h")
        await client.streams.send_and_store("tokens", "one")
        async with client.subscribe("orders", group="billing") as messages:
            async for message in messages:
                message.ack()
                if message.value == b"19" * 300:
                    break
        before = await client.groups.get("orders", "billing")
        await saved(client, tmp_path / "backup")
        published = await values(client)

    restored(tmp_path / "backup", tmp_path / "restored")

    async with node_in(tmp_path / "restored") as (_, client):
        assert await values(client) == published
        scheduled = {each.offset async for each in client.scheduled("orders")}
        assert len(scheduled) == 2
        assert later.offset in scheduled
        assert [each.name for each in await client.recurrences()] == ["daily"]
        token = await client.streams.receive("tokens", timeout="1s", resume="earliest")
        assert token is not None
        assert token.value == "one"
        after = await client.groups.get("orders", "billing")
        assert [place.committed for place in after.partitions] == [
            place.committed for place in before.partitions
        ]
        again = await client.publish("orders", b"x", message_id=b"id-0")
        assert not again.is_new


@pytest.mark.parametrize("fsync", ["group", "always", "interval"])
async def test_what_was_acknowledged_is_in_the_backup_whatever_the_fsync_policy(tmp_path, fsync):
    config = LogConfig(segment_bytes=4 << 10, fsync=fsync, fsync_interval_ms=10_000)
    async with node_in(tmp_path / "data", log=config) as (_, client):
        await fill(client, count=5)
        await saved(client, tmp_path / "backup")

    restored(tmp_path / "backup", tmp_path / "restored")

    async with node_in(tmp_path / "restored") as (_, client):
        assert len(await values(client)) == 5


async def test_a_second_backup_copies_only_what_is_new(tmp_path):
    async with node_in(tmp_path / "data") as (_, client):
        await fill(client)
        first = await saved(client, tmp_path / "backup")
        again = await saved(client, tmp_path / "backup")
        await client.publish("orders", b"one more")
        third = await saved(client, tmp_path / "backup")

    assert first.copied == len(first.manifest.checksums) > 5
    assert again.copied == 0
    assert third.copied == 1
    assert len(segments(tmp_path / "backup")) == len(third.manifest.checksums)


async def test_nothing_published_after_the_cut_is_in_the_backup(tmp_path):
    async with node_in(tmp_path / "data") as (_, client):
        await fill(client, count=3)
        with BackupFolder(tmp_path / "backup") as folder:
            async with taking_backup(client._connection) as taken:
                await fill(client, topic="orders", count=40)
                await client.publish("late", b"late")
                await take_in(taken, folder)

    restored(tmp_path / "backup", tmp_path / "restored")

    async with node_in(tmp_path / "restored") as (_, client):
        assert len(await values(client)) == 3
        assert [topic.topic for topic in await client.topics.list()] == ["orders"]


async def test_a_topic_deleted_while_it_is_copied_is_in_the_backup(tmp_path):
    async with node_in(tmp_path / "data") as (_, client):
        await fill(client)
        with BackupFolder(tmp_path / "backup") as folder:
            async with taking_backup(client._connection) as taken:
                await client.topics.delete("orders")
                assert not list((tmp_path / "data" / "topics").iterdir())
                await take_in(taken, folder)

    restored(tmp_path / "backup", tmp_path / "restored")

    async with node_in(tmp_path / "restored") as (_, client):
        assert len(await values(client)) == 40


async def test_segments_rewritten_while_they_are_copied_are_in_the_backup_as_they_were(tmp_path):
    async with node_in(tmp_path / "data") as (it, client):
        await fill(client)
        with BackupFolder(tmp_path / "backup") as folder:
            async with taking_backup(client._connection) as taken:
                await client.topics.update("orders", retention_bytes=4 << 10)
                (host,) = it.node.topics.get("orders").partitions
                host.store.run_jobs()
                await it.node.log_cleaner.once()
                assert host.store.segments[0].header.generation > 0
                await take_in(taken, folder)

    restored(tmp_path / "backup", tmp_path / "restored")

    async with node_in(tmp_path / "restored") as (_, client):
        assert len(await values(client)) == 40


async def test_a_topic_that_is_being_deleted_is_in_the_backup_whole_or_not_at_all(tmp_path):
    async with node_in(tmp_path / "data") as (it, client):
        await fill(client, count=5)
        async with asyncio.TaskGroup() as tasks:
            deleting = tasks.create_task(it.node.topics.delete("orders"))
            while it.node.topics.find("orders") is not None:  # noqa: ASYNC110  step by step
                await asyncio.sleep(0)
            await saved(client, tmp_path / "backup")
            await deleting

    restored(tmp_path / "backup", tmp_path / "restored")

    async with node_in(tmp_path / "restored") as (_, client):
        assert await client.topics.list() == []


async def test_a_backup_cut_short_leaves_the_one_before_it_and_is_taken_up_again(tmp_path):
    async with node_in(tmp_path / "data") as (_, client):
        await fill(client, count=5)
        before = await saved(client, tmp_path / "backup")
        await fill(client, count=40)
        with BackupFolder(tmp_path / "backup") as folder:
            async with taking_backup(client._connection) as taken:
                writer = BackupWriter(folder, taken.cut, started_ms=0)
                wanted = len(writer.wanted)
                async for number, data in taken.segments(writer.wanted):
                    if number == writer.wanted[4]:
                        writer.write(number, data[: len(data) // 2])
                        break
                    writer.write(number, data)
                writer.close()

        with Restoring(tmp_path / "backup", tmp_path / "restored") as restoring:
            assert restoring.manifest == before.manifest
            restoring.run(lambda count: None)
        after = await saved(client, tmp_path / "backup")

    # The records of the node were in the active segment, and have grown meanwhile.
    assert wanted - 5 <= after.copied <= wanted - 3
    assert len(segments(tmp_path / "backup")) == len(after.manifest.checksums)
    restored(tmp_path / "backup", tmp_path / "restored again")


async def test_one_backup_at_a_time(tmp_path):
    async with node_in(tmp_path / "data") as (_, client), taking_backup(client._connection):
        with pytest.raises(Busy, match="another backup"):
            await saved(client, tmp_path / "backup")
        with BackupFolder(tmp_path / "other"), pytest.raises(FolderInUse):
            BackupFolder(tmp_path / "other")


async def test_a_folder_with_something_else_in_it_is_refused_and_left_alone(tmp_path):
    async with node_in(tmp_path / "data") as (_, client):
        await fill(client, count=3)
        before = segments(tmp_path / "data")
        with pytest.raises(ForeignFile, match="is no backup"):
            await saved(client, tmp_path / "data")

        assert segments(tmp_path / "data") == before


async def test_the_backup_of_another_node_is_refused(tmp_path):
    async with node_in(tmp_path / "one") as (_, client):
        await saved(client, tmp_path / "backup")

    async with node_in(tmp_path / "other") as (_, client):
        with pytest.raises(BadInput, match="another node"):
            await saved(client, tmp_path / "backup")


async def test_a_damaged_partition_is_not_backed_up_over_a_good_one(tmp_path):
    async with node_in(tmp_path / "data") as (_, client):
        await fill(client)
        good = await saved(client, tmp_path / "backup")
    log = next((tmp_path / "data" / "topics").glob("*/0/log"))
    for file in (*log.glob("*.index"), *log.glob("*.due"), *log.glob("*.ids")):
        file.unlink()
    flip(segments(log)[1])

    async with node_in(tmp_path / "data") as (_, client):
        with pytest.raises(PartitionFaulty, match="is damaged"):
            await saved(client, tmp_path / "backup")

    with BackupFolder(tmp_path / "backup") as folder:
        assert folder.previous == good.manifest


async def test_rot_that_the_node_has_not_noticed_ends_the_backup(tmp_path):
    async with node_in(tmp_path / "data") as (_, client):
        await fill(client)
        log = next((tmp_path / "data" / "topics").glob("*/0/log"))
        flip(segments(log)[1])
        with pytest.raises(FrameDamaged, match="damaged at its source"):
            await saved(client, tmp_path / "backup")


async def test_a_rotten_file_of_a_backup_is_found_and_copied_anew_when_asked(tmp_path):
    async with node_in(tmp_path / "data") as (_, client):
        await fill(client)
        await saved(client, tmp_path / "backup")
        flip(segments(tmp_path / "backup" / "topics")[1])
        assert (await saved(client, tmp_path / "backup")).copied == 0
        with pytest.raises(FrameDamaged, match="fails its checksum"):
            restored(tmp_path / "backup", tmp_path / "restored")
        assert list((tmp_path / "restored").iterdir()) == []

        assert (await saved(client, tmp_path / "backup", verify=True)).copied == 1
        restored(tmp_path / "backup", tmp_path / "restored")


async def test_a_manifest_that_was_changed_is_refused(tmp_path):
    async with node_in(tmp_path / "data") as (_, client):
        await saved(client, tmp_path / "backup")
    manifest = tmp_path / "backup" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"path":"meta"', b'"path":"../a"'))

    with pytest.raises(ForeignFile, match="checksum"):
        restored(tmp_path / "backup", tmp_path / "restored")


@pytest.mark.parametrize("path", ["../../home", "/etc", "topics/../x/0/log", "topics/a/0/log/../b"])
async def test_a_cut_that_leads_out_of_the_folder_is_refused(tmp_path, path):
    async with (
        node_in(tmp_path / "data") as (_, client),
        taking_backup(client._connection) as taken,
    ):
        meta = taken.cut.logs[0]
        hostile = structs.replace(taken.cut, logs=(meta, structs.replace(meta, path=path)))
        with BackupFolder(tmp_path / "backup") as folder, pytest.raises(BadInput):
            BackupWriter(folder, hostile, started_ms=0)


async def test_a_folder_that_is_not_empty_is_not_restored_into(tmp_path):
    async with node_in(tmp_path / "data") as (_, client):
        await saved(client, tmp_path / "backup")

    with pytest.raises(ForeignFile, match="not empty"):
        restored(tmp_path / "backup", tmp_path / "data")
    with pytest.raises(ForeignFile, match="no finished backup"):
        restored(tmp_path / "data", tmp_path / "restored")


async def test_no_node_starts_on_a_backup_that_is_half_restored(tmp_path):
    async with node_in(tmp_path / "data") as (_, client):
        await fill(client, count=3)
        await saved(client, tmp_path / "backup")

    async def start_early() -> None:
        async with node_in(tmp_path / "restored"):
            raise AssertionError("it runs")

    problems: list[BaseException] = []

    def advance(count: int) -> None:
        if not problems:
            with pytest.raises(WaterclockError, match="RESTORE-UNFINISHED") as caught:
                asyncio.run(start_early())
            problems.append(caught.value)

    with Restoring(tmp_path / "backup", tmp_path / "restored") as restoring:
        await asyncio.to_thread(restoring.run, advance)

    assert problems
    assert not (tmp_path / "restored" / STAGING).exists()


async def fetch(client: Client, wanted: list[int], *, then: Callable[[], None]) -> None:
    """Ask for segments of a cut, after something has happened."""
    async with taking_backup(client._connection) as taken:
        then()
        async for _ in taken.segments(wanted):
            pass


@pytest.mark.parametrize("wanted", [[-1], [1, 0], [0, 0], [99]])
async def test_segments_that_the_cut_does_not_have_are_refused(tmp_path, wanted):
    async with node_in(tmp_path / "data") as (_, client):
        with pytest.raises(BadInput, match="want"):
            await fetch(client, wanted, then=lambda: None)


async def test_a_node_that_stops_ends_a_backup_at_once(tmp_path):
    async with node_in(tmp_path / "data") as (it, client):
        with pytest.raises(Stopping):
            await fetch(client, [0], then=it.server.calls.stop)
