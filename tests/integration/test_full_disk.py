"""A node on a full disk refuses what it cannot keep, loses nothing, and goes on by itself."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from grpc import StatusCode
from grpc.aio import AioRpcError

from tests.integration.consumer import Consumer
from tests.integration.link import Link
from tests.integration.node_process import NodeProcess
from tests.integration.small_disk import MOUNT, SmallDisk
from tests.integration.stint import now_ms
from tests.kit.verdict import Findings
from tests.server.http_client import raw_client
from waterclock.v1 import admin_pb2 as ap
from waterclock.v1 import broker_pb2 as pb
from waterclock.v1 import scheduler_pb2 as sp

SETTINGS: dict[str, dict[str, Any]] = {
    "log": {"segment_bytes": 1 << 20, "preallocate_bytes": 64 << 10},
    "schedule": {"checkpoint_ms": 1_000},
    "delivery": {"ack_timeout_ms": 2_000, "retry_delay_ms": 100},
}
TOPIC = "work"
DUE_MS = 1_500


class FilledNode:
    """The node, and what was asked of it."""

    def __init__(self, node: NodeProcess, disk: SmallDisk) -> None:
        self.node = node
        self.disk = disk
        self.link = Link(Findings())
        self.acknowledged: set[bytes] = set()

    async def start(self) -> None:
        await self.node.start()
        await self.link.open(self.node.address)

    async def kill(self) -> None:
        await self.link.close()
        await self.node.kill()

    async def publish(self, name: str, *, size: int = 100, due_ms: int | None = None) -> bool:
        """Publish one message; tell whether the disk had room for it."""
        message = pb.Message(message_id=name.encode(), value=bytes(size), due_ms=due_ms)
        try:
            await self.link.broker.Publish(pb.PublishRequest(topic=TOPIC, message=message))
        except AioRpcError as error:
            assert_full(error)
            return False
        self.acknowledged.add(name.encode())
        return True

    async def ready(self) -> tuple[int, list[str]]:
        """Ask whether it is; return the status and the names of its problems."""
        async with raw_client(self.node.http_port) as client:
            answer = await client.get("/health/ready")
        return answer.status, [problem["name"] for problem in answer.json()["problems"]]

    async def fill(self) -> None:
        """Leave no room for anything, the log's own reserve included."""
        self.disk.fill()
        number = 0
        while await self.publish(f"last-{number}", size=20_000):
            number += 1
        # Smaller ones still fit behind those, until the log's last block is used up.
        while await self.publish(f"least-{number}"):
            number += 1


def assert_full(error: AioRpcError) -> None:
    """Fail unless a call was refused for want of space."""
    assert error.code() is StatusCode.RESOURCE_EXHAUSTED, error
    facts = dict(error.trailing_metadata())
    assert facts["waterclock-error"] == "StorageFull", error


@asynccontextmanager
async def filled_node(folder: Path) -> AsyncIterator[tuple[FilledNode, asyncio.TaskGroup]]:
    with SmallDisk(16) as disk:
        node = NodeProcess(folder, SETTINGS, prefix=disk.prefix, data_folder=f"{MOUNT}/data")
        it = FilledNode(node, disk)
        try:
            await it.start()
            async with asyncio.timeout(100), asyncio.TaskGroup() as tasks:
                yield it, tasks
            assert node.bugs() == [], node.last_words(40)
        finally:
            await it.kill()


async def with_work(it: FilledNode, tasks: asyncio.TaskGroup) -> Consumer:
    """Have messages consumed, others waiting, and some due soon."""
    for number in range(50):
        assert await it.publish(f"before-{number}")
    due_ms = now_ms() + DUE_MS
    for number in range(50):
        assert await it.publish(f"later-{number}", due_ms=due_ms + number)
    consumer = Consumer(it.link.broker, TOPIC)
    await consumer.open(tasks)
    await consumer.until({f"before-{n}".encode() for n in range(50)})
    return consumer


async def test_a_full_disk_refuses_publishes_and_nothing_is_lost_once_there_is_space(tmp_path):
    async with filled_node(tmp_path) as (it, tasks):
        consumer = await with_work(it, tasks)

        await it.fill()
        fetched = await it.link.broker.Fetch(pb.FetchRequest(topic=TOPIC))
        assert fetched.frames
        await asyncio.sleep(DUE_MS / 1_000 + 1.5)
        assert it.node.is_running
        pending = await it.link.scheduler.CountScheduled(sp.CountScheduledRequest())
        assert pending.total + len(consumer.got) >= 100
        assert not await it.publish("refused", size=20_000)
        assert await it.ready() == (503, ["diskFull"])

        it.disk.free()
        # It finds the room by itself: who is told that it is not ready sends nothing.
        while await it.ready() != (200, []):
            assert it.node.is_running
        assert await it.publish("after")
        await consumer.until(it.acknowledged)
        assert sorted(consumer.ids) == sorted(set(consumer.ids)), "came twice"
        assert b"refused" not in consumer.ids
        later = [got for got in consumer.got if got.message_id.startswith(b"later")]
        assert [got.due_ms for got in later] == sorted(got.due_ms for got in later)
        await consumer.close()


