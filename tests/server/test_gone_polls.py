"""Polls whose clients go: while their consumer joins its group, and while messages are on their
way to them."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.cluster.through import through
from tests.server.http_client import RawClient, raw_client, until
from tests.server.served import Served, running_server
from tests.server.test_rest_messages import PATH, consumers_of, polled, taken, values
from waterclock.node.groups.session import QueuedDelivery


class HeldJoins:
    """Holds every join of a group until it is let go; what is there goes to the real node."""

    def __init__(self, it: Served) -> None:
        self.held = 0
        self.are_let = asyncio.Event()
        self._open = it.node.groups.open_session
        it.node.groups.open_session = self  # type: ignore[method-assign]

    async def __call__(self, *args: Any, **options: Any) -> Any:
        self.held += 1
        await self.are_let.wait()
        return await self._open(*args, **options)


class HeldFlushes:
    """Holds whoever waits for records to be flushed until they are let go."""

    def __init__(self, it: Served) -> None:
        self.held = 0
        self.are_let = asyncio.Event()
        self._wait = it.node.metadata.wait_flushed
        it.node.metadata.wait_flushed = self

    async def __call__(self, ticket: Any) -> None:
        self.held += 1
        await self.are_let.wait()
        await self._wait(ticket)


def ask(client: RawClient, consumer: str) -> None:
    request = f"GET {PATH}?group=g&consumer={consumer} HTTP/1.1\r\nHost: localhost\r\n\r\n"
    client.send(request.encode())


async def go(it: Served, client: RawClient) -> None:
    """Have a client go, and its node see that."""
    connections = it.server._http.connections
    before = len(connections)
    client.writer.transport.abort()
    await until(lambda: len(connections) < before)


def members(it: Served) -> tuple[str, ...]:
    return it.node.groups.get("orders", "g").members


@pytest.mark.parametrize("asked", [running_server, through], ids=["itself", "another node"])
async def test_nobody_joins_for_a_poll_whose_client_went_meanwhile(tmp_path, asked):
    async with asked(tmp_path) as it, AsyncExitStack() as stack:
        client, gone, other = [
            await stack.enter_async_context(raw_client(it.server.http_port)) for _ in range(3)
        ]
        await client.post(PATH, {"value": "kept"})
        joins = HeldJoins(it)
        ask(gone, "gone")
        await until(lambda: joins.held == 1)
        await go(it, gone)
        ask(other, "other")
        await until(lambda: joins.held == 2)  # behind the word that the first one went
        joins.are_let.set()

        assert values((await other.answer()).json()["messages"]) == ["kept"]
        assert members(it) == ("other",)


async def test_a_group_that_was_made_for_a_poll_stays_though_its_client_went(tmp_path):
    async with running_server(tmp_path) as it, AsyncExitStack() as stack:
        client, gone, other = [
            await stack.enter_async_context(raw_client(it.server.http_port)) for _ in range(3)
        ]
        await it.node.topics.ensure("orders")
        flushes = HeldFlushes(it)
        ask(gone, "gone")
        await until(lambda: flushes.held == 1)
        ask(other, "other")
        await until(lambda: len(openings(it)) + len(polled(it)) == 2)
        await go(it, gone)
        flushes.are_let.set()
        await until(lambda: members(it) == ("other",))

        await client.post(PATH, {"value": "kept"})
        assert values((await other.answer()).json()["messages"]) == ["kept"]


async def test_a_consumer_joins_as_long_as_one_of_its_polls_is_there(tmp_path):
    async with running_server(tmp_path) as it, AsyncExitStack() as stack:
        client, gone, other = [
            await stack.enter_async_context(raw_client(it.server.http_port)) for _ in range(3)
        ]
        await client.post(PATH, {"value": "kept"})
        joins = HeldJoins(it)
        ask(gone, "same")
        await until(lambda: joins.held == 1)
        ask(other, "same")
        await until(lambda: any(o.waiting == 2 for o in openings(it)))
        await go(it, gone)
        joins.are_let.set()

        assert values((await other.answer()).json()["messages"]) == ["kept"]
        assert (members(it), joins.held) == (("same",), 1)


def openings(it: Served) -> list[Any]:
    return list(consumers_of(it)._opening.values())


async def test_what_was_queued_for_a_poll_whose_client_went_is_for_others(tmp_path, monkeypatch):
    is_here = False
    monkeypatch.setattr(QueuedDelivery, "is_readable", property(lambda self: is_here))
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        await client.post(PATH, {"value": "kept"})
        async with raw_client(it.server.http_port) as gone:
            ask(gone, "gone")
            # It is on its way here from the node that has it.
            await until(lambda: any(each.session.unsent_messages for each in polled(it)))
            [consumer] = polled(it)
            await go(it, gone)

        assert not consumer.is_in_use
        is_here = True
        assert values(await taken(client, consumer="gone", limit=1)) == ["kept"]
