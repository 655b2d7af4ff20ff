"""Everything a running node answers: gRPC and HTTP before one node, and how they stop together.

Stopping, in this order: health says so; no new calls; calls that wait are ended, others finish, for
as long as `server.drain` allows; what is left is cut off. Then the node itself may be closed.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from waterclock.model.config import Config
from waterclock.node.node import Node
from waterclock.server.addresses import Addresses
from waterclock.server.admin_api import AdminApi
from waterclock.server.broker_api import BrokerApi
from waterclock.server.calls import Calls
from waterclock.server.grpc_server import GrpcServer, serve_grpc
from waterclock.server.http_protocol import HttpServer, serve_http
from waterclock.server.http_routes import answer_from
from waterclock.server.loop_watch import LoopWatch
from waterclock.server.metrics import Metrics
from waterclock.server.operations import operations
from waterclock.server.scheduler_api import SchedulerApi
from waterclock.server.task_groups import task_group
from waterclock.v1 import admin_pb2, broker_pb2, scheduler_pb2

log = logging.getLogger(__name__)

STREAMS = frozenset({"Fetch", "PublishStream", "Replay", "Subscribe"})
"""Methods that write their answers themselves."""
END_S = 1.0
"""How long calls have to say goodbye once the drain is over."""


class Server:
    """A node that can be reached. Make one with `serve`."""

    def __init__(
        self, node: Node, calls: Calls, grpc_server: GrpcServer, http_server: HttpServer
    ) -> None:
        self.node = node
        self.calls = calls
        self._grpc = grpc_server
        self._http = http_server

    @property
    def grpc_port(self) -> int:
        """Where gRPC listens."""
        return self._grpc.port

    @property
    def http_port(self) -> int:
        """Where HTTP listens."""
        return self._http.port

    @property
    def addresses(self) -> Addresses:
        """Where clients reach it."""
        return Addresses(self.node.config.server.host, self.grpc_port, self.http_port)

    async def stop(self) -> None:
        """Let calls finish and take no more; returns after `server.drain` at the latest."""
        drain_s = self.node.config.server.drain_ms / 1_000
        log.info("stopping calls=%d drain_s=%g", self.calls.in_flight, drain_s)
        self.node.is_ready = False
        await self._grpc.set_serving(False)
        async with task_group() as tasks:
            stopping = tasks.create_task(self._grpc.stop(drain_s + END_S))
            self.calls.stop()
            self._http.stop()
            if not await self._finished(drain_s):
                self.calls.end()
                await self._finished(END_S)
            # What is left now, such as watchers of our health, is cut off.
            await self._grpc.stop(None)
            await stopping

    async def _finished(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self.calls.finished()
        except TimeoutError:
            return False
        return True


@asynccontextmanager
async def serve(node: Node, config: Config) -> AsyncIterator[Server]:
    """Answer requests to a node until left. `Server.stop` first ends well what is under way."""
    calls = Calls(config.server.calls_max)
    watch = LoopWatch()
    answer = answer_from(operations(node, Metrics(node, calls, watch)))
    host, port = config.server.host, config.cluster.http_port
    async with serve_http(answer, host=host, port=port) as http_server:
        http_address = Addresses(host, 0, http_server.port).http
        services = (
            (broker_pb2.DESCRIPTOR.services_by_name["Broker"], BrokerApi(node, calls)),
            (scheduler_pb2.DESCRIPTOR.services_by_name["Scheduler"], SchedulerApi(node)),
            (
                admin_pb2.DESCRIPTOR.services_by_name["Admin"],
                AdminApi(node, http_address=http_address),
            ),
        )
        async with (
            serve_grpc(services, STREAMS, calls, config) as grpc_server,
            task_group() as tasks,
        ):
            watching = tasks.create_task(watch.run())
            await grpc_server.set_serving(node.is_ready)
            try:
                yield Server(node, calls, grpc_server, http_server)
            finally:
                watching.cancel()
