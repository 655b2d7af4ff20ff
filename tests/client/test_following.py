"""A stream that is followed: every message once, in order, whatever happens to the connection."""

import asyncio
import re
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.client.http_peers import Proxy, ok, proxy_of, refusal, scripted
from tests.client.test_streams import QUICK, connected, directed_to
from tests.server.http_client import until
from tests.server.served import Served, running_server
from waterclock.client._sync.client import connect_blocking
from waterclock.client.client import Client, connect
from waterclock.client.streams.following import Following
from waterclock.model.errors import BadInput, Closed, Gone, NotFound
from waterclock.model.sections import ClusterConfig, MatchingConfig


@asynccontextmanager
async def between(folder: Path) -> AsyncIterator[tuple[Served, Proxy, Client]]:
    """Give a node, a proxy, and a client whose streams go through it."""
    async with (
        running_server(folder) as served,
        proxy_of(served.server.addresses.http_port) as proxy,
        connect(served.server.addresses.grpc, QUICK, http_address=proxy.url) as client,
    ):
        yield served, proxy, client


async def values(following: Following, count: int) -> list[Any]:
    return [(await anext(following)).value for _ in range(count)]


async def test_what_was_there_comes_first_and_then_what_comes(tmp_path):
    async with connected(tmp_path) as (served, client), asyncio.TaskGroup() as tasks:
        for number in range(100):
            await client.streams.send("chat", number)
        following = client.streams.follow("chat")
        assert await values(following, 100) == [*range(100)]
        coming = tasks.create_task(values(following, 2))
        await until(lambda: served.node.streams.table.waiting)
        await client.streams.send("chat", "a")
        await client.streams.send("chat", "b")

        assert await coming == ["a", "b"]


async def test_followers_take_nothing_from_each_other_or_from_receivers(tmp_path):
    async with connected(tmp_path) as (_, client):
        streams = client.streams
        for number in range(3):
            await streams.send("chat", number)
        assert await values(streams.follow("chat"), 3) == [0, 1, 2]
        assert await values(streams.follow("chat"), 3) == [0, 1, 2]
        assert len(await streams.receive("chat", timeout=0, limit=9)) == 3


async def test_one_goes_on_where_another_was_left(tmp_path):
    async with connected(tmp_path) as (_, client):
        for number in range(10):
            await client.streams.send_and_store("log", number)
        first = client.streams.follow("log")
        assert first.resume_token is None
        assert await values(first, 4) == [0, 1, 2, 3]
    async with connected(tmp_path) as (_, client):
        second = client.streams.follow("log", resume=first.resume_token)
        assert await values(second, 6) == [4, 5, 6, 7, 8, 9]


@settings(max_examples=8, deadline=None)
@given(cuts=st.lists(st.integers(1, 2_000), max_size=8), is_stored=st.booleans())
async def test_nothing_is_lost_or_repeated_wherever_the_connection_is_cut(
    tmp_path_factory, cuts, is_stored
):
    async with between(tmp_path_factory.mktemp("node")) as (served, proxy, client):
        sender = connect(served.server.addresses.grpc, QUICK)
        seen = []
        async with sender, asyncio.TaskGroup() as tasks:
            send = sender.streams.send_and_store if is_stored else sender.streams.send
            following = client.streams.follow("chat")
            for start in range(0, 60, 10):
                coming = tasks.create_task(values(following, 10))
                if cuts:
                    proxy.cut_after = proxy.passed + cuts.pop()
                for number in range(start, start + 10):
                    await send("chat", number)
                seen += await coming
                proxy.cut()
        assert seen == [*range(60)]


async def test_a_named_consumer_goes_on_after_what_it_saw(tmp_path):
    async with between(tmp_path) as (_, proxy, client):
        for number in range(100):
            await client.streams.send("chat", number)
        following = client.streams.follow("chat", consumer="ada")
        assert await values(following, 64) == [*range(64)]
        proxy.cut_after = proxy.passed + 300
        assert await values(following, 36) == [*range(64, 100)]
        assert (await client.streams.get("chat")).consumers == {"ada": 64}
        await following.confirm()
        assert (await client.streams.get("chat")).consumers == {"ada": 100}


