"""Retention and compaction of replicas: each has its own, of what is committed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from tests.kit.clock import ManualClock
from tests.node.fake_replication import FakeCluster, FakeReplication
from tests.node.hosts import START_MS, batch_of
from tests.node.test_log_cleaner import fill, offsets, small_segments
from waterclock.delivery.cursor import Cursor
from waterclock.model.ids import Epoch
from waterclock.model.message import Message
from waterclock.model.sections import DeliveryConfig, RetentionConfig
from waterclock.model.units import KIB
from waterclock.model.views import TopicSettings
from waterclock.node import log_cleaner, metadata
from waterclock.node.groups.records import GroupRecord, progress_key
from waterclock.node.groups.shards import GROUPS_TOPIC, shard_of
from waterclock.node.node import Node, running_node
from waterclock.node.replicated_topics import ReplicatedTopics
from waterclock.node.task_groups import task_group
from waterclock.storage.rewrite import Pass, Wanted

KEPT_BYTES = 8 * KIB


@asynccontextmanager
async def nodes(tmp_path) -> AsyncIterator[tuple[FakeCluster, Node, Node]]:
    """Run two nodes that keep little; `a` leads everything."""
    cluster, clock = FakeCluster("a"), ManualClock(START_MS)

    @asynccontextmanager
    async def node(name: str) -> AsyncIterator[Node]:
        async with task_group() as tasks:
            replication = FakeReplication(cluster, name, tasks)
            config = small_segments(tmp_path / name, retention=RetentionConfig(bytes=KEPT_BYTES))
            async with running_node(config, clock, replication) as made:
                assert isinstance(made.topics, ReplicatedTopics)
                cluster.topics[name] = made.topics
                yield made

    async with node("a") as a, node("b") as b:
        await cluster.until(lambda: b.topics.find(GROUPS_TOPIC) is not None)
        await cluster.settled()
        yield cluster, a, b


@pytest.fixture(autouse=True)
def _compact_small_logs(monkeypatch):
    monkeypatch.setattr(log_cleaner, "COMPACT_BYTES_MIN", 4 * KIB)
    monkeypatch.setattr(log_cleaner, "COMMITTED_S_MAX", 0.05)


async def clean(node: Node) -> None:
    """Look at all logs of a node; none is left for another time because it saves side-cars."""
    for topic in node.topics.all():
        for host in topic.partitions:
            if host.is_open:
                host.store.run_jobs()
    await node.log_cleaner.once()


async def test_each_replica_takes_what_is_too_much_of_its_own_log_once_it_is_committed(tmp_path):
    async with nodes(tmp_path) as (cluster, a, b):
        await a.topics.create("t", TopicSettings())
        await fill(a.topics.get("t"), 60)
        await cluster.settled()
        await clean(b)

        led, followed = (node.topics.get("t").partition(0) for node in (a, b))
        assert (led.store.start, followed.store.start > 20) == (0, True)
        assert followed.replica is not None
        assert followed.replica.stream_start >= followed.store.start
        cluster.is_stuck = True
        led.append(batch_of(Message(b"x", message_id=b"last")))
        await clean(a)
        assert led.store.start == 0  # its end may yet go, and with it what ended a message
        cluster.go_on()
        await cluster.settled()
        await clean(a)
        assert led.store.start > 20
        await fill(a.topics.get("t"), 5, start=60)
        await cluster.settled()
        assert max(offsets(b.topics.get("t"))) == max(offsets(a.topics.get("t")))


async def save_progress(a: Node, group: str, committed: int) -> None:
    """Have a group of the topic be as far as this, at its home."""
    folder = a.topics.get("t").folder
    shards = a.groups._replicated
    assert shards is not None
    cursor = Cursor(DeliveryConfig(), committed=committed, has_dead_letters=True)
    await shards.metadata_of(group).put_many(
        {
            f"group/t/{group}": msgspec.json.encode(GroupRecord(1, folder=folder)),
            progress_key("t", group, 0): cursor.encode(shift_ms=0),
        }
    )


async def test_what_a_group_with_another_home_has_not_done_is_kept_where_it_is_waited_for(tmp_path):
    async with nodes(tmp_path) as (cluster, a, b):
        settings = TopicSettings(retention_wait_for_groups=True)
        await a.topics.create("t", settings)
        await save_progress(a, "slow", 12)
        await fill(a.topics.get("t"), 60)
        await cluster.settled()

        assert b.group_cleaner.consumed_end("t", 0) == 12
        await clean(b)
        assert 0 < b.topics.get("t").partition(0).store.start <= 12
        await save_progress(a, "slow", 50)
        await cluster.settled()
        await clean(b)
        assert b.topics.get("t").partition(0).store.start > 12


async def test_a_node_that_does_not_know_all_groups_waits_for_them(tmp_path):
    async with nodes(tmp_path) as (cluster, a, b):
        await a.topics.create("t", TopicSettings(retention_wait_for_groups=True))
        await a.topics.create("c", TopicSettings(is_compacted=True))
        for name in "tc":
            await fill(a.topics.get(name), 60, keys=2)
        await cluster.settled()
        assert b.group_cleaner.consumed_end("t", 0) is None
        shard = b.topics.get(GROUPS_TOPIC).partition(shard_of("x"))
        assert shard.replica is not None
        shard.replica.begin_epoch(Epoch(9), now_ms=START_MS)  # nobody says what is committed
        assert b.group_cleaner.consumed_end("t", 0) == 0
        shard.close_replica("it is elsewhere")

        assert b.group_cleaner.consumed_end("t", 0) == 0
        await clean(b)
        assert [len([*offsets(b.topics.get(name))]) for name in "tc"] == [60, 60]


async def test_a_compacted_topic_is_compacted_on_each_replica(tmp_path):
    async with nodes(tmp_path) as (cluster, a, b):
        await a.topics.create("t", TopicSettings(is_compacted=True))
        await fill(a.topics.get("t"), 60, keys=2)
        await cluster.settled()
        await clean(b)

        left = [*offsets(b.topics.get("t"))]
        assert len(left) < 30
        assert left[-2:] == [*offsets(a.topics.get("t"))][-2:]
        assert len([*offsets(a.topics.get("t"))]) == 60


async def test_the_history_of_records_goes_on_each_node(tmp_path, monkeypatch):
    monkeypatch.setattr(metadata, "HISTORY_BYTES_MIN", 1)
    async with nodes(tmp_path) as (cluster, a, b):
        for number in range(20):
            await a.metadata.put("x", b"%d" % number * 500)
        await a.metadata.put("gone", b"y")
        await a.metadata.delete("gone")
        await cluster.settled()
        before = [sum(s.end_position for s in node.metadata.store.segments) for node in (a, b)]
        await b.metadata.compact()
        await a.metadata.compact()

        after = [sum(s.end_position for s in node.metadata.store.segments) for node in (a, b)]
        assert [low < high // 2 for low, high in zip(after, before, strict=True)] == [True, True]
        await a.metadata.put("z", b"1")
        await cluster.settled()
        assert b.metadata.items("") == a.metadata.items("")
        assert b.metadata.get("gone") is None


async def test_a_log_that_is_opened_anew_is_not_rewritten_as_what_it_was(tmp_path):
    async with nodes(tmp_path) as (cluster, a, b):
        await a.topics.create("t", TopicSettings())
        await fill(a.topics.get("t"), 60)
        await cluster.settled()
        host = b.topics.get("t").partition(0)
        before = host.store
        wanted = Wanted(keep_from=before.segments[-1].base_offset)
        a_pass = Pass(before, wanted, now_ms=START_MS)
        host.close_replica("it is opened anew")
        await host.open_replica()
        await b.log_cleaner._rewrite(b.topics.get("t"), host, a_pass)

        assert host.store.start == 0
