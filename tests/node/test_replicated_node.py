"""Whole nodes that share topics: who leads what, and what goes on when that changes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from tests.cluster.replication.shell.live_coordinator import until
from tests.kit.clock import ManualClock
from tests.node.fake_replication import META_LOG, FakeCluster, FakeReplication
from tests.node.hosts import START_MS, batch_of, config_in
from tests.stores.streams import numbered_records
from waterclock.delivery.progress import empty_tracker
from waterclock.log.schema import decode
from waterclock.model.errors import Fenced, NotLeader
from waterclock.model.message import Message
from waterclock.model.views import JobRun, Recurrence, TopicSettings
from waterclock.node.dead_letters.progress import encode_progress, progress_key
from waterclock.node.groups.shards import GROUPS_TOPIC
from waterclock.node.node import Node, running_node
from waterclock.node.partition.host import PartitionHost
from waterclock.node.replay.records import Request
from waterclock.node.replay.snapshots import SnapshotPart, SnapshotRecord
from waterclock.node.replicated_topics import ReplicatedTopics
from waterclock.node.streams.partitions import partition_of_stream
from waterclock.node.task_groups import task_group
from waterclock.node.topics import STREAMS_TOPIC
from waterclock.stores.log import store as log_store

DAILY = Recurrence(name="daily", topic="t", message=Message(b"tick"), every_ms=86_400_000)


@asynccontextmanager
async def nodes(tmp_path, **sections: Any) -> AsyncIterator[tuple[FakeCluster, Node, Node]]:
    """Run two nodes; `a` leads everything at first."""
    cluster = FakeCluster("a")
    clock = ManualClock(START_MS)

    @asynccontextmanager
    async def node(name: str) -> AsyncIterator[Node]:
        async with task_group() as tasks:
            replication = FakeReplication(cluster, name, tasks)
            config = config_in(tmp_path / name, **sections)
            async with running_node(config, clock, replication) as made:
                assert isinstance(made.topics, ReplicatedTopics)
                assert made.replicated_streams is not None
                cluster.topics[name] = made.topics
                cluster.methods[name] = made.replicated_streams.answer
                yield made

    async with node("a") as a, node("b") as b:
        await cluster.until(lambda: b.topics.find(GROUPS_TOPIC) is not None)
        await cluster.settled()
        yield cluster, a, b


def has_timers(host: PartitionHost) -> bool:
    try:
        return host.scheduler is not None
    except NotLeader:
        return False


async def leads_with_timers(node: Node) -> None:
    host = node.topics.get("t").partition(0)
    await until(lambda: node.metadata.is_leading and has_timers(host))


async def test_all_nodes_know_the_same_topics_and_the_same_key(tmp_path):
    async with nodes(tmp_path) as (_, a, b):
        await a.topics.create("t", TopicSettings(partitions=2))

        assert [topic.name for topic in b.topics.all()] == [GROUPS_TOPIC, STREAMS_TOPIC, "t"]
        assert a.metadata.get("streams/token_key") == b.metadata.get("streams/token_key")


async def test_a_leader_that_breaks_as_it_starts_tells_what_broke(tmp_path, monkeypatch):
    async def breaks(node: Node) -> None:
        raise LookupError("what broke")

    monkeypatch.setattr(Node, "_lead_records", breaks)
    with pytest.raises(LookupError, match="what broke"):
        async with nodes(tmp_path):
            pass


async def test_a_partition_that_others_have_is_no_problem(tmp_path):
    async with nodes(tmp_path) as (cluster, a, b):
        cluster.without.add("b")
        await a.topics.create("t", TopicSettings())

        assert not b.topics.get("t").partition(0).is_open
        assert b.problems() == []


async def test_timers_run_where_their_partition_is_led(tmp_path):
    async with nodes(tmp_path) as (cluster, a, b):
        await a.topics.create("t", TopicSettings())
        await cluster.settled()
        hosts = [node.topics.get("t").partition(0) for node in (a, b)]
        await until(lambda: has_timers(hosts[0]))
        assert not has_timers(hosts[1])

        cluster.move("b")
        await cluster.settled()

        await until(lambda: has_timers(hosts[1]))
        assert not has_timers(hosts[0])


async def test_recurrences_are_kept_by_the_leader_of_the_records(tmp_path):
    async with nodes(tmp_path) as (cluster, a, b):
        await a.recurrences.put(DAILY)
        with pytest.raises(NotLeader):
            await b.recurrences.put(DAILY)

        cluster.move("b")
        await cluster.until(lambda: bool(b.recurrences.list()))

        assert [each.name for each in b.recurrences.list()] == ["daily"]
        assert cluster.logs[META_LOG].leader == "b"


async def test_a_leader_goes_by_what_those_before_it_did_to_recurrences(tmp_path):
    async with nodes(tmp_path) as (cluster, a, b):
        await a.recurrences.put(DAILY)
        await cluster.settled()
        cluster.move("b")
        await leads_with_timers(b)
        await b.recurrences.delete("daily")
        await cluster.settled()
        found: list[list[str]] = []
        a.metadata.on_leading.append(
            lambda _: found.append([each.name for each in a.recurrences.list()])
        )

        cluster.move("a")
        await cluster.until(lambda: a.metadata.is_leading)

        assert found == [[]]


async def test_a_deposed_leader_forgets_a_recurrence_that_was_not_committed(tmp_path):
    async with nodes(tmp_path) as (cluster, a, _):
        await a.topics.create("t", TopicSettings())
        cluster.is_stuck = True
        put = asyncio.ensure_future(a.recurrences.put(DAILY))
        await until(lambda: bool(a.recurrences.list()))

        cluster.lead(META_LOG, "a")
        with pytest.raises(Fenced):
            await put
        assert a.recurrences.list() == []
        cluster.is_stuck = False
        cluster.replicate(META_LOG)
        await cluster.until(lambda: a.metadata.is_leading)

        # It stood in the log after all, and is committed by the next lead.
        assert [each.name for each in a.recurrences.list()] == ["daily"]


async def test_a_leader_that_lost_the_lead_meanwhile_undoes_nothing_that_others_did(tmp_path):
    async with nodes(tmp_path) as (cluster, a, b):
        await a.recurrences.put(DAILY)
        await cluster.settled()
        async with a.recurrences._alone():
            old = dict(a.recurrences._records)
            cluster.move("b")
            await leads_with_timers(b)
            await b.recurrences.delete("daily")
            await cluster.settled()
            cluster.move("a")
            await cluster.until(lambda: a.metadata.is_leading)

            with pytest.raises(Fenced):
                await a.recurrences._save(old)

        assert a.recurrences.list() == []
        assert a.metadata.items("recurrence/") == []


async def test_what_writers_have_done_is_known_where_the_records_are_led_and_as_they_are(tmp_path):
    """From the first moment: a job that asked too early would begin anew, and write twice."""
    async with nodes(tmp_path) as (cluster, a, b):
        await a.topics.create("t", TopicSettings())
        await a.write_registry.commit("t", "job", 3)
        await cluster.settled()
        found: list[list[int | None]] = []
        b.metadata.on_leading.append(
            lambda _: found.append([each.committed for each in b.write_registry.list("t")])
        )

        cluster.move("b")
        await cluster.until(lambda: b.metadata.is_leading)

        assert found == [[3]]


async def test_a_deposed_leader_forgets_of_writers_what_was_not_committed(tmp_path):
    async with nodes(tmp_path) as (cluster, a, _):
        await a.topics.create("t", TopicSettings())
        await a.write_registry.commit("t", "job", 3)
        await cluster.settled()
        found: list[tuple[bool, int | None]] = []
        a.metadata.on_leading.append(
            lambda leads: found.append((leads, a.write_registry.list("t")[0].committed))
        )
        cluster.is_stuck = True
        commit = asyncio.ensure_future(a.write_registry.commit("t", "job", 5))
        await asyncio.sleep(0)

        cluster.lead(META_LOG, "a")
        with pytest.raises(Fenced):
            await commit
        cluster.is_stuck = False
        cluster.replicate(META_LOG)
        await cluster.until(lambda: a.metadata.is_leading)

        # It stood in the log after all, and is committed by the next lead.
        assert found == [(False, 3), (True, 5)]
        assert await a.write_registry.commit("t", "job", 5) == (True, 5)


async def test_snapshots_are_known_where_the_records_are_led(tmp_path):
    async with nodes(tmp_path) as (cluster, a, b):
        topic = await a.topics.create("t", TopicSettings())
        part = SnapshotPart(0, 0, 1, 1, 1, 1, log_id=topic.log_id(0))
        record = SnapshotRecord("t", "s", "/snapshots/s", START_MS, (part,), manifest_crc=0)
        await a.metadata.put("snapshot/t/s", msgspec.json.encode(record))
        await cluster.settled()
        found: list[list[str]] = []
        b.metadata.on_leading.append(
            lambda _: found.append([each.snapshot for each in b.snapshots.list("t")])
        )

        cluster.move("b")
        await cluster.until(lambda: b.metadata.is_leading)

        assert found == [["s"]]


async def test_dead_letters_that_are_done_stay_so_where_a_replica_is_behind(tmp_path):
    async with nodes(tmp_path) as (cluster, a, b):
        await a.topics.create("t", TopicSettings())
        dead = await a.topics.ensure_partitions("t.dlq", 1)
        await cluster.settled()
        done = empty_tracker(0)
        done.add(0, 100)  # more than any replica has here
        saved = encode_progress(dead.partition(0).store.log_id, done)
        key = progress_key(dead.partition(0))
        (before,) = await a.dead_letters._partitions_of("t")
        await a.metadata.put(key, saved)
        await cluster.settled()

        cluster.move("b")
        await cluster.until(lambda: b.metadata.is_leading)

        (there,) = await b.dead_letters._partitions_of("t")
        assert there.record() == b.metadata.get(key) == saved
        with pytest.raises(Fenced):
            before.finish([0])


async def test_a_named_replay_ends_where_the_lead_of_the_records_is_lost(tmp_path):
    async with nodes(tmp_path) as (cluster, a, b):
        topic = await a.topics.create("t", TopicSettings())
        await topic.partition(0).publish(batch_of(Message(b"x", message_id=b"x")))
        await cluster.settled()
        reading = await a.replays.begin(Request("t"), name="again")
        cluster.move("b")
        await cluster.until(lambda: b.metadata.is_leading)

        with pytest.raises(Fenced):
            await anext(reading)
        reading.close()
        there = await b.replays.begin(Request(""), name="again")
        assert (await anext(there)).messages.count == 1
        there.close()
        await cluster.settled()


async def test_replicas_of_stored_streams_are_rewritten_without_what_is_of_no_use(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(log_store, "REWRITE_BYTES_MIN", 0)
    async with nodes(tmp_path) as (cluster, a, b):
        stores = [each for each in (a.replicated_streams, b.replicated_streams) if each]
        await stores[0].open()
        await stores[1].open()
        await stores[1].store("s", numbered_records(3_000), now_ms=START_MS)
        await stores[1].delete("s")
        await stores[1].store("s", numbered_records(5, prefix="kept "), now_ms=START_MS)
        kept = await stores[1].read("s", after=0, limit=9, now_ms=START_MS)
        await cluster.settled()
        partition = partition_of_stream(b"s")
        hosts = [node.topics.get(STREAMS_TOPIC).partition(partition) for node in (a, b)]
        assert [rows_in(host) for host in hosts] == [3_006, 3_006]

        # A removal that is not committed may yet go, and what it removed come back.
        cluster.is_stuck = True
        removing = asyncio.ensure_future(stores[0].delete("s", older_than_ms=START_MS))
        adding = asyncio.ensure_future(
            stores[0].store("s", numbered_records(1, prefix="last "), now_ms=START_MS)
        )
        cleaning = asyncio.ensure_future(a.log_cleaner.once())
        for _ in range(50):
            await asyncio.sleep(0)
        assert rows_in(hosts[0]) == 3_006
        cluster.go_on()
        await asyncio.gather(removing, adding, cleaning)
        await b.log_cleaner.once()

        assert [rows_in(host) for host in hosts] == [7, 7]
        for leader in ("a", "b"):
            if leader == "b":
                cluster.move("b")
                await cluster.settled()
            page = await stores[0].read("s", after=0, limit=5, now_ms=START_MS)
            assert page.messages == kept.messages
            again = [*numbered_records(1, prefix="kept "), *numbered_records(1, prefix=leader)]
            stored = await stores[0].store("s", again, now_ms=START_MS)
            assert [each.is_new for each in stored] == [False, True]
            assert stored[0].position == 3_001


def rows_in(host: PartitionHost) -> int:
    """Return how many rows of streams a replica has."""
    frames = [frame for frame in host.store.frames(host.store.start) if frame.header.is_deliverable]
    return sum(len(decode(frame.header, frame.body)) for frame in frames)


async def test_a_node_that_only_follows_knows_what_a_recurrence_a_replay_and_a_run_are_of(tmp_path):
    """It looks what a client may do before it asks the one that leads."""
    async with nodes(tmp_path) as (cluster, a, b):
        await a.topics.create("t", TopicSettings())
        await cluster.settled()
        await leads_with_timers(a)
        await a.recurrences.put(DAILY)
        (await a.replays.begin(Request("t"), name="past")).close()
        await a.job_runs.put(JobRun(name="run", job="compact", topic="t"))
        await cluster.settled()

        known = b.recurrences.topic_of, b.replays.topic_of, b.job_runs.topic_of
        names = ("daily", "past", "run")
        assert [ask(name) for ask, name in zip(known, names, strict=True)] == ["t", "t", "t"]
        assert [ask("none") or None for ask in known] == [None] * 3

        await a.recurrences.delete("daily")
        await cluster.settled()
        assert b.recurrences.topic_of("daily") == ""
