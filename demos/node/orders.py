"""Orders that publishers and a consumer are at while nodes are killed, as the outside sees them.

Publishers go on as if nothing had happened: the client sends again what was not answered, under the
same ids. Whatever a publisher was told is durable must come to the consumer, and nothing may come
before its time.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from demos.node.steps import Crashed
from waterclock.cli.output.messages import millis_of
from waterclock.client.client import Client
from waterclock.client.consumer.subscription import Subscription
from waterclock.model.errors import WaterclockError
from waterclock.model.ids import Millis
from waterclock.model.message import Message

TOPIC = "orders"
GROUP = "kitchen"
PUBLISHERS = 4
BATCH = 50
LATER_EVERY = 5
"""One batch in so many is for later."""
LATER_MS = 1_500
BEFORE = 5_000
"""Acknowledgements that are heard before a node is harmed."""
AFTER = 5_000
PATIENCE_S = 30.0

_DRINKS = (b"espresso", b"flat white", b"green tea", b"lemonade")


class Orders:
    """What was published and what came, as the outside sees it."""

    def __init__(self) -> None:
        self.acknowledged: dict[bytes, float] = {}
        """By id, when the node said so."""
        self.later: set[bytes] = set()
        self.came: dict[bytes, int] = {}
        """By id, how often."""
        self.early = 0
        self.refused = 0
        """Publishes that failed for good, which a kill is no reason for."""
        self.is_closing = False
        self._next = 0
        self._progress = asyncio.Event()

    def batch(self) -> list[Message]:
        """Make the next batch of orders."""
        first, self._next = self._next, self._next + BATCH
        is_later = first // BATCH % LATER_EVERY == 0
        due_ms = time.time_ns() // 1_000_000 + LATER_MS if is_later else None
        return [
            Message(
                b"%d %s" % (1 + number % 3, _DRINKS[number % len(_DRINKS)]),
                key=b"table-%d" % (number % 40),
                message_id=b"order-%d" % number,
                due_ms=None if due_ms is None else Millis(due_ms),
            )
            for number in range(first, first + BATCH)
        ]

    async def publish(self, client: Client) -> None:
        """Publish until told to stop, and note what was acknowledged."""
        while not self.is_closing:
            batch = self.batch()
            try:
                receipts = await client.publish_many(TOPIC, batch)
            except WaterclockError:
                self.refused += len(batch)
                return
            now = time.perf_counter()
            self.acknowledged |= {receipt.message_id: now for receipt in receipts}
            self.later |= {m.message_id for m in batch if m.due_ms is not None and m.message_id}
            self._moved()

    async def consume(self, messages: Subscription) -> None:
        """Take orders for ever, and note which came."""
        async for message in messages:
            now_ms = time.time_ns() / 1_000_000
            self.early += message.due is not None and now_ms < millis_of(message.due)
            self.came[message.id] = self.came.get(message.id, 0) + 1
            message.ack()
            self._moved()

    async def until_acknowledged(self, count: int) -> None:
        """Wait until so many orders were acknowledged."""
        while len(self.acknowledged) < count:
            await self._movement()

    async def until_delivered(self) -> None:
        """Wait until every acknowledged order has come."""
        while not self.acknowledged.keys() <= self.came.keys():
            await self._movement()

    def _moved(self) -> None:
        self._progress.set()

    async def _movement(self) -> None:
        self._progress.clear()
        await self._progress.wait()

    def counted(self, killed_at: float, ready_ms: float) -> Crashed:
        """Return what came of them."""
        times = sorted(self.acknowledged.values())
        before = sum(at < killed_at for at in times)
        return Crashed(
            acknowledged=len(times),
            acknowledged_before=before,
            scheduled=len(self.later),
            delivered=len(self.acknowledged.keys() & self.came.keys()),
            again=sum(times - 1 for times in self.came.values()),
            early=self.early,
            refused=self.refused,
            silence_ms=1_000 * (times[before] - killed_at) if before < len(times) else 0.0,
            ready_ms=ready_ms,
        )


async def work_through(client: Client, harm: Callable[[Orders], Awaitable[None]]) -> Orders:
    """Publish and consume orders, `harm` a node in the middle of it, and go on until all came."""
    orders = Orders()
    async with client.subscribe(TOPIC, group=GROUP) as messages:
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
                consumer = tasks.create_task(orders.consume(messages))
                publishers = [tasks.create_task(orders.publish(client)) for _ in range(PUBLISHERS)]
                await orders.until_acknowledged(BEFORE)
                await harm(orders)
                await orders.until_acknowledged(len(orders.acknowledged) + AFTER)
                orders.is_closing = True
                await asyncio.wait(publishers)
                await orders.until_delivered()
                consumer.cancel()
    return orders
