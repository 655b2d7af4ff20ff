"""A partition in a node: what it does when its disk fails, or what is on it cannot be read."""

import asyncio
import shutil
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.node.hosts import START_MS, Hosts, batch_of, opened
from waterclock.model.errors import StorageFailed, StorageFull
from waterclock.model.ids import Millis
from waterclock.model.message import Message
from waterclock.model.units import KIB
from waterclock.node import topics as topics_module
from waterclock.node.partition.host import PartitionHost
from waterclock.node.partition.opening import open_host
from waterclock.storage.folders.os_folder import LOCK_NAME, OsFolder

# A disk that fails


async def publish(host: PartitionHost) -> None:
    await host.publish(batch_of(Message(b"two", message_id=b"2")))


async def cancel(host: PartitionHost) -> None:
    await host.scheduler.cancel(np.array([0]))


async def reschedule(host: PartitionHost) -> None:
    await host.scheduler.reschedule(np.array([0]), np.array([START_MS + 9_000]))


@pytest.mark.parametrize("write", [publish, cancel, reschedule])
async def test_a_failed_write_is_told_to_the_node(
    tmp_path, monkeypatch, write: Callable[[PartitionHost], Awaitable[None]]
):
    async with opened(tmp_path) as hosts:
        host = (await hosts.topic("orders")).partition(0)
        await host.publish(batch_of(Message(b"one", due_ms=Millis(START_MS + 5_000))))
        monkeypatch.setattr(host.store.segments[-1].file, "write", broken)
        with pytest.raises(StorageFailed, match="the disk is gone"):
            await write(host)
        await asyncio.sleep(0)
        (failure,) = [str(failure) for failure in hosts.failures]
    assert "the disk is gone" in failure


async def test_a_failed_write_of_the_nodes_own_records_is_told_to_the_node(tmp_path, monkeypatch):
    async def fail(hosts: Hosts) -> None:
        monkeypatch.setattr(hosts.metadata._store.segments[-1].file, "write", broken)
        with pytest.raises(StorageFailed):
            hosts.metadata.write({"a": b"b"})
        await asyncio.sleep(0)

    async with opened(tmp_path) as hosts:
        await fail(hosts)
        assert len(hosts.failures) == 1


def broken(*_: object) -> None:
    raise StorageFailed("the disk is gone")


# Files that cannot be read


def spoilt(folder: Path) -> None:
    """Make a checkpoint that nobody can open, whoever he is."""
    (folder / "timers").unlink(missing_ok=True)
    (folder / "timers").mkdir()


async def make_two(folder: Path) -> list[Path]:
    """Make two topics with a pending message each; return their folders for timers."""
    async with opened(folder) as hosts:
        for name in ("a", "b"):
            host = (await hosts.topic(name)).partition(0)
            await host.publish(batch_of(Message(b"one", due_ms=Millis(START_MS + 5_000))))
            host.store.roll(START_MS)
            await host.scheduler.tend()
            await host.scheduler.save()
    return sorted(folder.glob("topics/*/0/timers"))  # noqa: ASYNC240


async def test_a_checkpoint_that_cannot_be_read_counts_as_none(tmp_path, caplog):
    async def reopen():
        async with opened(tmp_path) as hosts:
            host = hosts.topics.get("a").partition(0)
            host.store.roll(START_MS)
            await host.scheduler.tend()
            await host.scheduler.save()
            return len(host.scheduler)

    timers, _ = await make_two(tmp_path)
    spoilt(timers)

    assert await reopen() == 1
    assert "timers_not_read" in caplog.text
    assert "timers_not_saved" in caplog.text


@pytest.fixture
def left_open(monkeypatch) -> Callable[[Path], list[OsFolder]]:
    """Tell which folders below a folder somebody has opened and not closed."""
    folders: list[OsFolder] = []
    begin = OsFolder.__init__

    def noted(folder: OsFolder, path: Path, **settings: bool) -> None:
        begin(folder, path, **settings)
        folders.append(folder)

    def is_open(folder: OsFolder) -> bool:
        return not folder._descriptor.is_closed or folder._lock is not None or bool(folder._files)

    monkeypatch.setattr(OsFolder, "__init__", noted)
    return lambda path: [f for f in folders if is_open(f) and f.path.is_relative_to(path)]