async def test_a_node_that_restarts_is_waited_for_and_what_it_lost_is_told(tmp_path):
    async with asyncio.TaskGroup() as tasks:
        async with running_server(tmp_path) as served:
            at = served.server.addresses
            client = connect(at.grpc, QUICK)
            await client.__aenter__()
            streams = client.streams
            following, stored = streams.follow("chat"), streams.follow("log")
            await streams.send("chat", "lost with the node")
            await streams.send_and_store("log", 0)
            assert await values(following, 1) == ["lost with the node"]
            assert await values(stored, 1) == [0]
            coming = tasks.create_task(values(stored, 2))
            await until(lambda: served.node.streams.table.waiting)
        ports = ClusterConfig(grpc_port=at.grpc_port, http_port=at.http_port)
        async with running_server(tmp_path, cluster=ports):
            await streams.send("chat", "new")
            await streams.send_and_store("log", 1)
            await streams.send_and_store("log", 2)
            with pytest.raises(Gone) as gone:
                await anext(following)
            assert gone.value.missed == 0
            assert await values(following, 1) == ["new"]
            assert await coming == [1, 2]
            await client.__aexit__(None, None, None)


async def test_a_gap_is_told_once_with_its_size_and_the_loop_goes_on_behind_it(tmp_path):
    async with connected(tmp_path) as (_, client):
        await client.streams.send("chat", 0, size=3)
        following = client.streams.follow("chat")
        assert await values(following, 1) == [0]
        for number in range(1, 9):
            await client.streams.send("chat", number)
        with pytest.raises(Gone) as gone:
            async for _ in following:
                pass
        assert gone.value.missed == 5
        assert await values(following, 3) == [6, 7, 8]


async def test_a_slow_consumer_is_told_with_the_message_how_many_it_missed(tmp_path):
    async with connected(tmp_path) as (_, client):
        await client.streams.receive("chat", timeout=0, consumer="ada")
        for number in range(5):
            await client.streams.send("chat", number, size=2)
        following = client.streams.follow("chat", consumer="ada")
        first, second = await anext(following), await anext(following)

        assert [first.value, second.value] == [3, 4]
        assert [first.missed, second.missed] == [3, 0]


async def test_a_cancelled_wait_loses_nothing(tmp_path):
    async with connected(tmp_path) as (served, client):
        following = client.streams.follow("chat")
        for number in range(5):
            async with asyncio.TaskGroup() as tasks:
                waiting = tasks.create_task(anext(following))
                await until(lambda: served.node.streams.table.waiting)
                waiting.cancel()
            await client.streams.send("chat", number)
            assert await values(following, 1) == [number]


async def test_two_who_ask_the_same_follower_share_its_messages(tmp_path):
    async with connected(tmp_path) as (_, client), asyncio.TaskGroup() as tasks:
        following = client.streams.follow("chat")
        both = [tasks.create_task(values(following, 10)) for _ in range(2)]
        for number in range(20):
            await client.streams.send("chat", number)
        assert sorted([*await both[0], *await both[1]]) == [*range(20)]


async def test_a_node_that_lets_nobody_wait_is_not_asked_without_a_pause(tmp_path):
    impatient = MatchingConfig(default_timeout_ms=0)
    async with (
        connected(tmp_path, matching=impatient) as (_, client),
        asyncio.TaskGroup() as tasks,
    ):
        coming = tasks.create_task(values(client.streams.follow("chat"), 1))
        await asyncio.sleep(0)
        await client.streams.send("chat", "here")
        assert await coming == ["here"]


