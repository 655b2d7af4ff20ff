"""One busy stream: at one node, and split over three, with clients at all of them."""

import http.client
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.client import Stopwatch
from benchmarks.harness import is_smoke
from benchmarks.load import BODY, play, post
from benchmarks.node.clustering import member, ring_nodes
from benchmarks.node.running import running
from benchmarks.node.streaming import receive_from, send_to
from benchmarks.peers.server import Server, cpu_seconds, free_port
from waterclock.server.cluster.ownership import RingOwnership

STREAM = "hot"
NODES = ("one", "two", "three")
SHARING, ALONE = "BENCH_SHARING_NODES", "BENCH_LONE_NODE"
"""Ports and process groups of nodes, as JSON."""
RATE = 50
"""Requests a second that are too many for one node: few, so that any client splits the stream."""
SPLIT_S_MAX = 60.0
PATIENCE_S = 20


@contextmanager
def three_and_one(folder: Path) -> Iterator[Server]:
    """Run three nodes that split a busy stream, and one by itself; the server is the owner."""
    ports = {name: free_port() for name in _order()}
    gossip = {name: free_port() for name in ports}
    seeds = ",".join(f"127.0.0.1:{port}" for port in gossip.values())
    with ExitStack() as stack:
        servers = [
            stack.enter_context(
                member(
                    folder / name,
                    name,
                    http_port=port,
                    gossip_port=gossip[name],
                    seeds=seeds,
                    more={"streams.partition_rate": RATE},
                )
            )
            for name, port in ports.items()
        ]
        alone = stack.enter_context(running(folder / "alone", is_http=True))
        owner = servers[0]
        owner.client_environ = {SHARING: _listed(servers), ALONE: _listed([alone])}
        log = folder / _order()[0] / "output.log"
        owner.wait_for(lambda: all(ring_nodes(port) == 3 for port in ports.values()), log)
        yield owner


def _listed(servers: Sequence[Server]) -> str:
    return json.dumps([[each.port, each.group] for each in servers])


def _order() -> list[str]:
    """Give the nodes, the owner of the stream first."""
    ownership = RingOwnership(NODES[0])
    ownership.update(dict.fromkeys(NODES, ""))
    return list(ownership.ring.successors(STREAM))


# Clients


def everywhere(watch: Stopwatch, port: int, *, where: str, seconds: int) -> None:
    """Send and receive in turn, at every node."""
    nodes: dict[int, int] = dict(json.loads(os.environ[where]))
    both = [send_to(STREAM), receive_from(STREAM)]
    _split(nodes)
    _measure(watch, nodes, [(each, both) for each in nodes], seconds)


def apart(watch: Stopwatch, port: int, *, where: str, seconds: int) -> None:
    """Send at one node, and receive at another; if there are three, neither is the owner."""
    nodes: dict[int, int] = dict(json.loads(os.environ[where]))
    _split(nodes)
    sending, receiving = (list(nodes) * 2)[-2:]
    sent = {
        "streamId": STREAM,
        "message": json.loads(BODY),
        "blockingSendTimeoutSeconds": PATIENCE_S,
    }
    plays = [(sending, [post("/streams/send", json.dumps(sent).encode())])]
    plays += [(receiving, [receive_from(STREAM)])]
    _measure(watch, nodes, plays, seconds)


def _split(nodes: Mapping[int, int]) -> None:
    """Keep the stream busy until it is split over all nodes."""
    deadline = time.monotonic() + SPLIT_S_MAX
    while len(nodes) > 1 and not is_smoke() and not all(map(_has_part, nodes)):
        if time.monotonic() > deadline:
            raise RuntimeError("the stream is not split")
        play(Stopwatch(0), next(iter(nodes)), [send_to(STREAM), receive_from(STREAM)], seconds=1)


def _has_part(port: int) -> bool:
    connection = http.client.HTTPConnection("localhost", port, timeout=5)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    finally:
        connection.close()
    return "waterclock_hot_stream_partitions 1" in text


def _measure(
    watch: Stopwatch,
    nodes: Mapping[int, int],
    plays: Sequence[tuple[int, list[bytes]]],
    seconds: int,
) -> None:
    """Play all requests at once, each at its port; tell what each node spends on a request."""
    before = [cpu_seconds(group) for group in nodes.values()]
    watches = [Stopwatch(nodes[port]) for port, _ in plays]
    with ThreadPoolExecutor(len(plays)) as threads:
        jobs = [
            threads.submit(play, each, port, requests, seconds=seconds)
            for each, (port, requests) in zip(watches, plays, strict=True)
        ]
        for job in jobs:
            job.result()
    used = [cpu_seconds(group) - cpu for group, cpu in zip(nodes.values(), before, strict=True)]
    watch.messages = sum(each.messages for each in watches)
    watch.wall_s = max(each.wall_s for each in watches)
    watch.server_cpu_s = sum(used)
    # Of a handful of requests the kernel may have seen nothing.
    watch.more["cpu_us"] = [max(each / watch.messages * 1e6, 0.001) for each in used]
