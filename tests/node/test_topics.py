import asyncio
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from tests.node.hosts import batch_of, config_in, opened
from waterclock.model.errors import (
    AlreadyExists,
    BadInput,
    CapacityReached,
    Closed,
    ForeignFile,
    NotFound,
    PartitionFaulty,
    StorageFailed,
    StorageFull,
    UnknownTopic,
)
from waterclock.model.message import Message
from waterclock.model.sections import TopicsConfig
from waterclock.model.units import KIB
from waterclock.model.views import TopicSettings
from waterclock.node import topics as topics_module
from waterclock.node.partition.host import PartitionHost
from waterclock.node.partition.opening import open_host
from waterclock.node.topics import Topic
from waterclock.storage.folders.os_folder import OsFolder


async def test_a_topic_and_its_messages_are_there_after_a_restart(tmp_path):
    async def first():
        async with opened(tmp_path) as hosts:
            topic = await hosts.topic("orders", partitions=3)
            await topic.partition(2).publish(batch_of(Message(b"hello")))

    async def second():
        async with opened(tmp_path) as hosts:
            topic = hosts.topics.get("orders")
            return [host.store.end for host in topic.partitions]

    await first()

    assert await second() == [0, 0, 1]


async def test_a_topic_made_again_has_nothing_of_the_old_one(tmp_path):
    async with opened(tmp_path) as hosts:
        topic = await hosts.topic("orders")
        await topic.partition(0).publish(batch_of(Message(b"old")))
        await hosts.topics.delete("orders")
        with pytest.raises(UnknownTopic):
            hosts.topics.get("orders")
        topic = await hosts.topic("orders")
        folders = len(list((tmp_path / "topics").iterdir()))
        assert (topic.partition(0).store.end, folders) == (0, 1)


async def test_a_crash_while_a_topic_is_deleted_leaves_no_files_behind(tmp_path, monkeypatch):
    def crash(*_: object) -> None:
        raise RuntimeError("killed")

    async def delete():
        async with opened(tmp_path) as hosts:
            await hosts.topic("orders")
            monkeypatch.setattr(shutil, "rmtree", crash)
            with pytest.raises(RuntimeError, match="killed"):
                await hosts.topics.delete("orders")

    async def restart():
        async with opened(tmp_path) as hosts:
            return hosts.topics.all(), list((tmp_path / "topics").iterdir())

    await delete()
    monkeypatch.undo()

    assert await restart() == ([], [])


async def test_a_partition_whose_folder_is_gone_is_not_begun_anew(tmp_path):
    async def first():
        async with opened(tmp_path) as hosts:
            topic = await hosts.topic("orders", partitions=2)
            await hosts.topic("others")
            await topic.partition(0).publish(batch_of(Message(b"precious")))
            return topic.folder

    async def second():
        async with opened(tmp_path) as hosts:
            host = hosts.topics.get("orders").partition(0)
            with pytest.raises(PartitionFaulty, match="missing"):
                host.store.check_appendable()
            await hosts.topics.get("orders").partition(1).publish(batch_of(Message(b"goes on")))
            await hosts.topics.get("others").partition(0).publish(batch_of(Message(b"too")))

    shutil.rmtree(tmp_path / "topics" / await first() / "0")

    await second()


async def test_disk_full_while_a_topic_is_made_leaves_nothing(tmp_path, monkeypatch):
    real = open_host

    def full_at_the_second(topic, partition, **rest):
        if partition == 1:
            raise StorageFull("no space")
        return real(topic, partition, **rest)

    async with opened(tmp_path) as hosts:
        monkeypatch.setattr(topics_module, "open_host", full_at_the_second)
        with pytest.raises(StorageFull):
            await hosts.topic("orders", partitions=2)
        left = list((tmp_path / "topics").iterdir())
        monkeypatch.undo()
        topic = await hosts.topic("orders", partitions=2)
        assert (left, len(topic.partitions)) == ([], 2)


