"""The client over the native protocol: when it is used, and what happens when it is not there."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

import pytest
from google.protobuf.message import DecodeError

from tests.client.fake_node import fake_node
from tests.server.http_client import until
from tests.server.served import running_server
from tests.server.test_native import credential_of, secured
from waterclock.client import connection as connection_module
from waterclock.client.client import Client, connect
from waterclock.client.native import links
from waterclock.client.native.link import NodeLink
from waterclock.client.settings import ClientSettings
from waterclock.cluster.peer_link.frames import BadFrame
from waterclock.model.sections import ClusterConfig
from waterclock.security.credential import Credential
from waterclock.security.quotas import Quotas
from waterclock.server.app import Server
from waterclock.server.native import link as native_link
from waterclock.v1 import admin_pb2 as admin

QUICK = ClientSettings(retry_delay_ms=1)


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no dial be given up because this machine is busy: most tests wait for its link."""
    monkeypatch.setattr(links, "DIAL_S", 60.0)


def link_of(client: Client) -> NodeLink | None:
    """Return the link for calls."""
    connection = client._connection
    return connection.native.find(connection.address)


def publish_link_of(client: Client) -> NodeLink | None:
    connection = client._connection
    return connection.publish_links.find(connection.address)


def want_links(client: Client) -> None:
    """Have both links of a client dialled, though nothing was asked or published yet."""
    connection = client._connection
    connection.want_link(connection.native)
    connection.want_link(connection.publish_links)


def has_links(client: Client) -> bool:
    return link_of(client) is not None and publish_link_of(client) is not None


@asynccontextmanager
async def linked(server: Server) -> AsyncIterator[tuple[Client, NodeLink]]:
    """Have a client whose links stand, and the one for publishes."""
    async with connect(server.addresses.grpc, QUICK) as client:
        want_links(client)
        await until(lambda: has_links(client))
        link = publish_link_of(client)
        assert link is not None
        yield client, link


@contextmanager
def swallowed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have what clients send to a node's port for HTTP heard by nobody, while inside."""
    with socket.create_server(("127.0.0.1", 0)) as silent, monkeypatch.context() as patch:
        url = "http://{}:{}".format(*silent.getsockname())
        patch.setattr(links, "reachable", lambda *_: url)
        yield


async def test_a_node_that_offers_it_is_published_to_and_read_by_it(tmp_path):
    async with running_server(tmp_path) as it, linked(it.server) as (client, _):
        await client.publish("orders", b"one")
        async with client.subscribe("orders", group="billing") as messages:
            async for message in messages:
                await message.ack()
                break

        calls = it.server.calls.methods
        assert link_of(client) is not None
        assert sum(calls["Broker/PublishBatch"].codes.values()) == 1
        assert not calls["Broker/PublishStream"].codes
        assert (await client.fetch("orders", 0, 0)).next_offset == 1


async def test_without_it_all_goes_by_grpc(tmp_path):
    settings = ClientSettings(retry_delay_ms=1, native=False)
    async with (
        running_server(tmp_path) as it,
        connect(it.server.addresses.grpc, settings) as client,
    ):
        assert (await client.publish("orders", b"one")).offset == 0
        assert link_of(client) is None
        assert not it.server.native.links


async def test_a_node_that_does_not_offer_it_is_asked_by_grpc():
    async with fake_node() as node, connect(node.address, QUICK) as client:
        await client.publish("orders", b"one")

        assert link_of(client) is None
        assert node.topics["orders"].values == [b"one"]


async def test_a_link_that_breaks_in_the_midst_of_publishes_loses_and_repeats_none(tmp_path):
    async with running_server(tmp_path) as it, linked(it.server) as (client, link):
        await client.publish("orders", b"first")
        publishes = [asyncio.create_task(client.publish("orders", b"%d" % i)) for i in range(300)]
        await asyncio.sleep(0)
        link.abort()
        receipts = await asyncio.gather(*publishes)

        assert sorted(receipt.offset for receipt in receipts) == list(range(1, 301))
        assert it.node.topics.get("orders").partitions[0].store.acknowledged_end == 301


async def test_a_batch_larger_than_a_frame_is_published_all_the_same(tmp_path):
    async with running_server(tmp_path) as it, linked(it.server) as (client, _):
        value = bytes(1 << 20)

        receipts = await asyncio.gather(*(client.publish("orders", value) for _ in range(3)))

        assert sorted(receipt.offset for receipt in receipts) == [0, 1, 2]


async def test_another_node_of_the_same_name_is_not_taken_for_the_one_that_was_met(tmp_path):
    """Its port for HTTP is what a client finds that reaches the other through a tunnel."""
    async with running_server(tmp_path / "a") as it, running_server(tmp_path / "b") as other:
        at = it.server.addresses
        node = await it.admin.GetNode(admin.GetNodeRequest())
        found = links.NodeLinks(None, is_enabled=True)

        node.http_address = other.server.addresses.http
        await found.link(node, at.grpc, is_alone=True)
        assert found.find(at.grpc) is None
        node.http_address = at.http
        await found.link(node, at.grpc, is_alone=True)
        assert found.find(at.grpc) is not None
        found.close()


