"""Who is gone is in no group: a client whose link breaks is served nowhere any more."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import grpc
import pytest

from tests.cluster.through import Through, through
from tests.server.http_client import until
from tests.server.members import Member, values_of
from tests.server.served import Served
from waterclock.client.native.channel import NativeChannel
from waterclock.client.native.link import NodeLink, dial
from waterclock.node.node import Node
from waterclock.server.app import Server


def break_link(link: NodeLink) -> None:
    assert isinstance(link._transport, asyncio.Transport)
    link._transport.abort()


def note_joins(node: Node) -> list[str]:
    """Return who joins a group of a node, in order, as it comes."""
    joined: list[str] = []
    open_session = node.groups.open_session

    async def noted(*args: Any, **options: Any) -> Any:
        joined.append(options["member"])
        return await open_session(*args, **options)

    node.groups.open_session = noted  # type: ignore[method-assign]
    return joined


@asynccontextmanager
async def linked(it: Through, server: Server) -> AsyncIterator[tuple[Served, NodeLink]]:
    """Connect a client of the native protocol to one of the nodes."""
    link = await dial(server.addresses.http, server.addresses.grpc, None, is_alone=True)
    try:
        yield Served(it.node, server, cast(grpc.aio.Channel, NativeChannel(link))), link
    finally:
        link.close("the test is over")


@pytest.mark.parametrize("asked", ["front", "owner"])
async def test_nobody_joins_a_group_in_the_place_of_a_client_whose_link_broke(tmp_path, asked):
    async with through(tmp_path) as it:
        await it.publish(b"a")
        joined = note_joins(it.node)
        server = getattr(it, asked).server
        async with linked(it, server) as (client, link):
            member = Member(client, member="gone")
            await member.open()
            await member.delivery()
            break_link(link)
            await until(lambda: not server.calls.in_flight)

        assert joined == ["gone"]
        other = Member(it, member="next")
        await other.open()
        assert values_of(await other.delivery()) == [b"a"]


@pytest.mark.parametrize("asked", ["front", "owner"])
async def test_a_client_that_comes_back_by_its_name_is_not_replaced_by_the_one_it_was(
    tmp_path, asked
):
    async with through(tmp_path) as it:
        joined = note_joins(it.node)
        server = getattr(it, asked).server
        async with linked(it, server) as (client, link), linked(it, server) as (again, _):
            await Member(client, member="same").open()
            break_link(link)
            back = Member(again, member="same")
            await back.open()
            await until(lambda: server.calls.in_flight == 1)
            await it.publish(b"a")

            assert values_of(await back.delivery()) == [b"a"]
            assert joined == ["same", "same"]