async def test_a_topic_whose_partitions_cannot_be_made_durable_is_not_made(tmp_path, monkeypatch):
    real = OsFolder.sync

    def broken(folder: OsFolder) -> None:
        if folder.path.parts[-2:] == ("1", "log"):
            raise StorageFailed("the disk is gone")
        real(folder)

    async with opened(tmp_path) as hosts:
        monkeypatch.setattr(OsFolder, "sync", broken)
        with pytest.raises(StorageFailed, match="the disk is gone"):
            await hosts.topic("orders", partitions=2)
        monkeypatch.undo()
        assert list((tmp_path / "topics").iterdir()) == []
        assert hosts.topics.find("orders") is None


async def test_what_is_left_of_a_topic_made_by_halves_goes_and_a_strangers_folder_stays(
    tmp_path, monkeypatch
):
    real = open_host

    def killed_at_the_second(topic, partition, **rest):
        if partition == 1:
            monkeypatch.setattr(shutil, "rmtree", killed_at_the_second)
            raise RuntimeError("killed")
        return real(topic, partition, **rest)

    async def make():
        async with opened(tmp_path) as hosts:
            monkeypatch.setattr(topics_module, "open_host", killed_at_the_second)
            with pytest.raises((RuntimeError, TypeError)):
                await hosts.topic("orders", partitions=2)

    async def restart():
        async with opened(tmp_path) as hosts:
            return hosts.topics.all(), [folder.name for folder in (tmp_path / "topics").iterdir()]

    await make()
    monkeypatch.undo()
    (tmp_path / "topics" / "orders-of-a-stranger").mkdir()

    assert await restart() == ([], ["orders-of-a-stranger"])


async def test_a_folder_that_cannot_be_made_is_an_error_of_ours(tmp_path):
    (tmp_path / "meta").write_text("a file where the folder should be")

    async def start():
        async with opened(tmp_path):
            pass

    with pytest.raises(ForeignFile, match="meta is not a folder; move it away"):
        await start()


async def test_partitions_are_added_and_never_taken_away(tmp_path):
    async def grow():
        async with opened(tmp_path) as hosts:
            seen = []
            hosts.topics.on_opened.append(lambda topic, host: seen.append(host.partition))
            await hosts.topic("orders", partitions=2)
            await hosts.topics.update("orders", TopicSettings(partitions=4))
            with pytest.raises(BadInput, match="cannot be taken away"):
                await hosts.topics.update("orders", TopicSettings(partitions=3))
            return seen

    async def count():
        async with opened(tmp_path) as hosts:
            return len(hosts.topics.get("orders").partitions)

    assert await grow() == [0, 1, 2, 3]
    assert await count() == 4


async def test_many_who_make_the_same_topic_at_once_get_one(tmp_path):
    async with opened(tmp_path) as hosts:
        made = await asyncio.gather(*(hosts.topics.ensure("orders") for _ in range(20)))
        with pytest.raises(AlreadyExists):
            await hosts.topics.create("orders", TopicSettings())
        topics, counts = len({one.topic for one in made}), [one.made_partitions for one in made]
    assert (topics, sorted(counts)) == (1, [0] * 19 + [1])


async def test_topics_are_not_made_by_accident_if_the_node_is_told_so(tmp_path):
    config = config_in(tmp_path, topics=TopicsConfig(auto_create=False))

    async with opened(tmp_path, config=config) as hosts:
        with pytest.raises(UnknownTopic, match="odrers"):
            await hosts.topics.ensure("odrers")


async def test_a_node_has_no_more_topics_and_partitions_than_it_may(tmp_path):
    config = config_in(tmp_path, topics=TopicsConfig(topics_max=2, partitions_max=5))

    async with opened(tmp_path, config=config) as hosts:
        await hosts.topic("a", partitions=4)
        with pytest.raises(CapacityReached, match=r"see topics\.partitions_max"):
            await hosts.topic("b", partitions=2)
        await hosts.topic("b")
        with pytest.raises(CapacityReached, match=r"see topics\.topics_max"):
            await hosts.topic("c")
        with pytest.raises(CapacityReached, match="partitions of the node"):
            await hosts.topics.update("b", TopicSettings(partitions=2))