async def test_a_node_that_was_started_anew_is_linked_to_again(tmp_path, monkeypatch):
    monkeypatch.setattr(links, "PAUSE_S", 0.0)
    async with running_server(tmp_path) as it:
        at = it.server.addresses
        client = await connect(at.grpc, QUICK).__aenter__()
        await client.publish("orders", b"one")
        await until(lambda: publish_link_of(client) is not None)
        first = publish_link_of(client)
    ports = ClusterConfig(grpc_port=at.grpc_port, http_port=at.http_port)
    async with running_server(tmp_path, cluster=ports) as it:
        assert (await client.publish("orders", b"two")).offset == 1
        await until(lambda: publish_link_of(client) is not None)

        assert publish_link_of(client) is not first
        await client.__aexit__(None, None, None)


async def test_a_port_that_swallows_all_keeps_nobody_waiting(tmp_path, monkeypatch):
    monkeypatch.setattr(links, "DIAL_S", 600.0)
    async with running_server(tmp_path) as it:
        with swallowed(monkeypatch):
            async with connect(it.server.addresses.grpc, QUICK) as client:
                receipt = await client.publish("orders", b"one")
                async with client.subscribe("orders", group="billing") as messages:
                    message = await anext(messages)
                    await message.ack()

                assert (receipt.offset, message.value) == (0, b"one")
                assert link_of(client) is None
                assert (await client.fetch("orders", 0, 0)).next_offset == 1


async def test_closing_ends_a_link_whose_node_has_not_said_who_it_is(tmp_path, monkeypatch):
    dialled: asyncio.Queue[NodeLink] = asyncio.Queue()

    async def node_at(link: NodeLink) -> admin.NodeInfo:
        dialled.put_nowait(link)
        return await asyncio.Future()

    monkeypatch.setattr(links, "_node_at", node_at)
    async with running_server(tmp_path) as it:
        async with connect(it.server.addresses.grpc, QUICK) as client:
            want_links(client)
            link = await dialled.get()

        await link.ended.wait()


@pytest.mark.parametrize("error", [BadFrame("END: not JSON"), DecodeError("no NodeInfo")])
async def test_what_answers_there_may_be_no_node_of_ours(tmp_path, monkeypatch, error):
    async def node_at(link: NodeLink) -> admin.NodeInfo:
        raise error

    monkeypatch.setattr(links, "_node_at", node_at)
    async with running_server(tmp_path) as it, connect(it.server.addresses.grpc, QUICK) as client:
        await client._connection.settle_link()

        assert (await client.publish("orders", b"one")).offset == 0
        assert link_of(client) is None


async def test_what_a_node_says_of_its_http_may_be_no_address(tmp_path, monkeypatch):
    monkeypatch.setattr(links, "reachable", lambda *_: "http://localhost:no-port")
    async with running_server(tmp_path) as it, connect(it.server.addresses.grpc, QUICK) as client:
        await client._connection.settle_link()

        assert link_of(client) is None
        assert (await client.publish("orders", b"one")).offset == 0


