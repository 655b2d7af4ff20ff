"""Random requests of HTTP consumers: nothing lost, nothing delivered twice, no limit passed."""

from random import Random
from typing import Any

import pytest

from tests.server.http_client import RawClient, raw_client, until
from tests.server.served import Served, running_server
from tests.server.test_rest_messages import PATH, polled
from waterclock.model.sections import DeliveryConfig, TopicsConfig

STEPS = 60
ACKS = "/topics/orders/acks"


class StreamingCall:
    """Publishes, polls, answers and goes away, and checks what must hold."""

    def __init__(self, it: Served, client: RawClient, random: Random) -> None:
        self.it = it
        self.client = client
        self.random = random
        self.published = 0
        self.held: dict[tuple[int, int], tuple[str, str]] = {}
        """By place: consumer and lease."""
        self.done: set[str] = set()

    async def publish(self) -> None:
        count = self.random.randint(1, 8)
        messages = [{"value": str(self.published + i), "key": str(i)} for i in range(count)]
        self.published += count
        assert (await self.client.post(PATH, {"messages": messages})).status == 201

    async def poll(self, consumer: str, limit: int) -> int:
        answer = await self.client.get(
            f"{PATH}?group=g&consumer={consumer}&limit={limit}&wait=100ms"
        )
        messages: list[Any] = answer.json()["messages"]
        assert len(messages) <= limit
        for message in messages:
            place = message["partition"], message["offset"]
            assert place not in self.held
            assert message["value"] not in self.done
            self.held[place] = consumer, message["lease"]
        return len(messages)

    async def answer(self, kind: str) -> None:
        if not self.held:
            return
        consumer = self.random.choice(sorted({owner for owner, _ in self.held.values()}))
        mine = [place for place, (owner, _) in self.held.items() if owner == consumer]
        some = self.random.sample(mine, self.random.randint(1, len(mine)))
        leases = [self.held.pop(place)[1] for place in some]
        response = await self.client.post(ACKS, {"group": "g", "consumer": consumer, kind: leases})
        assert response.json() == {"accepted": len(leases), "refused": []}
        again = await self.client.post(ACKS, {"group": "g", "consumer": consumer, "ack": leases})
        assert again.status == 409

    def left(self) -> int:
        """Return how many messages are not done."""
        return sum(place.lag for place in self.it.node.groups.get("orders", "g").partitions)

    async def go_away(self) -> None:
        """Go while waiting; not while there is something, for an answer sent is an answer sent."""
        if self.left() > len(self.held):
            return
        async with raw_client(self.it.server.http_port) as gone:
            gone.send(f"GET {PATH}?group=g&consumer=a HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            await until(lambda: len(self.it.server._http.connections) > 1)
            gone.writer.transport.abort()
        await until(lambda: len(self.it.server._http.connections) == 1)

    async def step(self) -> None:
        match self.random.randrange(6):
            case 0:
                await self.publish()
            case 1 | 2:
                consumer = self.random.choice("ab") if self.random.random() < 0.2 else "a"
                await self.poll(consumer, self.random.randint(1, 5))
            case 3:
                await self.answer("ack")
            case 4:
                await self.answer(self.random.choice(["nack", "giveBack"]))
            case _:
                await self.go_away()

    async def finish(self) -> None:
        """Take and ack everything that is left."""
        while self.left():
            for consumer in "ab":
                await self.poll(consumer, 100)
            while self.held:
                await self.answer("ack")


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_is_said_everything_is_done_once(tmp_path, seed):
    # Failures come again at once, and often: nothing may end as a dead letter here.
    delivery = DeliveryConfig(retry_delay_ms=100, retry_jitter_percent=0, max_retries=10)
    async with (
        running_server(tmp_path, delivery=delivery, topics=TopicsConfig(partitions=2)) as it,
        raw_client(it.server.http_port) as client,
    ):
        streaming_call = StreamingCall(it, client, Random(seed))
        await streaming_call.publish()
        await streaming_call.poll("a", 1)
        for _ in range(STEPS):
            await streaming_call.step()
        await streaming_call.finish()

        for member in polled(it):
            assert member.session.credit.held_messages == 0
            assert not member._attempts
            assert not member._over
