"""The standard health service (grpc.health.v1): SERVING while the node takes requests.

Ours and not the library's, whose watchers never end: gRPC cannot stop before they do. Here they
get NOT_SERVING, and end.
"""

import asyncio
from typing import Any

from google.protobuf.message import Message
from grpc_health.v1 import health_pb2 as pb

from waterclock.model.errors import NotFound
from waterclock.node.node import Node
from waterclock.server.calls import Stream

# The stubs of the health package do not know it yet.
_ListResponse: Any = pb.HealthListResponse  # type: ignore[attr-defined]

WATCH_S = 1.0
"""How often watchers look: a node turns ready once."""


class Health:
    """The methods of `grpc.health.v1.Health`."""

    def __init__(self, node: Node, services: tuple[str, ...]) -> None:
        self._node = node
        self._services = frozenset({"", *services})
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Tell watchers that it is over."""
        self._stopping.set()

    async def check(self, request: pb.HealthCheckRequest) -> pb.HealthCheckResponse:
        """Tell how a service is; the empty name is the whole node."""
        if request.service not in self._services:
            raise NotFound("service", request.service)
        return pb.HealthCheckResponse(status=self._status(request.service))

    async def list(self, _: object) -> Message:
        """Tell how all services are."""
        statuses = {
            name: pb.HealthCheckResponse(status=self._status(name)) for name in self._services
        }
        response: Message = _ListResponse(statuses=statuses)
        return response

    async def watch(self, request: pb.HealthCheckRequest, stream: Stream) -> None:
        """Tell how a service is, now and whenever that changes."""
        last = None
        while True:
            is_over = self._stopping.is_set()
            status = self._status(request.service)
            if status != last:
                await stream.write(pb.HealthCheckResponse(status=status).SerializeToString())
                last = status
            if is_over:
                return
            try:
                async with asyncio.timeout(WATCH_S):
                    await self._stopping.wait()
            except TimeoutError:
                continue

    def _status(self, service: str) -> Any:  # noqa: ANN401 - the stubs have no name for it
        if service not in self._services:
            return pb.HealthCheckResponse.SERVICE_UNKNOWN
        is_serving = self._node.is_ready and not self._stopping.is_set()
        return pb.HealthCheckResponse.SERVING if is_serving else pb.HealthCheckResponse.NOT_SERVING
