"""Stored streams of whole nodes on a real etcd: what was acknowledged outlives the node."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.server import free_port
from tests.cluster.joined import config_of, until
from tests.cluster.running_nodes import RunningNode, replicated_node
from tests.server.http_client import Answered, raw_client
from waterclock.model.config import Config
from waterclock.node.node import Node, running_node
from waterclock.node.streams.partitions import PARTITIONS, partition_of_stream
from waterclock.node.topics import STREAMS_TOPIC
from waterclock.runtime.clock import SystemClock
from waterclock.stores.base import Record

pytestmark = pytest.mark.etcd

AGAIN = (424, 503)
"""The owner is away, or nobody knows whether it has stored the message: send it again."""
PROGRAM = """
import sys, uvloop
from pathlib import Path
from tests.cluster.test_replicated_streams import config_in_cluster
from waterclock.server.process import run_node
folder, name, etcd, gossip_port = sys.argv[1:]
config = config_in_cluster(Path(folder), name, etcd, int(gossip_port))
uvloop.run(run_node(config, on_ready=lambda at: print(at.http, flush=True)))
"""


def config_in_cluster(folder: Path, name: str, etcd: str, gossip_port: int) -> Config:
    """Return the configuration of one of three nodes, which meet by their etcd."""
    cluster = {
        "name": "three",
        "etcd": (etcd,),
        "expect": 3,
        "bootstrap_nodes": (),
        "gossip_port": gossip_port,
    }
    return config_of(folder, name, cluster=cluster)


@contextmanager
def node_process(*arguments: object) -> Iterator["subprocess.Popen[str]"]:
    """Run a node in a process of its own, which is killed at the end."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *map(str, arguments)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@asynccontextmanager
async def three_nodes(
    folder: Path, etcd: str
) -> AsyncIterator[tuple[list[Node], list[int], "subprocess.Popen[str]"]]:
    """Run two nodes in this process and one that may be killed; give them and all HTTP ports."""
    ports = [free_port() for _ in range(3)]
    async with asyncio.TaskGroup() as tasks:
        with node_process(folder, "c", etcd, ports[2]) as process:
            # Side by side: a cluster forms when all of them are there.
            running = [
                RunningNode(config_in_cluster(folder, name, etcd, port))
                for name, port in zip("ab", ports, strict=False)
            ]
            for each in running:
                tasks.create_task(each.run())
            started = [await each.started for each in running]
            assert process.stdout is not None
            address = await asyncio.to_thread(process.stdout.readline)
            http = [server.http_port for _, server in started]
            http.append(int(address.strip().rpartition(":")[2]))
            yield [node for node, _ in started], http, process
            for each in running:
                each.end()


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
    async with three_nodes(tmp_path, member.endpoint) as ((a, b), ports, process):
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
