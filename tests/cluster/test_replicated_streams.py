"""Stored streams of whole nodes on a real etcd: what was acknowledged outlives the node."""

import asyncio
from itertools import count
from typing import Any

import pytest

from tests.cluster.joined import config_of, until
from tests.cluster.running_nodes import replicated_node
from tests.cluster.three_nodes import three_nodes
from tests.server.http_client import Answered, raw_client
from waterclock.node.node import Node, running_node
from waterclock.node.streams.partitions import PARTITIONS, partition_of_stream
from waterclock.node.topics import STREAMS_TOPIC
from waterclock.runtime.clock import SystemClock
from waterclock.stores.base import Record

pytestmark = pytest.mark.etcd

AGAIN = (424, 503)
"""The owner is away, or nobody knows whether it has stored the message: send it again."""


async def store(port: int, stream: str, uuid: str) -> Any:
    """Have a message stored, however often that has to be asked."""
    body = {"streamId": stream, "message": uuid, "messageUuid": uuid}
    while True:
        async with raw_client(port) as client:
            answer = await client.post("/streams/sendAndStore", body)
        if answer.status not in AGAIN:
            assert answer.status == 201, answer.body
            return answer.json()


async def receive(port: int, stream: str, token: str, query: str = "") -> Answered:
    async with raw_client(port) as client:
        path = f"/streams/receive?streamId={stream}&resumeToken={token}&{query}"
        return await client.get(path)


async def is_storing(node: Node) -> None:
    """Return when a node's store is open."""
    await until(lambda: node.persister.problem is None)


def leader_of(node: Node, stream: str) -> str | None:
    assert node.replicated_streams is not None
    partition = partition_of_stream(stream.encode(), PARTITIONS)
    return node.replicated_streams.places.leader_of(STREAMS_TOPIC, partition)


async def test_what_was_stored_outlives_its_leader_with_its_positions(tmp_path, member):
    async with three_nodes(tmp_path, member.endpoint) as ((a, b), ports, _, process):
        streams = [f"s{number}" for number in range(12)]
        stored: dict[str, dict[str, int]] = {stream: {} for stream in streams}
        tokens: dict[str, str] = {}
        numbers = count()

        async def send(port: int, rounds: int) -> None:
            for number in [next(numbers) for _ in range(rounds)]:
                stream, uuid = streams[number % len(streams)], f"m{number}"
                answer = await store(port, stream, uuid)
                stored[stream][uuid] = answer["position"]
                if answer["position"] == 1:
                    tokens[stream] = answer["resumeToken"]

        await asyncio.gather(*(send(port, 12) for port in ports))
        lost = next(stream for stream in streams if leader_of(a, stream) == "c")
        last = await store(ports[0], lost, "last before")
        stored[lost]["last before"] = last["position"]
        waiting = asyncio.ensure_future(receive(ports[1], lost, last["resumeToken"]))
        sending = asyncio.gather(*(send(port, 24) for port in ports[:2]))
        process.kill()
        await sending
        after = await store(ports[0], lost, "after")
        stored[lost]["after"] = after["position"]

        # Who waited gets what came next, by whichever owner.
        answer = await waiting
        assert answer.status == 200, answer.body
        assert answer.json()["messageUuid"] in stored[lost]
        await until(lambda: all(leader_of(b, stream) in ("a", "b") for stream in streams))
        for port in ports[:2]:
            async with raw_client(port) as client:
                metrics = (await client.get("/metrics")).body.decode()
            # Nobody was waited for in vain: nodes were linked before they had streams to move.
            assert "waterclock_handover_timeouts_total 0.0\n" in metrics
        for stream in streams:
            for port in ports[:2]:
                page = (await receive(port, stream, "earliest", "limit=100")).json()["messages"]
                found = {each["messageUuid"]: number for number, each in enumerate(page, 1)}
                assert found.items() >= stored[stream].items()
                rest = (await receive(port, stream, tokens[stream], "limit=100")).json()["messages"]
                assert [each["messageUuid"] for each in rest] == list(found)[1:]


async def test_a_node_that_was_alone_brings_its_stored_streams(tmp_path, member):
    alone = config_of(tmp_path, "a", cluster={"bootstrap_nodes": ()})
    async with running_node(alone, SystemClock()) as node:
        for stream in ("s", "t"):
            for uuid in ("x", "y", "z"):
                await node.persister.store(stream, Record(uuid, uuid.encode()))
        await node.persister.delete("t")
        key = node.metadata.get("streams/token_key")

    one = {"name": "one", "etcd": (member.endpoint,), "expect": 1, "bootstrap_nodes": ()}
    for uuid, position in (("v", 4), ("w", 5)):  # when it comes, and again
        async with replicated_node(config_of(tmp_path, "a", cluster=one)) as (node, _):
            await is_storing(node)
            assert node.metadata.get("streams/token_key") == key
            page = await node.persister.read("s", after=0, limit=3)
            assert [(m.position, m.message_id) for m in page.messages] == [
                (1, "x"), (2, "y"), (3, "z"),
            ]  # fmt: skip
            assert (await node.persister.store("s", Record("y", b""))) == (2, False)
            for stream in ("s", "t"):
                assert (await node.persister.store(stream, Record(uuid, b""))) == (position, True)
    assert not (tmp_path / "a" / "streams").exists()
