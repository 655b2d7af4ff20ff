"""A copy that lags behind its leader, or was just opened anew: who reads it there loses nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.cluster.replication.shell.live_coordinator import until
from tests.node.fake_replication import FakeCluster
from tests.node.hosts import batch_of
from tests.node.test_group_shards import homes, received
from tests.node.test_replicated_node import nodes
from waterclock.log.snapshot import Manifest, SnapshotPartition
from waterclock.model.errors import Unavailable
from waterclock.model.message import Message
from waterclock.model.views import TopicSettings
from waterclock.node.dead_letters import writer
from waterclock.node.groups.session import AnswerKind
from waterclock.node.node import Node
from waterclock.node.partition.host import PartitionHost
from waterclock.node.partition.remote_log import LogAnswer, LogQuery
from waterclock.node.replay.records import Request
from waterclock.node.replay.snapshots import _check_place
from waterclock.storage.local_log import stored_messages

LARGE = b"x" * 100_000
"""One of these is handed out at a time."""


class Leader:
    """The node that leads a partition, as others ask it."""

    def __init__(self, host: PartitionHost) -> None:
        self._host = host
        self.was_asked = asyncio.Event()

    async def read(self, query: LogQuery) -> LogAnswer:
        self.was_asked.set()
        end = int(self._host.store.acknowledged_end)
        return LogAnswer(0, end, 0, b"", 0, [], 0, ())


async def open_anew(host: PartitionHost) -> None:
    """Open a copy as after a cut: nobody has told it yet how far it is committed."""
    host.close_replica("it is cut")
    await host.open_replica()
    assert host.store.acknowledged_end == 0


@asynccontextmanager
async def followed(tmp_path) -> AsyncIterator[tuple[FakeCluster, Node, PartitionHost, Leader]]:
    """Run a node that leads the records, and a named replay of a topic that another leads; one
    message of three was handed out, then the copy there was opened anew."""
    async with nodes(tmp_path) as (cluster, a, b):
        topic = await a.topics.create("t", TopicSettings())
        for number in b"123":
            message = Message(LARGE, message_id=bytes([number]))
            await topic.partition(0).publish(batch_of(message))
        await cluster.settled()
        cluster.lead(bytes.fromhex(topic.log_id(0)), "b")
        await cluster.settled()
        reading = await a.replays.begin(Request("t"), name="again")
        batch = await anext(reading)
        reading.report([(0, batch.next_offset)])
        reading.close()
        cluster.is_stuck = True
        host = topic.partition(0)
        await open_anew(host)
        yield cluster, a, host, Leader(b.topics.get("t").partition(0))
        cluster.go_on()
        await cluster.settled()


async def rest_of(node: Node) -> int:
    """Go on with the replay; return how many messages are left of it."""
    reading = await node.replays.begin(Request(""), name="again")
    try:
        return sum([batch.messages.count async for batch in reading])
    finally:
        reading.close()


async def test_dead_letters_wait_until_their_messages_can_be_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "RETRY_S", 0)
    async with homes(tmp_path) as it:
        topic_logs = [bytes.fromhex(log_id) for log_id in it.a.hosts.topics.get("t").log_ids]
        it.cluster.move("b", but=topic_logs)
        it.cluster.leader = "a"
        await it.cluster.settled()
        await it.publish(b"1", b"2")
        member = await it.b.join()
        await received(member, 2)
        it.cluster.leader = "b"  # of the dead letters
        await it.b.hosts.topics.ensure_partitions("t.dlq", 1)
        await it.cluster.settled()
        it.cluster.is_stuck = True
        await open_anew(it.b.hosts.topics.get("t").partition(0))

        member.answer(AnswerKind.REJECT, member.offsets[1][1])
        waiting = it.b.groups._hosts["t", "g"].dead_letters
        for _ in range(20):
            await asyncio.sleep(0)
        assert waiting
        it.cluster.go_on()
        await until(lambda: not waiting)

        store = it.b.hosts.topics.get("t.dlq").partition(0).store
        frames = [each for each in store.frames(0) if each.header.is_deliverable]
        values = [message.value for each in frames for _, message in stored_messages(each, 0)]
        assert values == [b"2"]


async def test_a_replay_does_not_end_before_its_end_where_a_copy_lags(tmp_path):
    async with followed(tmp_path) as (cluster, node, _, _):
        with pytest.raises(Unavailable, match="does not reach"):
            await rest_of(node)
        cluster.go_on()

        assert await rest_of(node) == 2


async def test_a_replay_goes_on_once_a_copy_has_what_its_leader_had(tmp_path):
    async with followed(tmp_path) as (cluster, node, host, leader):
        host.reads = leader
        reading = asyncio.ensure_future(rest_of(node))
        await until(leader.was_asked.is_set)
        cluster.go_on()

        assert await reading == 2


async def test_a_snapshot_is_of_a_log_whose_copy_lags(tmp_path):
    async with followed(tmp_path) as (cluster, node, host, leader):
        host.reads = leader
        end = (await leader.read(LogQuery("t", 0))).end
        leader.was_asked.clear()
        part = SnapshotPartition(0, 0, end, ())
        manifest = Manifest("t", "s", 0, (part,))
        checking = asyncio.ensure_future(_check_place(node.topics.get("t"), manifest))
        await until(leader.was_asked.is_set)
        cluster.go_on()

        await checking
