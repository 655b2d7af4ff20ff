import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.node.fake_replication import (
    META_LOG,
    FakeCluster,
    FakeReplication,
    ReplicatedHosts,
    joined,
)
from tests.node.hosts import batch_of
from waterclock.model.errors import Fenced, NotLeader, Unavailable, UnknownTopic
from waterclock.model.message import Message
from waterclock.model.views import TopicSettings
from waterclock.node import replicated_topics
from waterclock.node.replicated_topics import ReplicatedTopics
from waterclock.node.topics import RECORD, TRASH, Topic

TWO = TopicSettings(partitions=2)


@asynccontextmanager
async def pair(tmp_path) -> AsyncIterator[tuple[FakeCluster, ReplicatedHosts, ReplicatedHosts]]:
    """Run two nodes; `a` leads all there is."""
    cluster = FakeCluster("a")
    async with (
        joined(tmp_path / "a", cluster, "a") as a,
        joined(tmp_path / "b", cluster, "b") as b,
    ):
        yield cluster, a, b
        assert a.failures + b.failures == []


def log_ids(topic: Topic) -> list[str]:
    return [topic.log_id(number) for number in range(len(topic.partitions))]


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_topic_is_made_by_the_leader_and_comes_to_all_nodes(tmp_path):
    async with pair(tmp_path) as (cluster, a, b):
        made = await a.topics.create("t", TWO)
        followed = b.topics.get("t")
        await cluster.settled()

        assert [host.role for host in made.partitions] == ["leader", "leader"]
        assert [host.role for host in followed.partitions] == ["follower", "follower"]
        assert log_ids(made) == log_ids(followed)
        assert len(set(log_ids(made))) == 2
        assert followed.settings == TWO


async def test_what_is_published_to_the_leader_can_be_read_on_its_followers(tmp_path):
    async with pair(tmp_path) as (cluster, a, b):
        topic = await a.topics.create("t", TWO)
        await topic.partition(1).publish(batch_of(Message(b"hello")))
        await cluster.settled()

        store = b.topics.get("t").partition(1).store
        deliverable = [frame for frame in store.frames(0) if frame.header.is_deliverable]
        assert len(deliverable) == 1


async def test_other_nodes_refuse_to_change_topics(tmp_path):
    async with pair(tmp_path) as (_, a, b):
        await a.topics.create("t", TWO)

        for change in (
            b.topics.create("other", TWO),
            b.topics.update("t", TWO),
            b.topics.delete("t"),
        ):
            with pytest.raises(NotLeader, match="__meta"):
                await change


async def test_a_topic_that_is_used_first_on_another_node_is_made_by_the_leader(tmp_path):
    async with pair(tmp_path) as (_, a, b):
        ensured = await b.topics.ensure("t")
        own = await b.topics.ensure_own("__audit", TWO)
        grown = await b.topics.ensure_partitions("t", 3)

        assert ensured.made_partitions == 1
        assert len(own.partitions) == 2
        assert len(grown.partitions) == len(a.topics.get("t").partitions) == 3
        assert (await b.topics.ensure("t")).made_partitions == 0


async def test_partitions_are_added_everywhere_and_keep_their_logs(tmp_path):
    async with pair(tmp_path) as (_, a, b):
        before = log_ids(await a.topics.create("t", TWO))
        updated: list[Topic] = []
        b.topics.on_updated.append(updated.append)

        after = log_ids(await a.topics.update("t", TopicSettings(partitions=3, retention_ms=5)))

        assert after[:2] == before
        assert log_ids(b.topics.get("t")) == after
        assert updated == [b.topics.get("t")]
        assert b.topics.get("t").settings.retention_ms == 5


async def test_another_number_of_replicas_reaches_the_partitions_that_there_are(tmp_path):
    async with pair(tmp_path) as (_, a, b):
        await a.topics.create("t", TopicSettings(partitions=2, replication_factor=1))
        await a.topics.create("other", TopicSettings(partitions=1, replication_factor=2))

        await a.topics.update("t", TopicSettings(partitions=3, replication_factor=3))

        expected = {("t", 0): 3, ("t", 1): 3, ("t", 2): 3, ("other", 0): 2}
        for topics in (a.topics, b.topics):
            assert isinstance(topics, ReplicatedTopics)
            assert isinstance(topics.replication, FakeReplication)
            assert topics.replication.factors == expected


async def test_a_deleted_topic_goes_with_its_files_on_all_nodes(tmp_path):
    async with pair(tmp_path) as (cluster, a, b):
        topic = await a.topics.create("t", TWO)
        folder = topic.folder
        await cluster.settled()
        assert (tmp_path / "b" / "topics" / folder).exists()

        await a.topics.delete("t")
        for hosts in (a, b):
            with pytest.raises(UnknownTopic):
                hosts.topics.get("t")

    for name in "ab":
        assert not (tmp_path / name / "topics" / folder).exists()


async def test_a_topic_made_again_has_nothing_of_the_old_one(tmp_path):
    async with pair(tmp_path) as (_, a, b):
        old = log_ids(await a.topics.create("t", TWO))
        await a.topics.delete("t")
        new = log_ids(await a.topics.create("t", TWO))

        assert not set(old) & set(new)
        assert log_ids(b.topics.get("t")) == new