async def test_a_node_killed_on_a_full_disk_starts_there_again_and_loses_nothing(tmp_path):
    async with filled_node(tmp_path) as (it, tasks):
        consumer = await with_work(it, tasks)
        await it.fill()
        await consumer.close()
        await it.kill()

        await it.start()
        assert not await it.publish("refused", size=20_000)
        fetched = await it.link.broker.Fetch(pb.FetchRequest(topic=TOPIC))
        assert fetched.frames

        it.disk.free()
        seen = set(consumer.ids)
        consumer = Consumer(it.link.broker, TOPIC)
        await consumer.open(tasks)
        await consumer.until(it.acknowledged - seen)
        assert await it.publish("after")
        await consumer.until({b"after"})
        await consumer.close()


async def test_whoever_must_write_on_a_full_disk_is_told_so_and_can_free_it(tmp_path):
    async with filled_node(tmp_path) as (it, tasks):
        consumer = await with_work(it, tasks)
        broker, admin, scheduler = it.link.broker, it.link.admin, it.link.scheduler
        await admin.CreateTopic(ap.CreateTopicRequest(topic="spare"))
        await it.fill()
        await it.publish("never", size=20_000, due_ms=now_ms() + 60_000)
        begun = time.monotonic()

        refused = 0
        for work in (
            lambda: admin.CreateTopic(ap.CreateTopicRequest(topic="more")),
            lambda: scheduler.CancelWhere(sp.CancelWhereRequest(topic=TOPIC, all=True)),
            lambda: admin.UpdateTopic(
                ap.UpdateTopicRequest(topic=TOPIC, settings=ap.TopicSettings(partitions=4))
            ),
            lambda: scheduler.PutRecurrence(
                sp.PutRecurrenceRequest(
                    recurrence=sp.Recurrence(name="r", topic=TOPIC, every_ms=1_000)
                )
            ),
            lambda: admin.DeleteTopic(ap.DeleteTopicRequest(topic="spare")),
        ):
            try:
                await work()
            except AioRpcError as error:
                assert_full(error)
                refused += 1
        assert refused
        assert time.monotonic() - begun < 30
        assert it.node.is_running, it.node.last_words()

        it.disk.free()
        assert await it.publish("after")
        await consumer.until({b"after"})
        topics = await admin.ListTopics(ap.ListTopicsRequest())
        if "spare" in [topic.topic for topic in topics.topics]:
            await admin.DeleteTopic(ap.DeleteTopicRequest(topic="spare"))
        await admin.CreateTopic(ap.CreateTopicRequest(topic="more", if_absent=True))
        assert len((await broker.Fetch(pb.FetchRequest(topic="more"))).frames) == 0
        await consumer.close()


async def test_a_recurrence_deleted_on_a_full_disk_does_not_come_once_there_is_space(tmp_path):
    async with filled_node(tmp_path) as (it, tasks):
        consumer = await with_work(it, tasks)
        scheduler = it.link.scheduler
        recurrence = sp.Recurrence(name="tick", topic=TOPIC, every_ms=3_000)
        await scheduler.PutRecurrence(sp.PutRecurrenceRequest(recurrence=recurrence))
        await it.fill()
        is_deleted = True
        try:
            await scheduler.DeleteRecurrence(sp.DeleteRecurrenceRequest(name="tick"))
        except AioRpcError as error:
            assert_full(error)
            is_deleted = False
        it.disk.free()
        assert await it.publish("after", due_ms=now_ms() + 3_300)
        await consumer.until({b"after"})
        came = any(id_.startswith(b"tick") for id_ in consumer.ids)
        await consumer.close()
        assert not (is_deleted and came)


async def test_a_node_that_is_stopped_on_a_full_disk_ends_well(tmp_path):
    async with filled_node(tmp_path) as (it, tasks):
        consumer = await with_work(it, tasks)
        await it.fill()
        await consumer.close()
        it.node.terminate()
        assert await it.node.ended() == 0, it.node.last_words()

        it.disk.free()
        await it.start()
        seen = set(consumer.ids)
        consumer = Consumer(it.link.broker, TOPIC)
        await consumer.open(tasks)
        await consumer.until(it.acknowledged - seen)
        await consumer.close()