async def test_partitions_take_little_disk_until_they_have_something_to_keep(tmp_path):
    async def first() -> tuple[int, int]:
        async with opened(tmp_path) as hosts:
            topic = await hosts.topic("fat", partitions=64)
            empty = _disk_bytes(tmp_path)
            for host in topic.partitions[:8]:
                await host.publish(batch_of(Message(b"hello")))
            return empty, _disk_bytes(tmp_path) - empty

    empty, written = await first()
    closed = _disk_bytes(tmp_path)

    assert empty <= 64 * 48 * KIB
    assert written <= 8 * 96 * KIB
    assert closed <= 64 * 48 * KIB + written


def _disk_bytes(folder: Path) -> int:
    found = [each.stat() for each in folder.rglob("*")]
    return sum(max(each.st_size, each.st_blocks * 512) for each in found)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", ".hidden", "-flag", "a/b", "a b", "ä", "__meta", "x" * 201, "a\0b", "a\n"],
)
async def test_a_name_that_cannot_be_a_folder_is_refused(tmp_path, name):
    async with opened(tmp_path) as hosts:
        with pytest.raises(BadInput):
            await hosts.topics.ensure(name)


@pytest.mark.parametrize(
    "settings",
    [
        TopicSettings(partitions=0),
        TopicSettings(partitions=2_000),
        TopicSettings(retention_ms=-1),
        TopicSettings(retries_max=1_000),
        TopicSettings(ack_timeout_ms=0),
    ],
)
async def test_settings_out_of_range_are_refused(tmp_path, settings):
    async with opened(tmp_path) as hosts:
        with pytest.raises(BadInput):
            await hosts.topics.create("orders", settings)


async def test_a_partition_that_is_not_there_is_named_in_the_error(tmp_path):
    async with opened(tmp_path) as hosts:
        topic = await hosts.topic("orders", partitions=2)
        with pytest.raises(NotFound, match=r"orders/2 \(the topic has 2\)"):
            topic.partition(2)
        with pytest.raises(NotFound):
            topic.partition(-1)


async def test_a_partition_that_cannot_be_closed_leaves_no_other_open(tmp_path, monkeypatch):
    async with opened(tmp_path) as hosts:
        topic = await hosts.topic("orders", partitions=2)

        def fail() -> None:
            raise AssertionError("a bug")

        with monkeypatch.context() as patch:
            patch.setattr(topic.partition(0).scheduler, "close", fail)
            with pytest.raises(AssertionError, match="a bug"):
                hosts.topics.close()
        with pytest.raises(Closed):
            topic.partition(1).store.check_appendable()
        hosts.topics.get("orders").partitions.clear()


async def test_a_topic_whose_deleter_has_left_is_deleted_all_the_same(tmp_path):
    async with opened(tmp_path) as hosts, asyncio.TaskGroup() as tasks:
        host = (await hosts.topic("orders")).partition(0)
        has_begun, go_on = asyncio.Event(), asyncio.Event()

        async def slowly(topic: Topic) -> None:
            has_begun.set()
            await go_on.wait()

        hosts.topics.before_closing.append(slowly)
        caller = tasks.create_task(hosts.topics.delete("orders"))
        await has_begun.wait()
        caller.cancel()
        await asyncio.wait([caller])
        host.store.check_appendable()
        go_on.set()
        await hosts.topic("orders")
        with pytest.raises(Closed):
            host.store.check_appendable()
        assert len(list((tmp_path / "topics").iterdir())) == 1


async def test_others_get_a_turn_between_the_partitions_of_a_deleted_topic(tmp_path, monkeypatch):
    turns: list[str] = []
    real = PartitionHost.close

    def close(host: PartitionHost) -> None:
        turns.append("close")
        real(host)

    async def tick() -> None:
        while True:
            turns.append("tick")
            await asyncio.sleep(0)

    async with opened(tmp_path) as hosts, asyncio.TaskGroup() as tasks:
        await hosts.topic("orders", partitions=3)
        monkeypatch.setattr(PartitionHost, "close", close)
        ticking = tasks.create_task(tick())
        await hosts.topics.delete("orders")
        ticking.cancel()

    assert turns.count("close") == 3
    assert ("close", "close") not in pairwise(turns)
