"""A node as a process: it starts, is told to stop, and says in one line why it cannot start."""

import asyncio
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import uvloop

from tests.server.http_client import until
from tests.server.served import arrow_of, config_in
from waterclock.model.errors import BadConfig, FolderInUse
from waterclock.model.message import Message
from waterclock.model.sections import ClusterConfig
from waterclock.server.addresses import Addresses
from waterclock.server.process import keep_freed_memory, raise_open_files, run_node
from waterclock.v1 import broker_pb2 as pb
from waterclock.v1 import broker_pb2_grpc

TEST_S = 60
PROGRAM = """
import sys, uvloop
from tests.server.served import config_in
from waterclock.server.process import run_node
uvloop.run(run_node(config_in(sys.argv[1]), on_ready=lambda at: print(at.grpc, flush=True)))
print("ended", flush=True)
"""


@contextmanager
def node_process(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a node as a process; give it and its gRPC address."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


async def publish(broker: Any) -> None:
    arrow = arrow_of(Message(b"a", message_id=b"1"))
    await broker.PublishBatch(pb.PublishBatchRequest(topic="orders", arrow=arrow))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_node_well(tmp_path, number):
    async def test(process, address):
        async with grpc.aio.insecure_channel(address) as channel:
            broker: Any = broker_pb2_grpc.BrokerStub(channel)
            await publish(broker)
            call = broker.Fetch(pb.FetchRequest(topic="orders", offset=1, wait_ms=60_000))
            await publish(broker)  # by now the poll is there too
            process.send_signal(number)

            assert await call.code() == grpc.StatusCode.UNAVAILABLE

    with node_process(tmp_path) as (process, address):
        uvloop.run(test(process, address))
        assert process.stdout is not None
        assert process.stdout.read() == "ended\n"
        assert process.wait() == 0


def test_its_supervisor_hears_that_it_is_ready_reloads_and_stops(tmp_path, monkeypatch):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(tmp_path / "notify"))
        supervisor.settimeout(TEST_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        with node_process(tmp_path / "data") as (process, _):
            heard = [supervisor.recv(100)]
            process.send_signal(signal.SIGHUP)
            heard += [supervisor.recv(100).split()[0], supervisor.recv(100)]
            process.send_signal(signal.SIGTERM)
            heard.append(supervisor.recv(100))

            assert process.wait() == 0
            assert heard == [b"READY=1", b"RELOADING=1", b"READY=1", b"STOPPING=1"]


def test_a_second_signal_ends_it_at_once_and_loses_nothing(tmp_path):
    async def hold(process, address):
        async with grpc.aio.insecure_channel(address) as channel:
            broker: Any = broker_pb2_grpc.BrokerStub(channel)
            await publish(broker)
            call = broker.Subscribe()
            opening = pb.SubscribeRequest.Open(topic="orders", group="g")
            await call.write(pb.SubscribeRequest(open=opening))
            while not (await call.read()).HasField("delivery"):
                pass
            # It holds a message, so the first signal alone would wait for its ack.
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGINT)
            assert await asyncio.to_thread(process.wait) == 130

    async def fetch(address):
        async with grpc.aio.insecure_channel(address) as channel:
            broker: Any = broker_pb2_grpc.BrokerStub(channel)
            assert (await broker.Fetch(pb.FetchRequest(topic="orders"))).end_offset == 1

    with node_process(tmp_path) as (process, address):
        uvloop.run(hold(process, address))
    with node_process(tmp_path) as (_, address):
        uvloop.run(fetch(address))


async def test_what_keeps_it_from_starting_is_raised_as_ours(tmp_path):
    ready: list[Addresses] = []
    config = config_in(tmp_path)
    running = asyncio.ensure_future(run_node(config, on_ready=ready.append))
    await until(lambda: ready)
    taken = ClusterConfig(grpc_port=ready[0].grpc_port, http_port=0)
    elsewhere = config_in(tmp_path / "other", cluster=taken)
    with pytest.raises(FolderInUse):
        await run_node(config, on_ready=ready.append)
    with pytest.raises(BadConfig, match=r"cluster\.grpc_port: cannot listen on"):
        await run_node(elsewhere, on_ready=ready.append)
    assert len(ready) == 1
    assert ready[0].http.startswith("http://127.0.0.1:")

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


def test_as_many_files_may_be_open_as_the_system_allows():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        assert raise_open_files() == before[1]
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_freed_memory_is_kept_where_the_c_library_can_be_told():
    assert keep_freed_memory() == (os.confstr("CS_GNU_LIBC_VERSION") is not None)
