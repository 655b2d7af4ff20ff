"""Batches whose messages fall on very many partitions, and a node that is killed amid them."""

import asyncio
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from grpc.aio import AioRpcError

from tests.integration.link import Gone, Link, hearing
from tests.integration.node_process import NodeProcess
from tests.integration.verdict import frames_of
from tests.kit.verdict import Findings
from waterclock.log.schema import decode, encode, from_messages
from waterclock.model.message import Message
from waterclock.v1 import admin_pb2 as ap
from waterclock.v1 import broker_pb2 as pb

TOPIC = "spread"
PARTITIONS = 48
ROWS = 40
PUBLISHERS = 3
KILLS = 2
SETTINGS: dict[str, dict[str, Any]] = {
    "log": {"segment_bytes": 16 << 10, "preallocate_bytes": 4 << 10, "checkpoint_every_bytes": 4096}
}

Place = tuple[int, int]


class Run:
    """Publishers that send each batch until it is answered, and the node that dies under them."""

    def __init__(self, folder: Path) -> None:
        self.node = NodeProcess(folder, SETTINGS)
        self.link = Link(Findings())
        self.rng = Random(11)
        self.stored: dict[bytes, Place] = {}
        self._answered = asyncio.Event()
        self._unanswered: list[list[bytes]] = []
        self._batches = 0

    async def start(self) -> None:
        await self.node.start()
        await self.link.open(self.node.address)

    async def stint(self) -> None:
        """Publish until the node is killed, amid the batch after a few that were answered."""
        async with asyncio.TaskGroup() as tasks:
            publishers = [tasks.create_task(self._publish()) for _ in range(PUBLISHERS)]
            for _ in range(self.rng.randrange(4, 12)):
                self._answered.clear()
                await self._answered.wait()
            await asyncio.sleep(self.rng.uniform(0, 0.01))
            await self.node.kill()
            await asyncio.wait(publishers)
        await self.link.close()

    async def _publish(self) -> None:
        with suppress(AioRpcError, Gone), hearing():
            while True:
                ids = self._unanswered.pop() if self._unanswered else self._next_ids()
                try:
                    await self._send(ids)
                except BaseException:
                    self._unanswered.append(ids)
                    raise

    def _next_ids(self) -> list[bytes]:
        self._batches += 1
        return [b"%d-%d" % (self._batches, row) for row in range(ROWS)]

    async def _send(self, ids: list[bytes]) -> None:
        rows = from_messages([Message(id_ * 20, key=id_, message_id=id_) for id_ in ids])
        request = pb.PublishBatchRequest(topic=TOPIC, arrow=bytes(encode(rows)))
        answer = await self.link.broker.PublishBatch(request)
        places = zip(answer.partitions, answer.offsets, strict=True)
        self.stored.update(zip(ids, places, strict=True))
        self._answered.set()

    async def send_the_rest(self) -> None:
        """Have what nobody answered for stored, once."""
        while self._unanswered:
            await self._send(self._unanswered.pop())

    async def logged(self) -> dict[bytes, list[Place]]:
        """Return where each id is, by the logs themselves."""
        found: dict[bytes, list[Place]] = {}
        for partition in range(PARTITIONS):
            async for frame in frames_of(self.link.broker, TOPIC, partition):
                offset = frame.header.base_offset
                ids = decode(frame.header, frame.body).column("message_id").to_pylist()
                for row, id_ in enumerate(ids):
                    found.setdefault(id_, []).append((partition, offset + row))
        return found


async def test_what_was_answered_for_is_there_after_each_kill_and_nothing_is_there_twice(tmp_path):
    it = Run(tmp_path)
    try:
        await it.start()
        settings = ap.TopicSettings(partitions=PARTITIONS)
        await it.link.admin.CreateTopic(ap.CreateTopicRequest(topic=TOPIC, settings=settings))
        for _ in range(KILLS):
            await it.stint()
            await it.start()
            found = await it.logged()
            assert {id_: [place] for id_, place in it.stored.items()}.items() <= found.items()
        await it.send_the_rest()
        found = await it.logged()
        assert found == {id_: [place] for id_, place in it.stored.items()}
        assert len({partition for partition, _ in it.stored.values()}) == PARTITIONS
        assert it.node.bugs() == [], it.node.last_words(40)
    finally:
        await it.link.close()
        await it.node.kill()
