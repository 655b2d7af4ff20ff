"""Leads that move in the middle of something: what was answered stands, and nothing comes twice."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import msgspec
import pytest

from tests.cluster.replication.shell.live_coordinator import until
from tests.node.fake_replication import META_LOG, FakeCluster
from tests.node.hosts import batch_of
from tests.node.test_group_shards import homes, received
from tests.node.test_replicated_node import DAILY, has_timers, leads_with_timers, nodes
from waterclock.model.errors import Fenced, NotLeader
from waterclock.model.message import Message
from waterclock.model.views import TopicSettings
from waterclock.node.dead_letters import writer
from waterclock.node.groups.session import AnswerKind
from waterclock.node.groups.shards import GROUPS_TOPIC, shard_of
from waterclock.node.node import Node
from waterclock.node.partition.host import PartitionHost
from waterclock.node.schedule.named_changes import Named
from waterclock.node.schedule.recurrences import Recurrences
from waterclock.storage.local_log import stored_messages


def values_in(host: PartitionHost) -> list[bytes | None]:
    frames = [frame for frame in host.store.frames(0) if frame.header.is_deliverable]
    return [message.value for frame in frames for _, message in stored_messages(frame, 0)]


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# Groups


async def test_an_ack_that_was_not_committed_when_the_home_moved_has_its_message_come_again(
    tmp_path,
):
    async with homes(tmp_path) as it:
        await it.publish(b"1", b"2")
        member = await it.a.join()
        await received(member, 2)
        await it.a.groups.save_all()
        shard = bytes.fromhex(it.a.hosts.topics.get(GROUPS_TOPIC).log_id(shard_of("g")))
        it.cluster.is_stuck = True
        member.ack(member.offsets[0][1])
        saving = asyncio.ensure_future(it.a.groups.save_all())
        await turns()
        assert not saving.done()

        # What the old home wrote is cut there: it is away from now on.
        it.cluster.lead(shard, "b")
        del it.cluster.logs[shard].replicas["a"]
        it.cluster.go_on()
        await saving
        await it.cluster.until(lambda: bool(it.b.groups.list()))
        again = await it.b.join()

        assert await received(again, 2) == [b"1", b"2"]
        generation = it.b.groups.get("t", "g").generation
        member.ack(member.offsets[1][1])  # by who had it before
        again.answer(AnswerKind.ACK, again.offsets[0][1], generation=generation - 1)
        assert it.b.groups.get("t", "g").partitions[0].unacked == 2


# Dead letters


@asynccontextmanager
async def one_dead_letter(tmp_path) -> AsyncIterator[tuple[FakeCluster, Node, Node]]:
    """Run two nodes; `a` leads, and one message of `t` is a dead letter."""
    async with nodes(tmp_path) as (cluster, a, b):
        await a.topics.create("t", TopicSettings())
        dead = await a.topics.ensure_partitions("t.dlq", 1)
        await dead.partition(0).publish(batch_of(Message(b"dead", message_id=b"g/t/0/0/run")))
        await cluster.settled()
        yield cluster, a, b
        await cluster.settled()


@pytest.mark.parametrize("moved", ["t", "t.dlq", "records"])
async def test_a_dead_letter_is_open_until_its_message_is_committed(tmp_path, moved):
    async with one_dead_letter(tmp_path) as (cluster, a, b):
        log_id = META_LOG if moved == "records" else bytes.fromhex(a.topics.get(moved).log_id(0))
        cluster.is_stuck = True
        redriving = asyncio.ensure_future(a.dead_letters.redrive("t"))
        host = a.topics.get("t").partition(0)
        await until(lambda: host.store.end == 2)
        assert (await a.dead_letters.list("t")).total == 1
        cluster.lead(log_id, "a")  # again: another epoch
        cluster.go_on()

        if moved == "t.dlq":
            assert await redriving == 1
        else:
            with pytest.raises(Fenced):
                await redriving
            assert (await a.dead_letters.list("t")).total == 1
            await cluster.until(lambda: a.metadata.is_leading and host.is_led)
            assert await a.dead_letters.redrive("t") == 1
        await cluster.settled()
        assert values_in(b.topics.get("t").partition(0)) == [b"dead"]
        assert (await a.dead_letters.list("t")).total == 0


async def test_a_dead_letter_whose_leader_moves_is_written_once(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "RETRY_S", 0)
    async with homes(tmp_path) as it:
        dead = await it.a.hosts.topics.ensure_partitions("t.dlq", 1)
        await it.publish(b"1", b"2")
        member = await it.a.join()
        await received(member, 2)
        await it.cluster.settled()
        it.cluster.is_stuck = True
        member.answer(AnswerKind.REJECT, member.offsets[0][1])
        host = dead.partition(0)
        await until(lambda: host.store.end == 2)
        partition = it.a.groups._hosts["t", "g"].partitions[0]
        before = partition.cursor.committed
        it.cluster.lead(bytes.fromhex(dead.log_id(0)), "a")
        await turns()
        assert partition.cursor.committed == before
        it.cluster.go_on()

        await until(lambda: partition.cursor.committed == before + 1)
        assert values_in(host) == [b"1"]


# Recurrences


@asynccontextmanager
async def unwritten(tmp_path) -> AsyncIterator[tuple[FakeCluster, Node, Node]]:
    """Run two nodes; the lead of all moved to `b` when the occurrence of a recurrence was scheduled
    and not written down."""
    async with nodes(tmp_path) as (cluster, a, b):
        await a.topics.create("t", TopicSettings())
        await cluster.settled()  # else `b` may have no copy yet that could lead
        b.recurrences.settle = turns  # type: ignore[method-assign]  # when the test says so
        write_down = a.recurrences._write_down

        async def moved(changed: Mapping[str, object]) -> object:
            cluster.move("b")
            await leads_with_timers(b)
            return await write_down(changed)  # type: ignore[arg-type]

        a.recurrences._write_down = moved  # type: ignore[method-assign, assignment]
        await a.recurrences.put(DAILY)
        assert b.recurrences._records["daily"].last_scheduled is None
        assert len(b.topics.get("t").partition(0).scheduler) == 1
        yield cluster, a, b
        await cluster.settled()


async def test_the_next_leader_of_the_records_schedules_no_occurrence_twice(tmp_path):
    async with unwritten(tmp_path) as (_, _, b):
        await Recurrences.settle(b.recurrences)

        assert b.recurrences._records["daily"].last_scheduled is not None
        assert len(b.topics.get("t").partition(0).scheduler) == 1


async def test_what_was_scheduled_and_not_written_down_goes_with_its_recurrence(tmp_path):
    async with unwritten(tmp_path) as (_, _, b):
        assert await b.recurrences.delete("daily")

        assert len(b.topics.get("t").partition(0).scheduler) == 0


async def test_what_was_scheduled_and_not_written_down_is_replaced(tmp_path):
    async with unwritten(tmp_path) as (_, _, b):
        await b.recurrences.put(msgspec.structs.replace(DAILY, is_paused=True))

        assert len(b.topics.get("t").partition(0).scheduler) == 0


async def test_a_delete_says_if_nobody_can_tell_what_was_scheduled(tmp_path):
    async with unwritten(tmp_path) as (cluster, _, b):
        host = b.topics.get("t").partition(0)
        host.step_down("nobody leads")

        with pytest.raises(NotLeader):
            await b.recurrences.delete("daily")
        assert [each.name for each in b.recurrences.list()] == ["daily"]
        cluster.lead(bytes.fromhex(b.topics.get("t").log_id(0)), "b")
        await until(lambda: has_timers(host))
        assert await b.recurrences.delete("daily")
        assert len(host.scheduler) == 0


class Leader:
    """Asks a node to cancel what is pending where it leads."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def cancel(self, host: PartitionHost, named: Named) -> int:
        return await self._node.pending.cancel_at(host.topic, named)


async def test_a_recurrence_takes_along_what_lies_where_another_node_leads(tmp_path):
    async with nodes(tmp_path) as (cluster, a, b):
        await a.recurrences.put(DAILY)
        await cluster.settled()
        cluster.lead(bytes.fromhex(a.topics.get("t").log_id(0)), "b")
        host = b.topics.get("t").partition(0)
        await until(lambda: has_timers(host))

        with pytest.raises(NotLeader, match="b leads it"):
            await a.recurrences.delete("daily")
        assert len(host.scheduler) == 1
        a.pending.elsewhere = Leader(b)
        await a.recurrences.settle()

        assert len(host.scheduler) == 0
        assert a.metadata.items("recurrence/") == []
