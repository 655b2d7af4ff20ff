"""A real node in a folder, served on real sockets, and a client of plain stubs."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import grpc

from waterclock.client.native.channel import NativeChannel
from waterclock.client.native.link import dial
from waterclock.log.schema import encode, from_messages
from waterclock.model.clock import Clock
from waterclock.model.config import Config
from waterclock.model.message import Message
from waterclock.model.sections import ClusterConfig, LogConfig, NodeConfig
from waterclock.model.units import MIB
from waterclock.node.node import Node, running_node
from waterclock.runtime.clock import SystemClock
from waterclock.server.app import Server, serve
from waterclock.v1 import (
    admin_pb2_grpc,
    broker_pb2_grpc,
    scheduler_pb2_grpc,
    write_registry_pb2_grpc,
)
from waterclock.v1 import broker_pb2 as pb

THROUGH = "WATERCLOCK_THROUGH"
"""Set: nodes of `running_server` are asked by way of another one (`make test-through`)."""
NATIVE = "WATERCLOCK_NATIVE"
"""Set: nodes of `running_server` are asked by the native protocol, and so are all nodes by clients
of the suite of the client (`make test-native`)."""


@dataclass
class Served:
    """What a test has in hand."""

    node: Node
    server: Server
    channel: grpc.aio.Channel

    def __post_init__(self) -> None:
        self.broker: Any = broker_pb2_grpc.BrokerStub(self.channel)
        self.scheduler: Any = scheduler_pb2_grpc.SchedulerStub(self.channel)
        self.admin: Any = admin_pb2_grpc.AdminStub(self.channel)
        self.write_registry: Any = write_registry_pb2_grpc.WriteRegistryStub(self.channel)

    @property
    def home(self) -> Server:
        """The server of the node that answers; looked into, while `server` is asked."""
        return self.server

    async def publish(self, *values: bytes, topic: str = "orders", **fields: Any) -> Any:
        """Publish values as one batch."""
        arrow = arrow_of(*(Message(v, message_id=b"id-%s" % v[:50]) for v in values))
        return await self.broker.PublishBatch(
            pb.PublishBatchRequest(topic=topic, arrow=arrow, **fields)
        )


def config_in(folder: Path, **sections: Any) -> Config:
    """Return the configuration of a small node on free ports."""
    config = Config(
        node=NodeConfig(name="test", data_folder=str(folder)),
        cluster=ClusterConfig(grpc_port=0, http_port=0),
        log=LogConfig(preallocate_bytes=1 * MIB),
    )
    return replace(config, **sections)


def arrow_of(*messages: Message) -> bytes:
    """Return messages as producers send them."""
    return bytes(encode(from_messages(messages)))


@asynccontextmanager
async def running_server(
    folder: Path, *, clock: Clock | None = None, **sections: Any
) -> AsyncIterator[Served]:
    """Run and serve a node, and connect to it; or, if tests are run so, to another one that leads
    nothing, and asks that node."""
    if os.environ.get(THROUGH):
        from tests.cluster.through import through

        async with through(folder, clock=clock, **sections) as it:
            yield it
        return
    config = config_in(folder, **sections)
    async with (
        running_node(config, clock or SystemClock()) as node,
        serve(node, config) as server,
        grpc.aio.insecure_channel(
            server.addresses.grpc, options=[("grpc.max_receive_message_length", -1)]
        ) as channel,
    ):
        if not os.environ.get(NATIVE):
            yield Served(node, server, channel)
            return
        link = await dial(server.addresses.http, server.addresses.grpc, None, is_alone=True)
        yield Served(node, server, cast(grpc.aio.Channel, NativeChannel(link)))
        link.close("the test is over")


async def failure(call: Awaitable[object]) -> tuple[grpc.StatusCode, str, dict[str, str]]:
    """Return (code, details, facts) of a call that fails."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        facts = {
            str(key).removeprefix("waterclock-"): str(value)
            for key, value in error.trailing_metadata()
            if str(key).startswith("waterclock-")
        }
        return error.code(), error.details() or "", facts
    raise AssertionError("the call succeeded")


class Gate:
    """Holds every publish of a batch until it is opened; what is there goes to the real node."""

    def __init__(self, node: Node) -> None:
        self.is_open = asyncio.Event()
        self.held = 0
        self._publish = node.publisher.publish_batch
        node.publisher.publish_batch = self  # type: ignore[method-assign]

    async def __call__(self, *args: Any, **options: Any) -> Any:
        self.held += 1
        await self.is_open.wait()
        return await self._publish(*args, **options)
