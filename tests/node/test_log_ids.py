"""A topic's record says which logs are its partitions', so that all replicas have the same."""

import shutil

import msgspec
from msgspec.structs import replace

from tests.node.hosts import opened
from waterclock.model.views import TopicSettings
from waterclock.node.topics import RECORD, Topic, TopicRecord


def stored(topic: Topic) -> tuple[str, ...]:
    return tuple(host.store.log_id.hex() for host in topic.partitions)


async def test_the_record_of_a_topic_names_the_log_of_each_partition(tmp_path):
    async with opened(tmp_path) as hosts:
        topic = await hosts.topic("orders", partitions=2)
        value = dict(hosts.metadata.items(RECORD))[RECORD + "orders"]

        assert msgspec.json.decode(value, type=TopicRecord).log_ids == stored(topic)
        assert len(set(stored(topic))) == 2


async def test_a_partition_begun_from_a_record_has_the_log_id_it_names(tmp_path):
    names = ("aa" * 16, "bb" * 16)
    async with opened(tmp_path) as hosts:
        topic = Topic("copied", "copied-folder", TopicSettings(partitions=2), names)
        topic.partitions = await hosts.topics._add_partitions(topic, topic.settings)

        assert stored(topic) == names
        for host in topic.partitions:
            host.close()


async def test_a_record_of_an_earlier_release_opens_and_learns_the_ids_of_its_logs(tmp_path):
    async with opened(tmp_path) as hosts:
        topic = await hosts.topic("orders", partitions=2)
        known = stored(topic)
        record = {"folder": topic.folder, "settings": msgspec.to_builtins(topic.settings)}
        await hosts.metadata.put(RECORD + "orders", msgspec.json.encode(record))

    async with opened(tmp_path) as hosts:
        topic = hosts.topics.get("orders")
        assert stored(topic) == known
        await hosts.topics.update("orders", replace(topic.settings, partitions=3))
        value = dict(hosts.metadata.items(RECORD))[RECORD + "orders"]

        assert msgspec.json.decode(value, type=TopicRecord).log_ids == stored(topic)
        assert stored(topic)[:2] == known


async def test_the_id_of_a_log_that_cannot_be_opened_is_kept(tmp_path):
    async with opened(tmp_path) as hosts:
        topic = await hosts.topic("orders", partitions=2)
        known, folder = stored(topic), tmp_path / "topics" / topic.folder
    shutil.rmtree(folder / "0")

    async with opened(tmp_path) as hosts:
        topic = hosts.topics.get("orders")
        await hosts.topics.update("orders", replace(topic.settings, retention_ms=86_400_000))
        value = dict(hosts.metadata.items(RECORD))[RECORD + "orders"]

        assert not topic.partition(0).is_open
        assert msgspec.json.decode(value, type=TopicRecord).log_ids == known