async def test_nobody_has_a_topic_before_its_record_is_committed(tmp_path):
    async with pair(tmp_path) as (cluster, a, b):
        cluster.is_stuck = True
        making = asyncio.ensure_future(a.topics.create("t", TWO))
        await turns()
        assert a.topics.find("t") is b.topics.find("t") is None

        cluster.go_on()

        assert (await making) is a.topics.get("t")


async def test_a_lead_lost_before_the_record_is_committed_makes_no_topic_yet(tmp_path):
    async with pair(tmp_path) as (cluster, a, b):
        cluster.is_stuck = True
        making = asyncio.ensure_future(a.topics.create("t", TWO))
        await turns()
        cluster.logs[META_LOG].replicas["a"].step_down("a test says so")
        assert a.metadata.get(RECORD + "t") is None
        # It was committed after all: it had reached the other node.
        cluster.go_on()

        with pytest.raises(Fenced):
            await making
        assert log_ids(a.topics.get("t")) == log_ids(b.topics.get("t"))


async def test_a_lead_lost_while_a_topic_is_deleted_leaves_it_until_that_is_committed(tmp_path):
    async with pair(tmp_path) as (cluster, a, b):
        await a.topics.create("t", TWO)
        cluster.is_stuck = True
        deleting = asyncio.ensure_future(a.topics.delete("t"))
        await turns()
        assert a.topics.find("t") is not None
        cluster.logs[META_LOG].replicas["a"].step_down("a test says so")
        assert a.metadata.get(RECORD + "t") is not None
        cluster.go_on()

        with pytest.raises(Fenced):
            await deleting
        assert a.topics.find("t") is b.topics.find("t") is None


async def test_a_new_leader_of_the_records_makes_topics(tmp_path):
    async with pair(tmp_path) as (cluster, a, b):
        cluster.move("b")
        await cluster.settled()
        await b.topics.create("t", TWO)
        await cluster.settled()

        assert [host.role for host in a.topics.get("t").partitions] == ["follower", "follower"]


async def test_a_new_leader_knows_all_topics_once_its_own_epoch_is_committed(tmp_path):
    async with pair(tmp_path) as (cluster, a, b):
        assert knows_all(a)
        cluster.is_stuck = True
        cluster.move("b")
        await turns()
        assert not knows_all(a)
        assert not knows_all(b)

        cluster.go_on()
        await cluster.settled()

        assert knows_all(b)
        await b.metadata.put(RECORD + "later", b"{}")  # of a later release, with places of its own
        assert not knows_all(b)


def knows_all(node: ReplicatedHosts) -> bool:
    replication = node.topics.replication
    assert isinstance(replication, FakeReplication)
    return replication.knows_all_topics()


async def test_a_node_without_a_copy_knows_the_topic_and_has_no_files(tmp_path):
    async with pair(tmp_path) as (cluster, a, b):
        cluster.without.add("b")
        topic = await a.topics.create("t", TWO)

        host = b.topics.get("t").partition(0)
        assert (host.role, host.is_open) == ("closed", False)
        assert log_ids(b.topics.get("t")) == log_ids(topic)
        assert not (tmp_path / "b" / "topics" / topic.folder).exists()


async def test_a_topic_whose_partitions_find_no_leader_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(replicated_topics, "LED_S_MAX", 0.01)
    async with pair(tmp_path) as (cluster, a, _):
        cluster.without.update("ab")

        with pytest.raises(Unavailable, match="no leader"):
            await a.topics.create("t", TWO)
        assert a.topics.find("t") is not None


async def test_a_change_that_most_nodes_do_not_see_may_have_been_made(tmp_path, monkeypatch):
    monkeypatch.setattr(replicated_topics, "COMMITTED_S_MAX", 0.01)
    async with pair(tmp_path) as (cluster, a, _):
        cluster.is_stuck = True

        with pytest.raises(Fenced, match="most nodes"):
            await a.topics.create("t", TWO)


async def test_a_topic_deleted_while_a_node_was_away_is_removed_when_it_comes_back(tmp_path):
    cluster = FakeCluster("a")
    async with joined(tmp_path / "a", cluster, "a") as a:
        async with joined(tmp_path / "b", cluster, "b"):
            folder = (await a.topics.create("t", TWO)).folder
            await cluster.settled()
            (tmp_path / "b" / "topics" / "not of any record").mkdir()
        for log in cluster.logs.values():
            log.replicas.pop("b", None)
        await a.topics.delete("t")
        assert (tmp_path / "b" / "topics" / folder).exists()

        async with joined(tmp_path / "b", cluster, "b"):
            assert not (tmp_path / "b" / "topics" / folder).exists()
            assert (tmp_path / "b" / "topics" / "not of any record").exists()


async def test_what_was_deleted_long_ago_is_forgotten_by_the_leader(tmp_path):
    async with pair(tmp_path) as (_, a, b):
        folder = (await a.topics.create("t", TWO)).folder
        await a.topics.delete("t")
        await a.topics.drop_old_trash()
        assert a.metadata.get(TRASH + folder) is not None
        await a.metadata.put(TRASH + "old", b"1")

        await a.topics.drop_old_trash()

        assert b.metadata.get(TRASH + "old") is None
        assert b.metadata.get(TRASH + folder) is not None


async def test_a_record_that_cannot_be_read_harms_no_other_topic(tmp_path):
    async with pair(tmp_path) as (_, a, b):
        await a.metadata.put_many({RECORD + "later": b"{}", "of a later release": b"\xff"})
        await a.topics.create("t", TWO)

        assert [topic.name for topic in b.topics.all()] == ["t"]
