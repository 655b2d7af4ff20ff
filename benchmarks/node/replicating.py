"""Three nodes of ours and an etcd, and clients that publish to a topic that all of them keep.

The nodes are processes of one server, so what they use is counted together, and etcd with them.
Clients ask who leads, and publish there, as clients of the peers do.
"""

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import grpc
import uvloop

from benchmarks.client import Stopwatch
from benchmarks.node.fleet import Layout, partitions_of
from benchmarks.node.publishing import WARM_UP_BATCHES, requests_of
from benchmarks.node.timing import talk
from benchmarks.node.wire import fresh_topic, opened, published, stream_all
from benchmarks.peers.cache import Absent
from benchmarks.peers.server import Server, started_together

PORTS = "BENCH_NODES"
"""In a client's environment: by node, its ports of gRPC and HTTP."""
LEADER_S_MAX = 30.0
PAUSE_S = 0.05


@contextmanager
def running(folder: Path) -> Iterator[Server]:
    """Run nodes that replicate topics; the server is the first of them."""
    layout = Layout(folder)
    first = next(iter(layout.ports.values()))[0]
    with started_together(
        [layout.etcd(), *map(layout.node, layout.ports)], folder=folder, port=first,
        environ=layout.programs.environ(), is_ready=layout.are_ready,
    ) as server:  # fmt: skip
        server.version = layout.version
        server.client_environ[PORTS] = json.dumps(layout.ports)
        uvloop.run(_make_topic(first))
        yield server


async def _make_topic(port: int) -> None:
    """See that nodes make topics together; raises Absent if they do not."""
    try:
        async with opened(port) as channel, fresh_topic(channel):
            pass
    except grpc.aio.AioRpcError as error:
        raise Absent(f"the nodes make no topic: {error.details()}") from error


# Clients


def batches(
    watch: Stopwatch, port: int, *, batch: int, messages: int, window: int, connections: int
) -> None:
    """Publish batches to a topic of one partition, on each connection a window of them at once."""

    async def run() -> None:
        async with AsyncExitStack() as stack:
            channel = await stack.enter_async_context(opened(port))
            topic = await stack.enter_async_context(fresh_topic(channel))
            leader = await leader_port(topic)
            channels = [await stack.enter_async_context(opened(leader)) for _ in range(connections)]
            requests = requests_of(topic, batch, messages // batch + WARM_UP_BATCHES, 1)
            first, requests = requests[:WARM_UP_BATCHES], requests[WARM_UP_BATCHES:]
            await stream_all(channels[0], first, window=window)
            with watch.running(len(requests) * batch):
                async with asyncio.TaskGroup() as tasks:
                    streams = [
                        tasks.create_task(
                            stream_all(one, requests[number::connections], window=window)
                        )
                        for number, one in enumerate(channels)
                    ]
            answers = [answer for stream in streams for answer in stream.result()]
            assert published(answers) == watch.messages

    uvloop.run(run())


def latency(watch: Stopwatch, port: int, *, rate: int, messages: int) -> None:
    """Publish at a rate to the leader of a topic and consume; tell how long both took."""

    async def run() -> None:
        async with opened(port) as channel, fresh_topic(channel) as topic:
            await talk(watch, await leader_port(topic), topic, rate=rate, messages=messages)

    uvloop.run(run())


async def leader_port(topic: str) -> int:
    """Return where to ask the leader of a topic of one partition, once there is one."""
    ports: dict[str, tuple[int, int]] = json.loads(os.environ[PORTS])
    http_port = next(iter(ports.values()))[1]
    async with asyncio.timeout(LEADER_S_MAX):
        while True:
            for view in await asyncio.to_thread(partitions_of, http_port):
                if view["topic"] == topic and view["leader"]:
                    return ports[view["leader"]][0]
            await asyncio.sleep(PAUSE_S)
