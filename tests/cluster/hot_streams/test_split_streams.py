"""Streams that are split over real nodes: three in this process, linked over loopback."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from tests.cluster.clustered import meet, member
from tests.server.http_client import until
from tests.server.test_streams_api import Streaming
from waterclock.model.sections import StreamsConfig
from waterclock.server.streams.api import StreamsApi
from waterclock.streams.tokens import KEY_BYTES

STREAM = "hot"
RATE = 10


class Node(Streaming):
    """One of the nodes, and a client of it."""

    def __init__(self, served, stack, stop):
        super().__init__(served, stack)
        self.stop = stop
        self.member = served
        self.hot = served.cluster.hot_streams
        self.name = served.name

    def waiting(self):
        stream = self.host.table.find(STREAM)
        return 0 if stream is None else stream.waiting

    async def poll_waits(self):
        poll = asyncio.ensure_future(self.receive(STREAM))
        await until(lambda: self.waiting() == 1)
        return poll


class Nodes(list[Node]):
    """All of them, as they follow each other on the ring: the first owns the stream."""

    def __init__(self, nodes):
        super().__init__(nodes)
        self.now_ms = self[0].hot.now_ms()
        for node in self:
            node.hot.now_ms = lambda: self.now_ms

    async def measure(self, seconds, rate):
        """Let time pass for all, and so many requests a second come to the owner."""
        root = self[0].hot
        for _ in range(seconds):
            for _ in range(rate):
                root.core.used(STREAM)
            self.now_ms += 1_000
            root._perform(root.core.tick(self.now_ms))
            await until(self.has_reports)

    def has_reports(self):
        """All partitions have said how they are."""
        split = self[0].hot.core.split_of(STREAM)
        if split is None:
            return True
        return all(split._heard_ms.get(node) == self.now_ms for node in split.nodes[1:])

    async def split(self, count):
        await self.measure(30, count * RATE)
        assert self[0].hot.core.split_of(STREAM).write == count
        await until(lambda: all(self.write(node) == count for node in self))

    def write(self, node):
        route = node.hot.routes.get(STREAM)
        return 1 if route is None else route.keep.write

    async def shrink(self):
        while any(self.write(node) > 1 or node.hot.partitions for node in self):
            await self.measure(1, 0)

    async def join(self, *, but=()):
        """Let the ring be of these nodes only."""
        kept = [node.member for node in self if node not in but]
        await meet(*(node.member for node in self), owners=tuple(kept))


@asynccontextmanager
async def nodes_in(folder, count=3):
    config = StreamsConfig(partition_rate=RATE)
    async with AsyncExitStack() as stack:
        stops, members = {}, []
        for name in ("one", "two", "three")[:count]:
            one = await stack.enter_async_context(AsyncExitStack())
            members.append(
                await one.enter_async_context(member(folder / name, name, streams=config))
            )
            stops[name] = one.aclose
        for each in members:
            each.node.stream_tokens.share(b"k" * KEY_BYTES)
        await meet(*members)
        order = list(members[0].cluster.ownership.ring.successors(STREAM))
        members.sort(key=lambda each: order.index(each.name))
        yield Nodes(Node(each, stack, stops[each.name]) for each in members)


async def test_each_node_matches_its_own_clients(tmp_path):
    async with nodes_in(tmp_path) as nodes:
        await nodes.split(3)
        before = [node.member.cluster.forwarder.forwarded for node in nodes]

        for number, node in enumerate(nodes):
            assert (await node.send(STREAM, number)).status == 200
            assert (await node.receive(STREAM)).json()["message"] == number

        assert [node.member.cluster.forwarder.forwarded for node in nodes] == before
        assert [node.hot.pulled for node in nodes] == [0, 0, 0]


async def test_a_poll_meets_a_message_that_is_sent_to_any_other_node(tmp_path):
    async with nodes_in(tmp_path) as nodes:
        await nodes.split(3)

        for polled in nodes:
            for sent in nodes:
                poll = await polled.poll_waits()
                assert (await sent.send(STREAM, [polled.name, sent.name])).status == 200
                assert (await poll).json()["message"] == [polled.name, sent.name]


async def test_a_poll_meets_a_message_that_waits_at_any_other_node(tmp_path):
    async with nodes_in(tmp_path) as nodes:
        await nodes.split(3)

        for polled in nodes:
            for sent in nodes:
                first = await sent.send(STREAM, [polled.name, sent.name])
                found = (await polled.receive(STREAM)).json()
                assert found["message"] == [polled.name, sent.name]
                assert found["messageUuid"] == first.json()["messageUuid"]


async def test_many_messages_go_once_to_whoever_polls_elsewhere(tmp_path):
    async with nodes_in(tmp_path) as nodes:
        await nodes.split(3)
        for number in range(90):
            await nodes[number % 3].send(STREAM, number)

        polls = [nodes[1].receive(STREAM) for _ in range(90)]
        found = [answer.json()["message"] for answer in await asyncio.gather(*polls)]

        assert sorted(found) == list(range(90))


async def test_a_node_without_a_partition_asks_those_that_have_one(tmp_path):
    async with nodes_in(tmp_path) as nodes:
        await nodes.split(2)
        front = nodes[2]

        for number in range(20):
            assert (await front.send(STREAM, number)).status == 200
        polls = [front.receive(STREAM) for _ in range(20)]
        found = [answer.json()["message"] for answer in await asyncio.gather(*polls)]

        assert sorted(found) == list(range(20))
        assert front.host.table.find(STREAM) is None
        assert all(node.host.table.find(STREAM).ring.end > 5 for node in nodes[:2])


async def test_a_stream_shrinks_and_nothing_is_lost(tmp_path):
    async with nodes_in(tmp_path) as nodes:
        await nodes.split(3)
        for number in range(60):
            await nodes[number % 3].send(STREAM, number)
        await nodes.shrink()

        polls = [nodes[number % 3].receive(STREAM) for number in range(60)]
        found = [answer.json()["message"] for answer in await asyncio.gather(*polls)]

        assert sorted(found) == list(range(60))
        assert nodes[0].host.table.find(STREAM).ring.end == 60


async def test_a_poll_that_waits_where_the_stream_shrinks_is_answered(tmp_path):
    async with nodes_in(tmp_path) as nodes:
        await nodes.split(2)
        poll = await nodes[1].poll_waits()
        while nodes.write(nodes[2]) > 1:
            await nodes.measure(1, 0)

        await nodes[2].send(STREAM, "for you")

        assert (await poll).json()["message"] == "for you"


async def test_a_named_consumer_makes_a_stream_whole_and_gets_all_that_waits(tmp_path):
    async with nodes_in(tmp_path) as nodes:
        await nodes.split(3)
        for number in range(30):
            await nodes[number % 3].send(STREAM, number)

        found = (await nodes[1].receive(STREAM, "consumerId=c&limit=100")).json()["messages"]
        await nodes.measure(1, 1_000)
        while len(found) < 30:
            await nodes.measure(1, 1_000)
            page = await nodes[1].receive(STREAM, "consumerId=c&limit=100&timeout=100ms")
            found += page.json().get("messages", [])

        assert sorted(each["message"] for each in found) == list(range(30))
        assert nodes[0].hot.core.split_of(STREAM) is None or nodes.write(nodes[2]) == 1


async def test_a_stream_that_somebody_reads_in_order_is_not_split(tmp_path):
    async with nodes_in(tmp_path) as nodes:
        await nodes[0].send(STREAM, 1)
        await nodes[1].receive(STREAM, "consumerId=c")

        await nodes.measure(30, 10 * RATE)

        assert nodes[0].hot.core.split_of(STREAM) is None
        assert nodes[0].hot.core.refused > 0
        assert nodes[0].hot.signal > 1


async def test_a_token_of_another_partition_is_gone(tmp_path):
    async with nodes_in(tmp_path) as nodes:
        await nodes.split(2)
        await nodes[1].send(STREAM, 1)
        token = (await nodes[1].receive(STREAM)).json()["resumeToken"]
        await nodes[0].send(STREAM, 2)

        answer = await nodes[1].receive(STREAM, f"resumeToken={token}")

        assert answer.status == 410
        again = await nodes[1].receive(STREAM, "resumeToken=" + answer.json()["resumeToken"])
        assert again.json()["message"] == 2


async def test_a_rendezvous_is_not_split(tmp_path):
    async with nodes_in(tmp_path) as nodes:
        poll = asyncio.ensure_future(nodes[1].receive(STREAM))
        await until(lambda: nodes[0].waiting() == 1)
        await nodes[0].send(STREAM, 1, inMemoryStreamSize=0)
        await poll

        await nodes.measure(30, 10 * RATE)

        assert nodes[0].hot.core.split_of(STREAM) is None


async def test_a_split_stream_is_listed_once_and_deleted_everywhere(tmp_path):
    async with nodes_in(tmp_path) as nodes:
        await nodes.split(3)
        for node in nodes:
            await node.send(STREAM, node.name)
        assert (await nodes[2].get("/streams")).json()["streams"] == [STREAM]

        assert (await nodes[1].post(f"/streams/{STREAM}", "DELETE")).status == 204

        await until(lambda: not any(node.hot._look(STREAM).backlog for node in nodes))


async def test_when_the_ring_changes_what_partitions_have_comes_to_the_owner(tmp_path):
    async with nodes_in(tmp_path) as nodes:
        await nodes.split(3)
        for number in range(30):
            await nodes[number % 3].send(STREAM, number)
        await nodes.join(but=(nodes[2],))

        polls = [nodes[number % 3].receive(STREAM) for number in range(30)]
        found = [answer.json()["message"] for answer in await asyncio.gather(*polls)]

        assert sorted(found) == list(range(30))
        assert all(not node.hot.partitions for node in nodes)


async def test_a_poll_that_waits_at_a_partition_moves_when_the_ring_changes(tmp_path):
    async with nodes_in(tmp_path) as nodes:
        await nodes.split(3)
        poll = await nodes[2].poll_waits()
        await nodes.join(but=(nodes[1],))

        assert (await nodes[1].send(STREAM, "for you")).status == 200

        assert (await poll).json()["message"] == "for you"


async def test_a_node_that_is_gone_takes_only_its_own_partition_with_it(tmp_path):
    async with nodes_in(tmp_path) as nodes:
        await nodes.split(3)
        for number in range(30):
            await nodes[number % 3].send(STREAM, number)
        await nodes[1].stop()
        gone = nodes.pop(1)
        await nodes.join()

        polls = [nodes[number % 2].receive(STREAM) for number in range(20)]
        found = [answer.json()["message"] for answer in await asyncio.gather(*polls)]

        assert sorted(found) == [number for number in range(30) if number % 3 != 1]
        assert gone.name not in nodes[0].member.cluster.ownership.ring.nodes


async def test_a_node_alone_splits_nothing(tmp_path):
    async with nodes_in(tmp_path, count=1) as nodes:
        await nodes.measure(30, 10 * RATE)

        assert nodes[0].hot.core.split_of(STREAM) is None
        assert nodes[0].hot.signal == pytest.approx(10)


async def test_a_cluster_may_be_told_to_split_nothing(tmp_path):
    async with member(tmp_path, "one", streams=StreamsConfig(partitions_max=1)) as one:
        assert one.cluster.hot_streams is None


async def test_an_owner_answers_plain_requests_the_short_way_and_counts_them(tmp_path, monkeypatch):
    async with nodes_in(tmp_path) as nodes:
        owner = nodes[0]
        await owner.send(STREAM, "first")  # the stream is made
        before = owner.hot.core._counts[STREAM]
        for long_way in ("take_message", "give_message"):
            monkeypatch.delattr(StreamsApi, long_way)

        assert (await owner.send(STREAM, "second")).status == 200
        got = [(await owner.receive(STREAM)).json()["message"] for _ in range(2)]

        assert got == ["first", "second"]
        assert owner.hot.core._counts[STREAM] == before + 3


async def test_an_owner_does_not_answer_for_a_stream_that_is_still_on_its_way(tmp_path):
    async with nodes_in(tmp_path) as nodes:
        owner = nodes[0]
        await owner.send(STREAM, "first")
        owner.member.cluster.ownership.gate = lambda stream: False

        sent = asyncio.ensure_future(owner.send(STREAM, "second"))
        received = asyncio.ensure_future(owner.receive(STREAM))
        await until(lambda: len(owner.member.cluster.forwarder) == 2)
        assert len(owner.host.table.find(STREAM).ring) == 1

        owner.member.cluster.ownership.gate = None
        assert [(await each).status for each in (sent, received)] == [200, 200]
