"""One member of one group, for tests that look at every message: it acks what it gets, or holds."""

import asyncio
from typing import Any, NamedTuple

from grpc.aio import EOF

from tests.integration.members import offsets_of, rows_of
from tests.integration.stint import now_ms
from waterclock.v1 import broker_pb2 as pb

BEAT_S = 0.3


class Got(NamedTuple):
    """A message as it came."""

    message_id: bytes
    offset: int
    due_ms: int
    attempt: int
    received_ms: int


class Consumer:
    """Reads in the background from `start` on."""

    def __init__(self, broker: Any, topic: str, group: str = "g") -> None:
        self.got: list[Got] = []
        self.is_acking = True
        self._call = broker.Subscribe()
        self._opening = pb.SubscribeRequest.Open(topic=topic, group=group)
        self._arrived = asyncio.Event()
        self._writing = asyncio.Lock()

    @property
    def ids(self) -> list[bytes]:
        """What came, in the order in which it came."""
        return [got.message_id for got in self.got]

    async def open(self, tasks: asyncio.TaskGroup) -> None:
        """Join, and begin to read."""
        await self._call.write(pb.SubscribeRequest(open=self._opening))
        event = await self._call.read()
        assert event is not EOF, await self._call.details()
        assert event.HasField("opened"), event
        self._tasks = [tasks.create_task(self._listen()), tasks.create_task(self._beat())]

    async def _listen(self) -> None:
        while True:
            event = await self._call.read()
            if event is EOF:
                return
            if event.HasField("delivery"):
                await self._take(event.delivery)

    async def _take(self, delivery: pb.Delivery) -> None:
        time_ms = now_ms()
        for offset, (id_, _, due_ms) in zip(
            offsets_of(delivery.bounds), rows_of(delivery.messages), strict=True
        ):
            self.got.append(Got(id_, offset, due_ms or 0, delivery.attempt, time_ms))
        self._arrived.set()
        if self.is_acking:
            await self._ack(delivery.partition, delivery.generation, list(delivery.bounds))
        self._delivery = delivery

    async def ack(self, offset: int) -> None:
        """Ack one message of the partition that came last."""
        delivery = self._delivery
        await self._ack(delivery.partition, delivery.generation, [offset, offset + 1])

    async def _ack(self, partition: int, generation: int, bounds: list[int]) -> None:
        answer = pb.Answer(partition=partition, generation=generation, bounds=bounds)
        await self._write(pb.SubscribeRequest(answers=[answer]))

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            await self._write(pb.SubscribeRequest())

    async def _write(self, request: pb.SubscribeRequest) -> None:
        async with self._writing:
            await self._call.write(request)

    async def until(self, ids: set[bytes], seconds: float = 30) -> None:
        """Wait until all of these have come."""
        try:
            async with asyncio.timeout(seconds):
                while not ids <= set(self.ids):
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            missing = sorted(ids - set(self.ids))
            raise AssertionError(f"{len(missing)} did not come: {missing[:10]}") from None

    async def count(self, messages: int) -> None:
        """Wait until so many have come, repeats included."""
        while len(self.got) < messages:
            self._arrived.clear()
            await self._arrived.wait()

    async def close(self) -> None:
        """Leave."""
        for task in self._tasks:
            task.cancel()
        self._call.cancel()
