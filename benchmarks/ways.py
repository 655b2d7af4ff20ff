"""How many of the node's files and functions lie on the way of one request.

    python -m benchmarks.ways             a table
    python -m benchmarks.ways --names     and which files they are

A node serves real sockets in this process; the clients are plain stubs and sockets, so what is
counted is the server's alone. Each way is gone several times, warm; what happens each time is
counted, in all threads, and what only happened meanwhile (a timer, a look at the disk) is not.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import grpc
import uvloop

import waterclock
from waterclock.log.schema import encode, from_messages
from waterclock.model.config import Config
from waterclock.model.message import Message
from waterclock.model.sections import ClusterConfig, NodeConfig
from waterclock.node.node import running_node
from waterclock.runtime.clock import SystemClock
from waterclock.server.app import serve
from waterclock.v1 import broker_pb2 as pb
from waterclock.v1 import broker_pb2_grpc

SOURCE = Path(waterclock.__file__).parent
ROUNDS = 10
SOON_MS = 300
"""How far ahead the scheduled message is due."""

Way = Callable[[], Awaitable[None]]


class Footprints:
    """Which of the node's code ran while it was asked to watch."""

    def __init__(self) -> None:
        self._seen: set[CodeType] | None = None
        # Before any thread is started: later ones are not seen.
        threading.setprofile(self._called)
        sys.setprofile(self._called)

    def _called(self, frame: FrameType, event: str, _: object) -> None:
        if self._seen is not None and event == "call":
            self._seen.add(frame.f_code)

    async def of(self, way: Way) -> set[CodeType]:
        """Return what ran every time a way was gone."""
        await way()
        rounds = []
        for _ in range(ROUNDS):
            self._seen = set()
            await way()
            seen, self._seen = self._seen, None
            rounds.append(seen)
            await asyncio.sleep(0.05)
        return {code for code in set.intersection(*rounds) if _is_ours(code)}


def _is_ours(code: CodeType) -> bool:
    path = Path(code.co_filename)
    is_generated = "_pb2" in path.name
    return path.is_relative_to(SOURCE) and not is_generated and not code.co_name.startswith("<")


class Ways:
    """The ways, each gone once by a call."""

    def __init__(self, channel: grpc.aio.Channel, sender: "Http", receiver: "Http") -> None:
        self._broker: Any = broker_pb2_grpc.BrokerStub(channel)
        self._sender = sender
        self._receiver = receiver
        # Made here: what a producer does is not the node's.
        ids = (b"id-%d" % i for i in range(ROUNDS + 1))
        self._batches = [bytes(encode(from_messages([Message(b"one", message_id=i)]))) for i in ids]
        self._stream: Any = self._broker.PublishStream()
        self._member: Any = self._broker.Subscribe()

    async def publish_single_grpc(self) -> None:
        """One message over gRPC."""
        await self._broker.Publish(
            pb.PublishRequest(topic="orders", message=pb.Message(value=b"one"))
        )

    async def publish_batch_grpc(self) -> None:
        """One batch over the stream that producers keep open."""
        request = pb.PublishBatchRequest(topic="orders", arrow=self._batches.pop())
        await self._stream.write(pb.PublishStreamRequest(sequence=1, batch=request))
        answer = await self._stream.read()
        assert answer.published.count == 1, answer

    async def publish_http(self) -> None:
        """One message over HTTP."""
        await self._sender.ask("POST /topics/orders/messages", {"value": "one"})

    async def subscribe(self) -> None:
        """Open the subscription that waits for the scheduled message."""
        opening = pb.SubscribeRequest.Open(topic="timed", group="g")
        credit = pb.Credit(messages=100, bytes=1 << 20)
        await self._member.write(pb.SubscribeRequest(open=opening, credit=credit))
        await self._member.read()

    async def scheduled(self) -> None:
        """A message published for later, fired, delivered to a group and acknowledged."""
        message = pb.Message(value=b"later", due_ms=int(time.time() * 1_000) + SOON_MS)
        await self._broker.Publish(pb.PublishRequest(topic="timed", message=message))
        while not (event := await self._member.read()).HasField("delivery"):
            pass
        delivery = event.delivery
        ack = pb.Answer(
            partition=delivery.partition, generation=delivery.generation, bounds=delivery.bounds
        )
        await self._member.write(pb.SubscribeRequest(answers=[ack]))
        await asyncio.sleep(0.05)

    async def receive(self) -> None:
        """A message received from an in-memory stream by one who waits for it."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._receiver.ask("GET /streams/receive?streamId=s&timeout=5s"))
            await asyncio.sleep(0.01)
            await self._sender.ask("POST /streams/send", {"streamId": "s", "message": "m"})


class Http:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ask(self, what: str, fields: object = None) -> None:
        """Send a request; it must succeed."""
        body = b"" if fields is None else json.dumps(fields).encode()
        head = f"{what} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
        assert answer.split()[1].startswith("2"), answer
        size = answer.partition("content-length: ")[2].split()[0]
        await self._reader.readexactly(int(size))


@asynccontextmanager
async def ways(folder: Path) -> AsyncIterator[Ways]:
    """Run and serve a node, and connect to it."""
    config = Config(
        node=NodeConfig(name="ways", data_folder=str(folder)),
        cluster=ClusterConfig(grpc_port=0, http_port=0),
    )
    async with (
        running_node(config, SystemClock()) as node,
        serve(node, config) as server,
        grpc.aio.insecure_channel(server.addresses.grpc) as channel,
    ):
        host, _, port = server.addresses.http.removeprefix("http://").rpartition(":")
        one, other = [Http(*await asyncio.open_connection(host, int(port))) for _ in range(2)]
        found = Ways(channel, one, other)
        await found.subscribe()
        yield found


async def measured() -> dict[str, set[CodeType]]:
    """Return the code on each way."""
    footprints = Footprints()
    with tempfile.TemporaryDirectory() as folder:
        async with ways(Path(folder)) as there:
            return {
                "publish, a single over gRPC": await footprints.of(there.publish_single_grpc),
                "publish, a batch over gRPC": await footprints.of(there.publish_batch_grpc),
                "publish, over HTTP": await footprints.of(there.publish_http),
                "scheduled, fired, consumed": await footprints.of(there.scheduled),
                "stream receive, over HTTP": await footprints.of(there.receive),
            }


def main() -> None:
    """Print how long each way is."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ways")
    parser.add_argument("--names", action="store_true", help="print the files and functions, too")
    options = parser.parse_args()
    found = uvloop.run(measured())
    print(f"{'way':30}{'files':>8}{'functions':>11}")
    for way, codes in found.items():
        files = sorted({code.co_filename for code in codes})
        print(f"{way:30}{len(files):8}{len(codes):11}")
        for file in files if options.names else []:
            names = sorted(code.co_qualname for code in codes if code.co_filename == file)
            print(f"    {Path(file).relative_to(SOURCE)}: {', '.join(names)}")


if __name__ == "__main__":
    main()