async def test_trouble_that_passes_is_waited_out_and_a_mistake_is_told(tmp_path):
    token = b'"sentMs":1,"resumeToken":"t"'
    page = b'{"messages":[{"message":1,"messageUuid":"m","position":1,%b}],"missed":0}' % token
    said = [
        refusal(503, b'{"error":"StoreUnavailable","detail":"away"}'),
        refusal(424, b'{"error":"MatchTimeout","detail":"nobody"}'),
        refusal(424, b'{"error":"MatchTimeout","detail":"nobody","resumeToken":"here"}'),
        refusal(502, b"<html>"),
        ok(page),
        refusal(400, b'{"error":"BadField","detail":"resumeToken: no","field":"resumeToken"}'),
        refusal(404, b'{"error":"NotFound","detail":"no"}'),
    ]
    async with scripted(lambda n: said[n]) as peer, directed_to(tmp_path, peer.url) as client:
        following = client.streams.follow("s")
        assert await values(following, 1) == [1]
        with pytest.raises(BadInput, match="resumeToken: no"):
            await anext(following)
        with pytest.raises(NotFound):
            await anext(following)
        tokens = [re.search(rb"resumeToken=(\w+)", each) for each in peer.requests]
        assert [each and each[1] for each in tokens] == [
            *[b"earliest"] * 3, b"here", b"here", b"t", b"t",
        ]  # fmt: skip


async def test_closing_the_client_ends_a_follower(tmp_path):
    async with running_server(tmp_path) as served, asyncio.TaskGroup() as tasks:

        async def closed(following: Following) -> None:
            with pytest.raises(Closed):
                await anext(following)

        async with connect(served.server.addresses.grpc, QUICK) as client:
            ending = tasks.create_task(closed(client.streams.follow("chat")))
            await until(lambda: served.node.streams.table.waiting)
        await ending


async def test_following_without_a_loop(tmp_path):
    def program(address: str) -> None:
        with connect_blocking(address, QUICK) as client:
            streams = client.streams
            for number in range(3):
                streams.send_and_store("log", number)
            following = streams.follow("log")
            assert [each.value for each in islice(following, 2)] == [0, 1]
            assert following.stream == "log"
            rest = streams.follow("log", resume=following.resume_token)
            assert next(rest).value == 2
            named = streams.follow("log", consumer="ada")
            assert next(named).value == 0
            named.confirm()
            assert next(streams.follow("log", consumer="ada")).value == 1
            later = threading.Timer(0, streams.send_and_store, ("log", 3))
            later.start()
            assert next(rest).value == 3
            later.join()
            streams.send("chat", "x", message_id="m")
            message = streams.receive("chat", timeout="1s")
            assert message is not None
            assert (message.value, message.id) == ("x", "m")
            assert streams.receive("chat", timeout=0, limit=3) == []
            assert streams.list() == ["log", "chat"]
            assert streams.resize("chat", 3).size == streams.get("chat").size == 3
            streams.delete("chat")
            with pytest.raises(NotFound):
                streams.get("chat")

    async with running_server(tmp_path) as served:
        await asyncio.to_thread(program, served.server.addresses.grpc)


@pytest.mark.parametrize("is_stored", [False, True])
async def test_a_named_consumer_that_leaves_has_lost_nothing(tmp_path, is_stored):
    async with connected(tmp_path) as (_, client):
        streams = client.streams
        for number in range(5):
            await (streams.send_and_store if is_stored else streams.send)("chat", number)
        first = streams.follow("chat", consumer="ada")
        assert await values(first, 2) == [0, 1]

        second = streams.follow("chat", consumer="ada")
        assert await values(second, 3) == [0, 1, 2]
        await second.confirm()
        third = streams.follow("chat", consumer="ada")
        assert await values(third, 2) == [3, 4]


async def test_what_was_lost_on_the_way_to_a_named_consumer_comes_again(tmp_path):
    async with between(tmp_path) as (_, proxy, client):
        for number in range(5):
            await client.streams.send("chat", number)
        proxy.cut_after = proxy.passed + 300
        assert await values(client.streams.follow("chat", consumer="ada"), 5) == [*range(5)]
