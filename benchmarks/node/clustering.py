"""Two nodes of a cluster, and clients that ask one of them for streams of the other."""

import http.client
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import count, islice
from pathlib import Path
from socket import socket

import numpy as np

from benchmarks.client import Stopwatch
from benchmarks.load import answer_bytes, play
from benchmarks.node.running import is_ready
from benchmarks.node.streaming import Talk, receive_from, send_to
from benchmarks.peers.server import Server, cpu_seconds, free_port, started
from benchmarks.peers.wire import READ_BYTES, connect
from benchmarks.polling import SETTLE_S, STREAM_WAITERS, WARM_UP_POLLS, allow_files, rss_kb
from waterclock.server.cluster.ownership import RingOwnership

FRONT, OWNER = "front", "owner"
OWNER_PORT, OWNER_GROUP = "BENCH_OWNER_PORT", "BENCH_OWNER_GROUP"
WARM_UP_REQUESTS = 200


# Nodes


@contextmanager
def pair(folder: Path) -> Iterator[Server]:
    """Run two nodes that know each other; the server is the front one."""
    ports = {name: free_port() for name in (FRONT, OWNER)}
    gossip = {name: free_port() for name in ports}
    seeds = ",".join(f"127.0.0.1:{port}" for port in gossip.values())
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(
                member(folder / name, name, http_port=port, gossip_port=gossip[name], seeds=seeds)
            )
            for name, port in ports.items()
        }
        front, owner = servers[FRONT], servers[OWNER]
        front.client_environ = {OWNER_PORT: str(owner.port), OWNER_GROUP: str(owner.group)}
        log = folder / FRONT / "output.log"
        front.wait_for(lambda: all(ring_nodes(port) == 2 for port in ports.values()), log)
        yield front


def member(
    folder: Path,
    name: str,
    *,
    http_port: int,
    gossip_port: int,
    seeds: str,
    more: Mapping[str, object] | None = None,
) -> AbstractContextManager[Server]:
    """Run a node of a cluster."""
    settings: dict[str, object] = {
        "node.name": name,
        "cluster.gossip_port": gossip_port,
        "cluster.peer_port": free_port(),
        "cluster.bootstrap_nodes": seeds,
        **(more or {}),
    }
    command: list[str | Path] = [sys.executable, "-m", "waterclock", "up"]
    command += ["--data", folder / "data", *(f"--set={k}={v}" for k, v in settings.items())]
    command += ["--grpc-port", str(free_port()), "--http-port", str(http_port)]
    return started(command, folder=folder, port=http_port, is_ready=lambda: is_ready(http_port))


def ring_nodes(http_port: int) -> int:
    """Ask a node how many own streams."""
    connection = http.client.HTTPConnection("localhost", http_port, timeout=5)
    try:
        connection.request("GET", "/cluster/ring")
        return len(json.loads(connection.getresponse().read())["nodes"])
    finally:
        connection.close()


# Clients


def owned(kind: str, number: int) -> list[str]:
    """Give names of streams that belong to the owner."""
    ownership = RingOwnership(FRONT)
    ownership.update({FRONT: "", OWNER: ""})
    return list(islice((n for i in count() if ownership.owner(n := f"{kind}-{i}")), number))


def latency(watch: Stopwatch, port: int, *, requests: int) -> None:
    """Send and receive one by one, at the owner and at the front in turn; tell the medians."""
    wires = {OWNER: connect(int(os.environ[OWNER_PORT])), FRONT: connect(port)}
    names = owned("latency", 100)
    took = {
        f"{where}_{what}": np.zeros(requests) for where in wires for what in ("send", "receive")
    }
    for number in range(-WARM_UP_REQUESTS, requests):
        name = names[number % len(names)]
        for where, wire in wires.items():
            for what, request in (("send", send_to(name)), ("receive", receive_from(name))):
                begun = time.perf_counter()
                _ask(wire, request)
                if number >= 0:
                    took[f"{where}_{what}"][number] = time.perf_counter() - begun
    watch.messages, watch.wall_s = 4 * requests, float(sum(map(np.sum, took.values())))
    watch.more |= {name: float(np.median(each)) * 1_000 for name, each in took.items()}
    for wire in wires.values():
        wire.close()


def _ask(wire: socket, request: bytes) -> None:
    wire.sendall(request)
    answer = b""
    while answer_bytes(answer) is None:
        answer += wire.recv(READ_BYTES)
    if not answer.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(f"refused: {answer[:400]!r}")


def at_owner(watch: Stopwatch, port: int, *, streams: int, seconds: int) -> None:
    """Send to each stream in turn and receive from it, at its owner."""
    _send_receive(watch, int(os.environ[OWNER_PORT]), streams, seconds)


def at_front(watch: Stopwatch, port: int, *, streams: int, seconds: int) -> None:
    """The same at the other node."""
    _send_receive(watch, port, streams, seconds)


def _send_receive(watch: Stopwatch, port: int, streams: int, seconds: int) -> None:
    found = owned("both", streams)
    both = [request for name in found for request in (send_to(name), receive_from(name))]
    groups = {FRONT: watch.group, OWNER: int(os.environ[OWNER_GROUP])}
    before = {name: cpu_seconds(group) for name, group in groups.items()}
    play(watch, port, both, seconds=seconds)
    for name, group in groups.items():
        used = cpu_seconds(group) - before[name]
        watch.more[f"{name}_cpu_us"] = used / watch.messages * 1e6


def waiters(watch: Stopwatch, port: int, *, polls: int) -> None:
    """Let polls wait at the front; tell what each node's memory grew by."""
    allow_files(polls + WARM_UP_POLLS)
    groups = {FRONT: watch.group, OWNER: int(os.environ[OWNER_GROUP])}
    for wire in _wait(port, [connect(port) for _ in range(WARM_UP_POLLS)]):
        wire.close()
    wires = [connect(port) for _ in range(polls)]
    time.sleep(SETTLE_S)
    idle = {name: rss_kb(group) for name, group in groups.items()}
    with watch.running(polls):
        _wait(port, wires)
        time.sleep(SETTLE_S)
    for name, group in groups.items():
        watch.more[f"{name}_bytes"] = (rss_kb(group) - idle[name]) * 1_024 / polls
    for wire in wires:
        wire.close()


def _wait(port: int, wires: list[socket]) -> list[socket]:
    talk = Talk(is_broadcast=False)
    found = owned(f"hold-{time.monotonic_ns()}", -(-len(wires) // STREAM_WAITERS))
    for number, wire in enumerate(wires):
        wire.sendall(talk.poll(found[number % len(found)], 0, b""))
    return wires
