"""What the parts of a client need of a connection: to make calls, tell the time, and wait.

Two connections have it. `connection.py` is gRPC's own, under a loop: for programs that stay.
`unary/connection.py` is plain sockets that block: for commands that ask once and are gone. Its
calls never suspend, so that the same coroutines run without a loop.
"""

from random import Random
from typing import TYPE_CHECKING, Protocol, TypeVar

from waterclock.client.encryption import Keys
from waterclock.client.nodes import Nodes
from waterclock.client.retry import Backoff
from waterclock.client.settings import ClientSettings
from waterclock.client.target import Target, host_of, is_own_host
from waterclock.model.clock import Clock
from waterclock.model.errors import WaterclockError
from waterclock.model.ids import Millis

if TYPE_CHECKING:
    import grpc

    from waterclock.client.streams.http_request import HttpAnswer, HttpRequest
    from waterclock.model.views import NodeInfo
    from waterclock.runtime.tracing import Tracer
    from waterclock.v1 import admin_pb2, admin_pb2_grpc, scheduler_pb2_grpc

Request = TypeVar("Request")
Response = TypeVar("Response")


class DoneBefore(Exception):
    """A request found the work of its own first attempt, whose answer was lost."""


class Http(Protocol):
    """Connections to one HTTP address."""

    url: str

    async def ask(self, request: "HttpRequest", *, timeout_s: float) -> "HttpAnswer":
        """Return the answer to a request; if none comes in time, raise TimedOut."""
        ...

    def close(self) -> None:
        """Hang up."""
        ...


class Calls(Protocol):
    """A connection to a node."""

    target: Target
    settings: ClientSettings
    keys: Keys | None
    clock: Clock
    rng: Random
    nodes: Nodes
    tracer: "Tracer | None"

    @property
    def address(self) -> str:
        """The node that is asked at the moment."""
        ...

    @property
    def admin(self) -> "admin_pb2_grpc.AdminAsyncStub": ...

    @property
    def scheduler(self) -> "scheduler_pb2_grpc.SchedulerAsyncStub": ...

    def check_open(self) -> None:
        """Raise Closed unless calls can be made."""
        ...

    def now_ms(self) -> Millis:
        """Return the time by the node's clock."""
        ...

    def backoff(self) -> Backoff:
        """Return the waits between attempts at one thing."""
        ...

    async def pause(self, ms: float) -> None:
        """Wait before another attempt."""
        ...

    def http(self, url: str) -> Http:
        """Return connections to a node's HTTP."""
        ...

    async def call(
        self,
        method: "grpc.aio.UnaryUnaryMultiCallable[Request, Response]",
        request: Request,
        *,
        wait_ms: int = 0,
        found: type[WaterclockError] | None = None,
    ) -> Response:
        """Make a request, which the node may let wait; return its answer, or raise our error."""
        ...


def others_of(node: "admin_pb2.NodeInfo | NodeInfo", address: str) -> list[str]:
    """Return the other nodes of a cluster that one names, found at an address, as we reach them."""
    # From another machine, what is at home there is somewhere else.
    is_near = is_own_host(host_of(address))
    return [
        each.address
        for each in node.nodes
        if each.name != node.name and (is_near or not is_own_host(host_of(each.address)))
    ]


def clock_difference(node_ms: int, *, asked_ms: int, took_ms: int) -> int:
    """Return how far a node's clock is ahead, 0 if that may be the time its answer took."""
    earliest, latest = asked_ms, asked_ms + took_ms
    # A millisecond more each way, for both clocks are cut to whole ones.
    if earliest - 1 <= node_ms <= latest + 1:
        return 0
    return node_ms - (earliest + latest) // 2
