"""One node as one process, and as two that share its address: what each spends on a request."""

import asyncio
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.client import Stopwatch
from benchmarks.harness import is_smoke
from benchmarks.load import names, play
from benchmarks.node.publishing import WARM_UP_BATCHES, requests_of
from benchmarks.node.running import is_ready
from benchmarks.node.streaming import receive_from, send_to
from benchmarks.node.wire import fresh_topic, opened, published, stream_all
from benchmarks.peers.server import Server, cpu_seconds, free_port, started

PROCESSES = 2
SPLIT_RATE = 1_000
"""Requests a second from which a stream is split: more than each of many gets, less than one."""
SHARING, ALONE = "BENCH_PROCESSES", "BENCH_LONE_PROCESS"
"""Ports and process groups, as JSON."""


@contextmanager
def two_and_one(folder: Path) -> Iterator[Server]:
    """Run two processes as one node, and one by itself; the server is the former."""
    with (
        _node(folder / "two", SHARING, "--processes", str(PROCESSES)) as two,
        _node(folder / "one", ALONE) as one,
    ):
        two.client_environ |= one.client_environ
        yield two


@contextmanager
def _node(folder: Path, name: str, *words: str) -> Iterator[Server]:
    grpc_port, http_port = free_port(), free_port()
    command: list[str | Path] = [sys.executable, "-m", "waterclock", "up", "--json", *words]
    command += ["--data", folder / "data", "--set", f"streams.partition_rate={SPLIT_RATE}"]
    command += ["--grpc-port", str(grpc_port), "--http-port", str(http_port)]

    def are_ready() -> bool:
        return is_ready(http_port) and bool(_said(folder))

    with started(command, folder=folder, port=http_port, is_ready=are_ready) as server:
        said = _said(folder)
        groups = [each["pid"] for each in said.get("processes", [said])]
        facts = {"http": http_port, "grpc": grpc_port, "groups": groups}
        server.client_environ = {name: json.dumps(facts)}
        yield server


def _said(folder: Path) -> dict[str, Any]:
    """Return what the processes said of themselves, once they did."""
    lines = (folder / "output.log").read_text().splitlines()
    found: dict[str, Any] = next((json.loads(each) for each in lines if each[:1] == "{"), {})
    return found


# Clients


def streams(
    watch: Stopwatch,
    port: int,
    *,
    where: str,
    streams: int,
    seconds: int,
    before_s: int = 0,
    is_apart: bool = False,
) -> None:
    """Send to each stream in turn and receive from it, for some time before it counts; with
    `is_apart` each connection asks for streams of its own."""
    found = json.loads(os.environ[where])
    both = [
        request
        for name in names(f"both-{streams}", streams)
        for request in (send_to(name), receive_from(name))
    ]
    if before_s and not is_smoke():
        play(Stopwatch(0), found["http"], both, seconds=before_s)
    with _spending(watch, found["groups"]):
        play(watch, found["http"], both, seconds=seconds, is_apart=is_apart)


def batches(
    watch: Stopwatch,
    port: int,
    *,
    where: str,
    batch: int,
    messages: int,
    window: int,
    partitions: int,
    connections: int,
) -> None:
    """Publish batches to each partition in turn, on many connections."""
    found = json.loads(os.environ[where])

    async def run() -> None:
        async with AsyncExitStack() as stack:
            channel = await stack.enter_async_context(opened(found["grpc"]))
            topic = await stack.enter_async_context(fresh_topic(channel, partitions=partitions))
            channels = [
                await stack.enter_async_context(opened(found["grpc"], is_own=True))
                for _ in range(connections)
            ]
            count = messages // batch + WARM_UP_BATCHES
            requests = requests_of(topic, batch, count, partitions)
            await stream_all(channel, requests[:WARM_UP_BATCHES], window=window)
            requests = requests[WARM_UP_BATCHES:]
            with _spending(watch, found["groups"]), watch.running(len(requests) * batch):
                async with asyncio.TaskGroup() as tasks:
                    sent = [
                        tasks.create_task(
                            stream_all(one, requests[number::connections], window=window)
                        )
                        for number, one in enumerate(channels)
                    ]
            answers = [answer for each in sent for answer in each.result()]
            assert published(answers) == watch.messages

    uvloop.run(run())


@contextmanager
def _spending(watch: Stopwatch, groups: Sequence[int]) -> Iterator[None]:
    """Note what each process spends on a message."""
    before = list(map(cpu_seconds, groups))
    yield
    used = [cpu_seconds(group) - cpu for group, cpu in zip(groups, before, strict=True)]
    watch.server_cpu_s = sum(used)
    # Of a handful of requests the kernel may have seen nothing.
    watch.more["cpu_us"] = [max(each / watch.messages * 1e6, 0.001) for each in used]
