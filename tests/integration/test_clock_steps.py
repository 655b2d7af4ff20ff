"""A node whose clock is set while it runs: nothing early, everything in order, nobody forgotten."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.integration.consumer import Consumer
from tests.integration.link import Link
from tests.integration.node_process import NodeProcess
from tests.integration.stint import now_ms
from tests.kit.verdict import Findings
from waterclock.log.schema import encode, from_messages
from waterclock.model.ids import Millis
from waterclock.model.message import Message
from waterclock.v1 import admin_pb2 as ap
from waterclock.v1 import broker_pb2 as pb
from waterclock.v1 import scheduler_pb2 as sp

HOUR_MS = 3_600_000
TOPIC = "work"
SETTINGS: dict[str, dict[str, Any]] = {
    "log": {"preallocate_bytes": 64 << 10},
    "schedule": {"tick_ms": 50, "checkpoint_ms": 1_000},
    "delivery": {"ack_timeout_ms": 2_000, "retry_delay_ms": 100, "retry_delay_ms_max": 200},
    "groups": {"session_timeout_ms": 3_000},
}


class Stepped:
    """A node with a clock to be set."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self.step_to(0)
        self.node = NodeProcess(folder, SETTINGS, clock_file=str(self._file))
        self.link = Link(Findings())

    def step_to(self, ahead_ms: int) -> None:
        """Set the node's clock to so much ahead of this computer's."""
        self.ahead_ms = ahead_ms
        # In place: the node has the file mapped.
        with open(self._file, "r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("<q", ahead_ms))

    def now_ms(self) -> int:
        """Return the time of the node."""
        return now_ms() + self.ahead_ms

    async def start(self) -> None:
        await self.node.start()
        await self.link.open(self.node.address)

    async def kill(self) -> None:
        await self.link.close()
        await self.node.kill()

    async def publish(self, name: str, due_ms: int | None = None) -> None:
        message = pb.Message(message_id=name.encode(), value=b"v", due_ms=due_ms)
        await self.link.broker.Publish(pb.PublishRequest(topic=TOPIC, message=message))

    async def pending(self) -> int:
        counted = await self.link.scheduler.CountScheduled(sp.CountScheduledRequest())
        return int(counted.total)

    async def pass_ms(self, consumer: Consumer, milliseconds: int) -> None:
        """Wait until a message has come that is due so much later by the node's clock."""
        await self.publish("tick", due_ms=self.now_ms() + milliseconds)
        await consumer.until({b"tick"})


@asynccontextmanager
async def stepped(folder: Path) -> AsyncIterator[tuple[Stepped, asyncio.TaskGroup]]:
    it = Stepped(folder)
    try:
        await it.start()
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            yield it, tasks
        assert it.node.bugs() == [], it.node.last_words(40)
    finally:
        await it.kill()


async def test_nothing_fires_early_when_the_clock_is_set_back(tmp_path):
    async with stepped(tmp_path) as (it, tasks):
        consumer = Consumer(it.link.broker, TOPIC)
        await consumer.open(tasks)
        await it.publish("later", due_ms=it.now_ms() + 500)

        it.step_to(-HOUR_MS)
        await it.publish("now")
        await consumer.until({b"now"})
        await it.pass_ms(consumer, 600)
        assert await it.pending() == 1
        assert consumer.ids == [b"now", b"tick"]

        it.step_to(0)
        await consumer.until({b"later"})
        await consumer.close()


async def test_what_a_step_forward_makes_due_fires_at_once_and_in_order(tmp_path):
    async with stepped(tmp_path) as (it, tasks):
        rng = Random(17)
        first = it.now_ms()
        dues = [first + rng.randrange(60_000, HOUR_MS) for _ in range(300)]
        for number, due_ms in enumerate(dues):
            await it.publish(f"m-{number}", due_ms=due_ms)
        await it.publish("much-later", due_ms=first + 3 * HOUR_MS)
        consumer = Consumer(it.link.broker, TOPIC)
        await consumer.open(tasks)
        await it.pass_ms(consumer, 100)
        assert consumer.ids == [b"tick"]

        it.step_to(2 * HOUR_MS)
        expected = [f"m-{n}".encode() for n in sorted(range(300), key=lambda n: (dues[n], n))]
        await consumer.until(set(expected))
        assert list(dict.fromkeys(consumer.ids)) == [b"tick", *expected]
        assert await it.pending() == 1
        await consumer.close()


async def test_a_node_restarted_with_its_clock_back_fires_nothing_early(tmp_path):
    async with stepped(tmp_path) as (it, tasks):
        await it.publish("later", due_ms=it.now_ms() + 500)
        it.step_to(-HOUR_MS)  # before it is killed, which may take until it is due
        await it.kill()
        await it.start()
        consumer = Consumer(it.link.broker, TOPIC)
        await consumer.open(tasks)
        await it.publish("now")
        await consumer.until({b"now"})
        await it.pass_ms(consumer, 600)
        assert await it.pending() == 1
        assert consumer.ids == [b"now", b"tick"]

        it.step_to(HOUR_MS)
        await consumer.until({b"later"})
        await consumer.close()


async def test_what_came_due_while_the_node_was_dead_fires_in_order_once(tmp_path):
    async with stepped(tmp_path) as (it, tasks):
        rng = Random(18)
        dues = [it.now_ms() + rng.randrange(60_000, HOUR_MS) for _ in range(3_000)]
        made = [
            Message(b"v", message_id=b"m-%d" % number, due_ms=Millis(due_ms))
            for number, due_ms in enumerate(dues)
        ]
        arrow = bytes(encode(from_messages(made)))
        await it.link.broker.PublishBatch(pb.PublishBatchRequest(topic=TOPIC, arrow=arrow))
        await it.kill()
        it.step_to(2 * HOUR_MS)
        await it.start()

        consumer = Consumer(it.link.broker, TOPIC)
        await consumer.open(tasks)
        expected = [b"m-%d" % n for n in sorted(range(3_000), key=lambda n: (dues[n], n))]
        await consumer.until(set(expected))
        assert consumer.ids == expected
        await consumer.close()


@pytest.mark.parametrize("ahead_ms", [-HOUR_MS, HOUR_MS])
async def test_a_member_that_beats_is_served_on_after_a_step(tmp_path, ahead_ms):
    async with stepped(tmp_path) as (it, tasks):
        consumer = Consumer(it.link.broker, TOPIC)
        await consumer.open(tasks)
        await it.publish("before")
        await consumer.until({b"before"})

        it.step_to(ahead_ms)
        await it.pass_ms(consumer, 1_600)
        await it.publish("after")
        await consumer.until({b"after"}, seconds=10)
        group = await it.link.admin.GetGroup(ap.GetGroupRequest(topic=TOPIC, group="g"))
        assert len(group.members) == 1
        await consumer.close()


@pytest.mark.parametrize("ahead_ms", [-HOUR_MS, HOUR_MS])
async def test_what_a_member_never_answers_comes_again_after_a_step(tmp_path, ahead_ms):
    async with stepped(tmp_path) as (it, tasks):
        consumer = Consumer(it.link.broker, TOPIC)
        consumer.is_acking = False
        await consumer.open(tasks)
        await it.publish("held")
        await consumer.until({b"held"})

        it.step_to(ahead_ms)
        async with asyncio.timeout(10):
            await consumer.count(2)
        assert consumer.ids == [b"held", b"held"]
        await consumer.close()
