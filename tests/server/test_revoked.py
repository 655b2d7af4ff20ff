"""Who is revoked is cut off in the middle of whatever they do, and is told why; who is not hears
nothing of keys and certificates that are rotated."""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from tests.server.secure_serving import CLOCK, SecureNode, secure_node
from tests.server.served import failure
from waterclock import Client, Message, NotAuthenticated, connect
from waterclock.model.units import MIB
from waterclock.security.credential import Credential
from waterclock.v1 import broker_pb2 as pb

BOUND_S = 30
"""Far beyond the second in which it should be: here it is only asked whether they end."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureNode]:
    with secure_node(tmp_path_factory.mktemp("node")) as it:
        yield it


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 - it is the node that goes on
        await asyncio.sleep(0.01)


def credential_of(node: SecureNode, name: str, *, publish: str, read: str) -> Credential:
    token = node.add(name, publish=publish, consume=read, read=read).removeprefix("Bearer ")
    address = f"localhost:{node.server.grpc_port}"
    return Credential(address, f"https://localhost:{node.port}", node.folder.ca.read_bytes(), token)


async def publish(client: Client) -> None:
    while True:
        await client.publish("orders", bytes(1_000))


async def publish_many(client: Client) -> None:
    while True:
        await client.publish_many("orders", [Message(bytes(10))] * 100)


async def consume(client: Client) -> None:
    async with client.subscribe("orders", group="g") as messages:
        async for message in messages:
            await message.ack()
    raise AssertionError("the subscription ended well")


async def wait_for_messages(client: Client) -> None:
    async with client.subscribe("silent", group="g") as messages:
        async for _ in messages:
            pass
    raise AssertionError("the subscription ended well")


async def replay(client: Client) -> None:
    while True:
        async for _ in client.replay("orders"):
            pass


async def receive(client: Client) -> None:
    await client.streams.receive("silent", timeout="5m")


async def follow(client: Client) -> None:
    async for _ in client.streams.follow("silent"):
        pass


async def test_a_client_hears_that_it_was_revoked_whatever_it_does(node: SecureNode) -> None:
    credential = credential_of(node, "busy", publish="*", read="*")
    works = [publish, publish_many, consume, wait_for_messages, replay, receive, follow]
    async with connect(credential=credential) as client, asyncio.timeout(BOUND_S):
        await client.publish("orders", b"first")
        await client.publish("silent", b"only")
        tasks = [asyncio.ensure_future(work(client)) for work in works]
        for _ in range(50):  # all are at it
            await client.publish("orders", b"x")
        node.folder.revoke("busy")
        revoked_at = time.monotonic()

        heard = await asyncio.gather(*tasks, return_exceptions=True)
        print(
            f"all {len(works)} ended {time.monotonic() - revoked_at:.2f} s after they were revoked"
        )

    assert [type(error) for error in heard] == [NotAuthenticated] * len(works), heard


async def test_a_call_whose_first_answer_is_not_taken_ends_too(node: SecureNode) -> None:
    credential = credential_of(node, "slow", publish="large", read="large")
    async with connect(credential=credential) as client:
        await client.publish("large", bytes(8 * MIB))
    metadata = (("authorization", f"Bearer {credential.token}"),)
    credentials = grpc.ssl_channel_credentials(credential.ca_pem)
    options = [("grpc.max_receive_message_length", -1)]
    channel = grpc.aio.secure_channel(credential.grpc_address, credentials, options)
    async with channel, asyncio.timeout(BOUND_S):
        replay: Any = channel.stream_stream("/waterclock.v1.Broker/Replay")
        call = replay(metadata=metadata)
        begin = pb.ReplayRequest.Begin(topic="large")
        await call.write(pb.ReplayRequest(begin=begin).SerializeToString())
        await call.initial_metadata()
        # What the node writes now is larger than what the client lets in unread.
        reloads = node.server.access.reloads
        node.folder.revoke("slow")
        await until(lambda: node.server.access.reloads > reloads)
        assert (await failure(drained(call)))[0] is grpc.StatusCode.UNAUTHENTICATED


async def drained(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


def test_a_connection_that_is_kept_does_nothing_more(node: SecureNode) -> None:
    bearer = node.add("kept", read="*")
    connection = node.connect()
    assert node.ask("GET", "/topics", bearer, connection=connection).status == 200
    node.folder.revoke("kept")
    node.reload()
    assert node.ask("GET", "/topics", bearer, connection=connection).status == 401
    connection.close()


async def test_rotating_the_certificate_and_keys_fails_no_call(node: SecureNode) -> None:
    """Single calls, batches, a subscription and new connections go on through three rotations."""
    credential = credential_of(node, "steady", publish="rotated", read="rotated")
    done = dict.fromkeys(("single", "many", "anew", "consumed"), 0)

    async def single(client: Client) -> None:
        while True:
            await client.publish("rotated", b"x")
            done["single"] += 1

    async def many(client: Client) -> None:
        while True:
            await client.publish_many("rotated", [Message(b"x")] * 10)
            done["many"] += 1

    async def anew() -> None:
        while True:
            async with connect(credential=credential) as client:
                await client.topics.get("rotated")
                done["anew"] += 1

    async def consumed(client: Client) -> None:
        async with client.subscribe("rotated", group="g") as messages:
            async for message in messages:
                await message.ack()
                done["consumed"] += 1

    async with connect(credential=credential) as client, asyncio.timeout(2 * BOUND_S):
        await client.publish("rotated", b"first")
        async with asyncio.TaskGroup() as tasks:
            works = [single(client), many(client), anew(), consumed(client)]
            running = [tasks.create_task(work) for work in works]
            certificate = node.server.access.state.node
            for _ in range(3):
                await asyncio.to_thread(node.folder.rotate, now_ms=CLOCK.now_ms())
                newest, before = node.folder.load().node, dict(done)
                await until(lambda: node.server.access.state.node == newest)  # noqa: B023
                await until(lambda: all(done[name] > before[name] + 1 for name in done))  # noqa: B023
            for task in running:  # one that had failed would have ended the group
                task.cancel()
    assert node.server.access.state.node != certificate
