"""The client over the native protocol: when it is used, and what happens when it is not there."""

import asyncio

from tests.client.fake_node import fake_node
from tests.server.http_client import until
from tests.server.served import running_server
from waterclock.client.client import Client, connect
from waterclock.client.native import links
from waterclock.client.native.link import NodeLink
from waterclock.client.settings import ClientSettings
from waterclock.model.sections import ClusterConfig
from waterclock.v1 import admin_pb2 as admin

QUICK = ClientSettings(retry_delay_ms=1, native=True)


def link_of(client: Client) -> NodeLink | None:
    connection = client._connection
    return connection.native.find(connection.address)


async def test_a_node_that_offers_it_is_published_to_and_read_by_it(tmp_path):
    async with running_server(tmp_path) as it, connect(it.server.addresses.grpc, QUICK) as client:
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
    settings = ClientSettings(retry_delay_ms=1)
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
    async with running_server(tmp_path) as it, connect(it.server.addresses.grpc, QUICK) as client:
        await client.publish("orders", b"first")
        publishes = [asyncio.create_task(client.publish("orders", b"%d" % i)) for i in range(300)]
        await asyncio.sleep(0)
        link = link_of(client)
        assert link is not None
        link.abort()
        receipts = await asyncio.gather(*publishes)

        assert sorted(receipt.offset for receipt in receipts) == list(range(1, 301))
        assert it.node.topics.get("orders").partitions[0].store.acknowledged_end == 301


async def test_a_batch_larger_than_a_frame_is_published_all_the_same(tmp_path):
    async with running_server(tmp_path) as it, connect(it.server.addresses.grpc, QUICK) as client:
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
        await found.meet(node, at.grpc, is_alone=True)
        assert found.find(at.grpc) is None
        node.http_address = at.http
        await found.meet(node, at.grpc, is_alone=True)
        assert found.find(at.grpc) is not None
        found.close()


async def test_a_node_that_was_started_anew_is_linked_to_again(tmp_path, monkeypatch):
    monkeypatch.setattr(links, "PAUSE_S", 0.0)
    async with running_server(tmp_path) as it:
        at = it.server.addresses
        client = await connect(at.grpc, QUICK).__aenter__()
        await client.publish("orders", b"one")
        first = link_of(client)
    ports = ClusterConfig(grpc_port=at.grpc_port, http_port=at.http_port)
    async with running_server(tmp_path, cluster=ports) as it:
        assert (await client.publish("orders", b"two")).offset == 1
        await until(lambda: link_of(client) is not None)

        assert link_of(client) is not first
        await client.__aexit__(None, None, None)