async def test_a_subscription_moves_to_a_link_that_came_later_with_nothing_lost_or_repeated(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(links, "DIAL_S", 0.01)
    monkeypatch.setattr(links, "PAUSE_S", 0.0)
    async with running_server(tmp_path) as it:
        with swallowed(monkeypatch):
            client = await connect(it.server.addresses.grpc, QUICK).__aenter__()
            messages = await client.subscribe("orders", group="billing").__aenter__()
        monkeypatch.setattr(links, "DIAL_S", 600.0)
        made = messages.made_partitions
        received = []
        for number in range(2_000):
            await client.publish("orders", b"%d" % number)
            message = await anext(messages)
            received.append((message.value, message.attempt))
            await message.ack()
            # By then no node is asked who it is.
            if has_links(client) and any(link.open_calls for link in it.server.native.links):
                break
        await client.publish("orders", b"last")
        message = await anext(messages)
        await message.ack()

        assert received == [(b"%d" % number, 1) for number in range(len(received))]
        assert (message.value, message.attempt) == (b"last", 1)
        assert sum(link.open_calls for link in it.server.native.links) == 1
        assert messages.made_partitions == made > 0
        await client.__aexit__(None, None, None)


async def test_a_subscription_that_holds_a_message_does_not_move(tmp_path, monkeypatch):
    monkeypatch.setattr(links, "DIAL_S", 0.01)
    monkeypatch.setattr(links, "PAUSE_S", 0.0)
    async with running_server(tmp_path) as it:
        with swallowed(monkeypatch):
            client = await connect(it.server.addresses.grpc, QUICK).__aenter__()
            messages = await client.subscribe("orders", group="billing").__aenter__()
            await client.publish("orders", b"held")
            held = await anext(messages)
        monkeypatch.setattr(links, "DIAL_S", 600.0)
        while not has_links(client):
            want_links(client)
            await asyncio.sleep(0)
        for number in range(20):
            await client.publish("orders", b"%d" % number)
            message = await anext(messages)
            await message.ack()
            assert message.value == b"%d" % number

        assert sum(link.open_calls for link in it.server.native.links) == 0
        await held.ack()
        await client.__aexit__(None, None, None)


async def test_a_port_that_processes_share_is_dialled_until_the_right_one_answers(
    tmp_path, monkeypatch
):
    ask, others = links._node_at, [admin.NodeInfo(name="another")] * 2

    async def node_at(link: NodeLink) -> admin.NodeInfo:
        return others.pop() if others else await ask(link)

    monkeypatch.setattr(links, "_node_at", node_at)
    async with running_server(tmp_path) as it, linked(it.server) as (client, _):
        assert not others
        assert (await client.publish("orders", b"one")).offset == 0


async def test_who_leaves_while_a_node_is_asked_who_it_is_leaves_no_connection(
    tmp_path, monkeypatch
):
    """Not even if the node does not hang up, as TLS has it."""
    asked: list[NodeLink] = []

    async def node_at(link: NodeLink) -> admin.NodeInfo:
        asked.append(link)
        return await asyncio.Future()

    monkeypatch.setattr(links, "_node_at", node_at)
    monkeypatch.setattr(links, "CLOSE_S", 0)
    monkeypatch.setattr(NodeLink, "_hang_up", lambda link: None)
    async with running_server(tmp_path) as it:
        async with connect(it.server.addresses.grpc, QUICK) as client:
            want_links(client)
            await until(lambda: asked)

        await asked[0].ended.wait()


async def test_acks_pass_publishes_that_wait_for_their_turn(tmp_path):
    """A node that lets a publish wait reads nothing that comes behind it."""
    settings = ClientSettings(retry_delay_ms=1, close_timeout_ms=0)
    async with secured(tmp_path) as (server, secure):
        slow = credential_of(secure, Quotas(bytes_per_s=1_024), publish="out", consume="in")
        admin_credential = Credential.read(f"@{secure.admin_credential}")
        await server.access.reload()
        at = server.addresses.grpc
        async with (
            connect(at, settings, credential=slow) as client,
            connect(at, QUICK, credential=admin_credential) as other,
        ):
            want_links(client)
            await until(lambda: has_links(client))
            await other.publish("in", b"held")
            async with client.subscribe("in", group="g") as messages:
                message = await anext(messages)
                await client.publish("out", bytes(200 << 10))  # more than three minutes' worth
                waiting = asyncio.create_task(client.publish("out", b"waits"))
                await until(lambda: any(link.publishing.is_full for link in server.native.links))
                await message.ack()
                groups = server.native.node.groups
                await until(lambda: groups.get("in", "g").partitions[0].committed == 1)

                assert not waiting.done()
                assert len(groups.get("in", "g").members) == 1
                waiting.cancel()


async def test_who_only_publishes_or_only_reads_has_one_link(tmp_path):
    async with running_server(tmp_path) as it:
        at, known = it.server.addresses.grpc, it.server.native.links
        others = len(known)
        async with connect(at, QUICK) as client:
            assert len(known) == others
            await client.publish("orders", b"one")
            await until(lambda: publish_link_of(client) is not None)
            await client.publish("orders", b"two")
            assert (link_of(client), len(known)) == (None, others + 1)
        await until(lambda: len(known) == others)
        async with connect(at, QUICK) as client:
            replayed = [message.value async for message in client.replay("orders", offset=0)]
            await client.fetch("orders", 0, 0)
            await until(lambda: link_of(client) is not None)
            assert replayed == [b"one", b"two"]
            assert (publish_link_of(client), len(known)) == (None, others + 1)


async def test_the_stream_that_stood_in_for_a_link_ends_when_there_is_one(tmp_path):
    async with running_server(tmp_path) as it, connect(it.server.addresses.grpc, QUICK) as client:
        await client.publish("orders", b"one")
        await until(lambda: publish_link_of(client) is not None)
        await client.publish("orders", b"two")

        await until(lambda: it.server.calls.methods["Broker/PublishStream"].codes)
        assert (await client.publish("orders", b"three")).offset == 2


async def test_calls_for_which_a_link_has_no_room_go_by_grpc(tmp_path, monkeypatch):
    for module in (connection_module, native_link):
        monkeypatch.setattr(module, "CALLS_MAX", 2)
    async with (
        running_server(tmp_path) as it,
        linked(it.server) as (client, _),
        AsyncExitStack() as stack,
    ):
        for group in ("a", "b", "c"):
            await stack.enter_async_context(client.subscribe("orders", group=group))

        assert max(link.open_calls for link in it.server.native.links) == 2
        assert (await client.fetch("orders", 0, 0)).next_offset == 0
