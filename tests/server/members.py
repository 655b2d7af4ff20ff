"""A member of a group, played by hand over `Subscribe`."""

from contextlib import suppress
from typing import Any

from grpc.aio import EOF, AioRpcError

from tests.server.served import Served
from waterclock.log.schema import MESSAGES, _read
from waterclock.v1 import broker_pb2 as pb

Event = pb.SubscribeResponse


def opening(**fields: Any) -> pb.SubscribeRequest:
    """Return a first request."""
    return pb.SubscribeRequest(open=pb.SubscribeRequest.Open(**fields))


class Member:
    """Says what a test tells it to, and reads events one by one."""

    def __init__(self, it: Served, **opening: Any) -> None:
        self.call = it.broker.Subscribe()
        self._opening = {"topic": "orders", "group": "g", **opening}

    async def open(self, **fields: Any) -> Event.Opened:
        await self.say(open=pb.SubscribeRequest.Open(**self._opening), **fields)
        return (await self.hear("opened")).opened

    async def say(self, **fields: Any) -> None:
        await self.call.write(pb.SubscribeRequest(**fields))

    async def answer(
        self, kind: pb.Answer.Kind.ValueType, delivery: pb.Delivery, **fields: Any
    ) -> None:
        answer = pb.Answer(
            partition=delivery.partition,
            generation=delivery.generation,
            kind=kind,
            **{"bounds": delivery.bounds, **fields},
        )
        await self.say(answers=[answer])

    async def next(self) -> Event:
        event: Any = await self.call.read()
        assert event is not EOF, await self.call.details()
        assert isinstance(event, Event)
        return event

    async def hear(self, what: str) -> Event:
        """Return the next event, which must be of that kind."""
        event = await self.next()
        assert event.WhichOneof("event") == what, event
        return event

    async def delivery(self) -> pb.Delivery:
        """Return the next delivery; words about partitions before it are passed over."""
        while True:
            event = await self.next()
            if event.HasField("delivery"):
                return event.delivery
            assert event.WhichOneof("event") in ("assigned", "revoked", "lost"), event

    async def ended(self) -> tuple[Any, str]:
        """Return how the call ended, passing over what comes before."""
        with suppress(AioRpcError):
            while await self.call.read() is not EOF:
                pass
        return await self.call.code(), await self.call.details()


def values_of(delivery: pb.Delivery) -> list[bytes]:
    """Return the values of a delivery in Arrow."""
    rows = _read(delivery.messages.arrow, MESSAGES)
    return list(rows.column("value").to_pylist())


def headers_of(delivery: pb.Delivery) -> list[dict[str, bytes]]:
    """Return the headers of each message of a delivery in Arrow."""
    rows = _read(delivery.messages.arrow, MESSAGES)
    return [dict(pairs or ()) for pairs in rows.column("headers").to_pylist()]
