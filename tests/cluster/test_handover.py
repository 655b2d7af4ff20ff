"""Streams move between real nodes, and whoever reads, waits or sends goes on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.clustered import Member, meet, member
from tests.server.http_client import Answered, raw_client, until
from waterclock.server import app
from waterclock.streams.ring import Item


class Node:
    """A member, and clients of it."""

    def __init__(self, member: Member, stack: AsyncExitStack) -> None:
        self.member = member
        self.name = member.name
        self.http = member.server.addresses.http
        self.streams = member.node.streams
        self.cluster = member.cluster
        assert member.cluster.handover is not None
        self.handover = member.cluster.handover
        self._stack = stack

    async def connection(self) -> Any:
        return await self._stack.enter_async_context(raw_client(self.member.server.http_port))

    async def send(self, stream: str, message: Any, **facts: Any) -> Answered:
        body = {"streamId": stream, "message": message, **facts}
        answer: Answered = await (await self.connection()).post("/streams/send", body)
        return answer

    async def receive(self, stream: str, query: str = "timeout=0s") -> Answered:
        client = await self.connection()
        answer: Answered = await client.get(f"/streams/receive?streamId={stream}&{query}")
        return answer

    async def drain(self, stream: str) -> list[Any]:
        """Receive all there is."""
        found = []
        while (answer := await self.receive(stream)).status == 200:
            found.append(answer.json()["message"])
        return found

    async def polling(self, stream: str, query: str) -> "asyncio.Task[Answered]":
        """Ask for a message and return once somebody waits at this node."""
        before = self.streams.table.waiting
        poll = asyncio.ensure_future(self.receive(stream, query))
        await until(lambda: self.streams.table.waiting > before)
        return poll

    def see(self, *nodes: "Node") -> None:
        """Learn that these own streams."""
        self.cluster.ownership.update({node.name: node.http for node in nodes})


@asynccontextmanager
async def nodes(folder: Path, *names: str, **sections: Any) -> AsyncIterator[list[Node]]:
    """Run nodes that are linked; only the first owns streams."""
    async with AsyncExitStack() as stack:
        members = [
            await stack.enter_async_context(member(folder / name, name, **sections))
            for name in names
        ]
        await meet(*members, owners=(members[0],))
        key = bytes(32)
        for each in members:
            each.node.stream_tokens.share(key)
        yield [Node(each, stack) for each in members]


async def settle(*nodes: Node) -> None:
    """Let all of them see all of them, and streams come to their owners."""
    for node in nodes:
        node.see(*nodes)
    await until(lambda: all(node.handover.is_settled for node in nodes))


def cut(one: Node, two: Node) -> None:
    """Break the link between two nodes, and let neither make another."""
    for node, other in ((one, two), (two, one)):
        node.cluster.peers.part(other.name)
    one.cluster.peers._links[two.name].abort()


def owned_by(owner: Node, *others: Node, count: int = 3) -> list[str]:
    """Return names of streams that a node owns when there are others too."""
    before = owner.cluster.ownership.ring
    ring = type(before)([owner.name, *(each.name for each in others)], before._hash)
    names = (f"stream{number}" for number in range(1_000))
    return [name for name in names if ring.owner(name) == owner.name][:count]


async def test_streams_go_to_a_node_that_joins_and_readers_go_on(tmp_path):
    async with nodes(tmp_path, "a", "b") as (a, b):
        moving, staying = owned_by(b, a)[0], owned_by(a, b)[0]
        for name in (moving, staying):
            for message in range(4):
                await a.send(name, message)
            await a.receive(name, "consumerId=c")
        token = (await a.receive(moving)).json()["resumeToken"]

        await settle(a, b)

        assert list(a.streams.table.names()) == [staying]
        assert list(b.streams.table.names()) == [moving]
        assert (a.handover.sent, b.handover.taken) == (1, 1)
        assert a.handover.sent_bytes >= b.handover.taken_bytes > 0
        for node in (a, b):
            assert (await node.receive(moving, f"resumeToken={token}")).json()["message"] == 1
            assert (await node.receive(staying)).json()["message"] == (0 if node is a else 1)
        assert (await a.receive(moving, "consumerId=c")).json()["message"] == 1
        assert (await b.send(moving, 4)).json()["position"] == 5
        assert await a.drain(moving) == [1, 2, 3, 4]


async def test_streams_of_a_node_that_leaves_go_to_the_others(tmp_path):
    async with nodes(tmp_path, "a", "b", "c") as (a, b, c):
        await settle(a, b, c)
        names = [*owned_by(a, b, c), *owned_by(b, a, c)]
        for name in names:
            await a.send(name, name)

        for node in (a, b, c):
            node.see(b, c)
        await a.handover.leave(lambda: True)

        assert not len(a.streams.table)
        await until(lambda: b.handover.is_settled and c.handover.is_settled)
        for name in names:
            assert (await a.receive(name)).json()["message"] == name


async def test_more_streams_than_fit_into_a_chunk_all_arrive(tmp_path):
    async with nodes(tmp_path, "a", "b") as (a, b):
        names = owned_by(b, a, count=3)
        for name in names:
            await a.send(name, name + "x" * 700_000)
        for number in range(1_200):
            a.streams.offer(f"many{number}", Item(b"{}"))

        await settle(a, b)

        tables = (a.streams.table, b.streams.table)
        assert sum(map(len, tables)) == 1_203
        ring = a.cluster.ownership.ring
        for node in (a, b):
            assert {ring.owner(name) for name in node.streams.table.names()} == {node.name}
            node.streams.table.check_invariants()
        assert [(await a.receive(name)).json()["message"][:3] for name in names] == ["str"] * 3


async def test_a_poll_that_waits_goes_with_its_stream_wherever_it_was_asked(tmp_path):
    async with nodes(tmp_path, "a", "b", "c") as (a, b, c):
        (name, *_) = owned_by(b, a, c)
        polls = [await a.polling(name, "timeout=60s")]
        waiting = a.streams.table.waiting
        polls.append(asyncio.ensure_future(c.receive(name, "timeout=60s")))
        await until(lambda: a.streams.table.waiting > waiting)

        await settle(a, b, c)
        await until(lambda: b.streams.table.waiting == 2)
        assert a.streams.table.waiting == 0
        for message in (1, 2):
            assert (await c.send(name, message)).json()["delivered"]

        answers = await asyncio.gather(*polls)
        assert sorted(answer.json()["message"] for answer in answers) == [1, 2]


async def test_a_poll_that_goes_with_its_stream_ends_in_its_time(tmp_path):
    async with nodes(tmp_path, "a", "b") as (a, b):
        (name, *_) = owned_by(b, a)
        poll = await a.polling(name, "timeout=400ms")
        await settle(a, b)

        answer = await poll
        assert (answer.status, answer.json()["error"]) == (424, "MatchTimeout")


async def test_who_hangs_up_after_the_stream_has_moved_gets_nothing_there(tmp_path):
    async with nodes(tmp_path, "a", "b") as (a, b):
        (name, *_) = owned_by(b, a)
        async with raw_client(a.member.server.http_port) as client:
            path = f"/streams/receive?streamId={name}&timeout=300s"
            client.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            await until(lambda: a.streams.table.waiting)
            await settle(a, b)
            await until(lambda: b.streams.table.waiting)
        await until(lambda: not b.streams.table.waiting)

        assert not (await b.send(name, 1)).json()["delivered"]


async def test_a_sender_that_waits_goes_with_its_stream(tmp_path):
    async with nodes(tmp_path, "a", "b") as (a, b):
        (name, *_) = owned_by(b, a)
        facts = {"inMemoryStreamSize": 0, "timeout": "60s"}
        sends = [asyncio.ensure_future(node.send(name, node.name, **facts)) for node in (a, b)]
        await until(lambda: a.streams.table.waiting == 2)

        await settle(a, b)
        await until(lambda: b.streams.table.waiting == 2)

        got = [(await a.receive(name)).json()["message"] for _ in sends]
        assert sorted(got) == ["a", "b"]
        assert [(await send).status for send in sends] == [200, 200]


async def test_who_waits_in_the_words_of_another_api_is_answered_in_them_by_the_new_owner(tmp_path):
    async with nodes(tmp_path, "a", "b") as (a, b):
        poll, full, *_ = owned_by(b, a)
        client, sender = await a.connection(), await a.connection()
        received = asyncio.ensure_future(client.get(f"/api/v1/streams/receive?streamId={poll}"))
        facts = {"streamId": full, "messageUuid": "u", "blockingSendTimeoutSeconds": 60}
        await a.send(full, 1, inMemoryStreamSize=1)
        sent = asyncio.ensure_future(sender.post("/api/v1/streams/send", {**facts, "message": 2}))
        await until(lambda: a.streams.table.waiting == 2)

        await settle(a, b)
        await until(lambda: b.streams.table.waiting == 2)

        await b.send(poll, 3, messageUuid="v")
        answer = (await received).json()
        assert (answer.pop("timestamp")[:2], answer) == ("20", {"messageUuid": "v", "message": 3})
        assert await b.drain(full) == [1, 2]
        assert (await sent).json() == {"messageUuid": "u"}


async def test_a_poll_from_latest_is_told_where_to_go_on_so_that_nothing_is_passed_over(tmp_path):
    async with nodes(tmp_path, "a", "b") as (a, b):
        (name, *_) = owned_by(b, a)
        await a.send(name, "before")
        poll = await a.polling(name, "timeout=60s&resumeToken=latest")

        await settle(a, b)

        answer = await poll
        assert answer.status == 424
        await b.send(name, "after")
        token = answer.json()["resumeToken"]
        assert (await a.receive(name, f"resumeToken={token}")).json()["message"] == "after"


async def test_a_listener_is_let_go_and_comes_back_to_what_follows(tmp_path):
    async with nodes(tmp_path, "a", "b") as (a, b):
        (name, *_) = owned_by(b, a)
        await a.send(name, 1)
        client = await a.connection()
        client.send(
            f"GET /streams/events?streamId={name} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        )
        await client.head()
        while b"data:" not in (event := await client.chunk()):
            pass
        last_id = event.split(b"id: ")[-1].split(b"\n")[0]
        await until(lambda: a.streams.table.waiting)

        await settle(a, b)
        while await client.chunk():
            pass
        await b.send(name, 2)

        again = await a.connection()
        head = f"GET /streams/events?streamId={name} HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: "
        again.send(head.encode() + last_id + b"\r\n\r\n")
        await again.head()
        while b"data:" not in (event := await again.chunk()):
            pass
        assert b'"message":2' in event


async def test_a_chunk_whose_answer_did_not_come_is_taken_once(tmp_path, monkeypatch):
    async with nodes(tmp_path, "a", "b") as (a, b):
        (name, *_) = owned_by(b, a)
        for message in range(3):
            await a.send(name, message)
        arrived = b.handover._arrived
        broken: list[int] = []

        def break_after(node_id, channel, chunk):
            arrived(node_id, channel, chunk)
            if not broken:
                broken.append(chunk.number)
                b.cluster.peers._links["a"].abort()

        monkeypatch.setattr(b.handover, "_arrived", break_after)
        await settle(a, b)

        assert broken
        assert (a.handover.lost, b.handover.taken) == (0, 1)
        assert await a.drain(name) == [0, 1, 2]


async def test_a_chunk_on_its_way_to_a_node_that_is_killed_is_given_to_nobody(
    tmp_path, monkeypatch
):
    async with nodes(tmp_path, "a", "b") as (a, b):
        (name, *_) = owned_by(b, a)
        sent = (await a.send(name, 1)).json()
        assert sent["position"] == 1
        token = (await a.receive(name, "consumerId=c")).json()["resumeToken"]
        monkeypatch.setattr(b.handover, "_arrived", lambda *_: None)
        for node in (a, b):
            node.see(a, b)
        await until(lambda: a.handover._bodies)

        cut(a, b)
        a.see(a)
        await until(lambda: a.handover.is_settled)

        assert a.handover.lost == 1
        assert (await a.receive(name)).status == 424
        gone = await a.receive(name, f"resumeToken={token}")
        assert (gone.status, gone.json()["error"]) == (410, "Gone")


async def test_what_two_nodes_sent_apart_is_received_once_when_they_meet_again(tmp_path):
    async with nodes(tmp_path, "a", "b") as (a, b):
        (name, *_) = owned_by(a, b)
        cut(a, b)
        await until(lambda: not a.cluster.peers.linked and not b.cluster.peers.linked)
        b.see(b)
        for node in (a, b):
            for number in range(3):
                await node.send(name, f"{node.name}{number}")
            await node.receive(name)
            await node.receive(name, "consumerId=" + node.name)
        token = (await b.receive(name, "consumerId=b")).json()["resumeToken"]

        await meet(a.member, b.member)
        await settle(a, b)

        assert await b.drain(name) == ["a1", "a2", "b1", "b2"]
        assert (await b.receive(name, f"resumeToken={token}")).status == 410
        assert (await b.receive(name, "consumerId=b")).json()["message"] == "b2"


async def test_a_stream_that_is_still_on_its_way_is_answered_for_by_nobody(tmp_path):
    async with nodes(tmp_path, "a", "b") as (a, b):
        (name, *_) = owned_by(b, a)
        await a.send(name, 1)

        b.see(a, b)
        unstable = await b.receive(name, "timeout=60ms")
        assert unstable.status == 424
        assert (unstable.json()["error"], unstable.json()["owner"]) == ("NotOwner", b.http)
        poll = asyncio.ensure_future(b.receive(name, "timeout=60s"))
        a.see(a, b)

        assert (await poll).json()["message"] == 1


async def test_a_stream_there_is_no_room_for_is_counted_as_refused(tmp_path):
    async with nodes(tmp_path, "a", "b") as (a, b):
        (name, *_) = owned_by(b, a)
        await a.send(name, "x" * 1_000)
        b.streams.table.size_bytes += b.streams.config.bytes_max

        await settle(a, b)

        assert (b.handover.refused, b.handover.taken) == (1, 0)
        assert b.streams.table.find(name) is None
        b.streams.table.size_bytes -= b.streams.config.bytes_max


async def test_a_poll_from_before_the_node_knew_of_others_moves_as_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports: list[int] = []
    polls: list[asyncio.Task[Answered]] = []

    async def poll() -> Answered:
        async with raw_client(ports[-1]) as client:
            return await client.get("/streams/receive?streamId=s&timeout=20s")

    @asynccontextmanager
    async def http(*args: Any, **settings: Any) -> AsyncIterator[Any]:
        async with serve_http(*args, **settings) as server:
            ports.append(server.port)
            yield server

    @asynccontextmanager
    async def grpc(*args: Any) -> AsyncIterator[Any]:
        # Clients are answered by now, and nothing of the cluster has begun.
        polls.append(asyncio.ensure_future(poll()))
        async with raw_client(ports[-1]) as client:
            while not (await client.get("/streams/s")).json().get("waiting"):
                pass
        async with serve_grpc(*args) as listener:
            yield listener

    serve_http, serve_grpc = vars(app)["serve_http"], vars(app)["serve_grpc"]
    monkeypatch.setattr(app, "serve_http", http)
    monkeypatch.setattr(app, "serve_grpc", grpc)
    async with nodes(tmp_path, "a", "b") as (a, b):
        a.see(b)
        b.see(b)
        assert (await b.send("s", "one")).status == 200
        assert (await b.send("s", "two")).status == 200

        answers = [(await each).json()["message"] for each in polls]
        assert sorted(answers) == ["one", "two"]
