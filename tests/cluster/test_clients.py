"""Clients of a cluster: any node leads them to the others, and they go on without it."""

import asyncio

from tests.cluster.joined import agreed, joined_node, node_process, until
from waterclock.client.client import connect
from waterclock.client.settings import ClientSettings
from waterclock.v1 import admin_pb2

TEST_S = 60
QUICK = ClientSettings(retry_delay_ms=1, retry_delay_ms_max=20)


async def test_a_node_names_the_nodes_of_its_cluster(tmp_path):
    async with (
        asyncio.timeout(TEST_S),
        joined_node(tmp_path, "a") as a,
        joined_node(tmp_path, "b", a) as b,
    ):
        await agreed(a, b)
        node = await a.admin.GetNode(admin_pb2.GetNodeRequest())

        assert {(each.name, each.address, each.http_address) for each in node.nodes} == {
            (it.name, it.server.addresses.grpc, it.server.addresses.http) for it in (a, b)
        }


async def test_a_client_goes_on_when_the_node_it_was_given_is_killed(tmp_path):
    async with asyncio.timeout(TEST_S), joined_node(tmp_path, "a") as a:
        with node_process(tmp_path, "b", a) as process:
            await until(lambda: a.ring == ("a", "b"))
            (b,) = (each for each in a.membership.addresses() if each.name == "b")
            async with connect(b.address, QUICK) as client:
                stream = a.stream_of("a")
                await client.streams.send(stream, 1)
                followed = client.streams.follow(stream)
                assert (await anext(followed)).value == 1
                async with asyncio.TaskGroup() as tasks:
                    waiting = tasks.create_task(anext(followed))
                    await asyncio.sleep(0)
                    process.kill()
                    process.wait()
                    await client.streams.send(stream, 2)
                    assert (await waiting).value == 2
                assert (await client.node()).name == "a"
                assert (await client.cluster.members())[0].name == "a"
