"""A slow disk holds up who must wait for it and nobody else; one that fails ends the node."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from grpc import StatusCode
from grpc.aio import AioRpcError

from tests.integration.consumer import Consumer
from tests.integration.link import Link
from tests.integration.node_process import NodeProcess
from tests.integration.stint import now_ms
from tests.kit.node import HOST
from tests.kit.verdict import Findings
from waterclock.v1 import admin_pb2 as ap
from waterclock.v1 import broker_pb2 as pb
from waterclock.v1 import scheduler_pb2 as sp

TOPIC = "work"
SETTINGS: dict[str, dict[str, Any]] = {
    "log": {"preallocate_bytes": 64 << 10},
    "schedule": {"checkpoint_ms": 1_000},
}
HEALTH = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


class Troubled:
    """A node on a disk that does as it is told."""

    def __init__(self, folder: Path, *, is_kernels: bool) -> None:
        self._file = folder / "trouble"
        self.node = NodeProcess(
            folder, SETTINGS, trouble_file=str(self._file), is_kernels=is_kernels
        )
        self.link = Link(Findings())

    def hold(self) -> None:
        """Let no fsync end."""
        self._file.write_text("wait")

    def break_(self) -> None:
        """Let every fsync fail."""
        other = self._file.with_suffix(".new")
        other.write_text("fail")
        os.replace(other, self._file)

    def mend(self) -> None:
        """Let all go well."""
        self._file.unlink()

    async def start(self) -> None:
        await self.node.start()
        await self.link.open(self.node.address)

    async def publish(self, name: str, due_ms: int | None = None) -> None:
        message = pb.Message(message_id=name.encode(), value=b"v", due_ms=due_ms)
        await self.link.broker.Publish(pb.PublishRequest(topic=TOPIC, message=message))

    async def is_alive(self) -> bool:
        """Ask over HTTP."""
        reader, writer = await asyncio.open_connection(HOST, self.node.http_port)
        writer.write(HEALTH)
        answer = await reader.read()
        writer.close()
        return answer.startswith(b"HTTP/1.1 200")


@asynccontextmanager
async def troubled(
    folder: Path, *, is_kernels: bool
) -> AsyncIterator[tuple[Troubled, asyncio.TaskGroup]]:
    it = Troubled(folder, is_kernels=is_kernels)
    try:
        await it.start()
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            yield it, tasks
    finally:
        await it.link.close()
        await it.node.kill()


by_threads_or_by_the_kernel = pytest.mark.parametrize("is_kernels", [False, True])


@by_threads_or_by_the_kernel
async def test_while_an_fsync_hangs_everything_else_goes_on(tmp_path, is_kernels):
    async with troubled(tmp_path, is_kernels=is_kernels) as (it, tasks):
        await it.publish("before")
        consumer = Consumer(it.link.broker, TOPIC)
        await consumer.open(tasks)
        await consumer.until({b"before"})

        it.hold()
        waiting = [tasks.create_task(it.publish(f"held-{n}")) for n in range(20)]
        later = tasks.create_task(it.publish("later", due_ms=now_ms() + 200))
        for _ in range(50):
            assert await it.is_alive()
            await it.link.admin.GetNode(ap.GetNodeRequest())
            await it.link.broker.Fetch(pb.FetchRequest(topic=TOPIC))
            await it.link.scheduler.CountScheduled(sp.CountScheduledRequest())
        # Nobody is told, or shown, what is not durable.
        assert not any(task.done() for task in [*waiting, later])
        assert consumer.ids == [b"before"]

        it.mend()
        await asyncio.gather(*waiting, later)
        await consumer.until({b"later", *(b"held-%d" % n for n in range(20))})
        assert sorted(consumer.ids) == sorted(set(consumer.ids))
        await consumer.close()
    assert it.node.bugs() == []


@by_threads_or_by_the_kernel
async def test_a_node_whose_fsync_fails_ends_and_loses_nothing_it_acknowledged(
    tmp_path, is_kernels
):
    async with troubled(tmp_path, is_kernels=is_kernels) as (it, tasks):
        for number in range(30):
            await it.publish(f"kept-{number}", due_ms=now_ms() + 500 if number % 2 else None)

        it.break_()
        with pytest.raises(AioRpcError) as refused:
            await it.publish("unsure")
        assert refused.value.code() is StatusCode.UNAVAILABLE, refused.value
        assert await it.node.ended() != 0
        await it.link.close()

        it.mend()
        await it.start()
        consumer = Consumer(it.link.broker, TOPIC)
        await consumer.open(tasks)
        await consumer.until({b"kept-%d" % n for n in range(30)})
        await it.publish("after")
        await consumer.until({b"after"})
        assert sorted(consumer.ids) == sorted(set(consumer.ids))
        await consumer.close()