async def test_timers_that_cannot_be_opened_are_the_problem_of_their_partition_alone(
    tmp_path, left_open
):
    timers, _ = await make_two(tmp_path)
    (timers / LOCK_NAME).unlink()
    (timers / LOCK_NAME).mkdir()

    async def reopen():
        async with opened(tmp_path) as hosts:
            a, b = (hosts.topics.get(name).partition(0) for name in ("a", "b"))
            assert "is not a regular file" in str(a.problem)
            assert (a.is_open, b.is_open) == (False, True)
            assert left_open(timers.parent) == []

    await reopen()


async def test_a_log_that_cannot_be_made_durable_is_the_problem_of_its_partition_alone(
    tmp_path, left_open, monkeypatch
):
    timers, _ = await make_two(tmp_path)
    sync = OsFolder.sync

    def failing(folder: OsFolder) -> None:
        if folder.path.is_relative_to(timers.parent):
            raise StorageFailed("the disk is worn")
        sync(folder)

    monkeypatch.setattr(OsFolder, "sync", failing)
    async with opened(tmp_path) as hosts:
        a, b = (hosts.topics.get(name).partition(0) for name in ("a", "b"))

        assert "the disk is worn" in str(a.problem)
        assert (a.is_open, b.is_open) == (False, True)
        assert left_open(timers.parent) == []


@pytest.mark.parametrize("part", ["log", "timers"])
@pytest.mark.parametrize("step", ["lock", "names", "open", "create"])
async def test_a_partition_that_cannot_be_begun_leaves_no_file_open(
    tmp_path, monkeypatch, left_open, part, step
):
    real = getattr(OsFolder, step)

    def fail(folder: OsFolder, *args: str) -> object:
        if folder.path.name == part:
            raise StorageFull("no descriptors left")
        return real(folder, *args)

    async with opened(tmp_path) as hosts:
        monkeypatch.setattr(OsFolder, step, fail)
        with suppress(StorageFull):
            await hosts.topic("a")
            await hosts.topics.delete("a")
        assert left_open(tmp_path / "topics") == []


async def test_a_caller_who_leaves_while_a_topic_is_made_leaves_no_file_open(
    tmp_path, monkeypatch, left_open
):
    async with opened(tmp_path) as hosts:
        loop, begun = asyncio.get_running_loop(), asyncio.Event()
        may_go_on = threading.Event()

        def held(*args: Any, **settings: Any) -> PartitionHost:
            loop.call_soon_threadsafe(begun.set)
            may_go_on.wait()
            return open_host(*args, **settings)

        monkeypatch.setattr(topics_module, "open_host", held)
        making = asyncio.ensure_future(hosts.topic("a", partitions=2))
        await begun.wait()
        making.cancel()
        loop.call_soon(may_go_on.set)
        with pytest.raises(asyncio.CancelledError):
            await making
        assert left_open(tmp_path / "topics") == []
        assert list((tmp_path / "topics").iterdir()) == []


async def test_partitions_are_opened_side_by_side_and_not_in_the_loop(tmp_path, monkeypatch):
    await make_two(tmp_path)
    both = threading.Barrier(2)

    def met(*args: Any, **settings: Any) -> PartitionHost:
        both.wait(timeout=60)
        return open_host(*args, **settings)

    async def reopen():
        monkeypatch.setattr(topics_module, "open_host", met)
        async with opened(tmp_path) as hosts:
            return [topic.partition(0).is_open for topic in hosts.topics.all()]

    assert await reopen() == [True, True]


async def test_a_topic_without_messages_takes_a_few_kilobytes(tmp_path):
    async with opened(tmp_path) as hosts:
        await hosts.topic("quiet")
    files = (tmp_path / "topics").rglob("*")

    assert sum(path.stat().st_blocks * 512 for path in files) < 64 * KIB


async def test_trash_that_cannot_be_removed_waits_for_the_next_start(tmp_path, monkeypatch, caplog):
    def fail(path: Path) -> None:
        raise PermissionError(13, "not yours", str(path))

    async def delete():
        async with opened(tmp_path) as hosts:
            await hosts.topic("orders")
            with monkeypatch.context() as patch:
                patch.setattr(shutil, "rmtree", fail)
                await hosts.topics.delete("orders")
        return len(list((tmp_path / "topics").iterdir()))

    async def restart():
        async with opened(tmp_path):
            return len(list((tmp_path / "topics").iterdir()))

    assert await delete() == 1
    assert "trash_not_removed" in caplog.text
    assert await restart() == 0
