"""A connection to a node by calls that block, without gRPC's library and without a loop.

It speaks gRPC at the address that everybody gives, so that there is one address, and one meaning of
each call and error; streams and clusters go over HTTP, as in every client, where the node says it
has that. What fails is asked again as `client/connection.py` does it, here or at another node.

Its methods are coroutines like those of the other connection, and never suspend: `finished` runs
one to its end.
"""

import time
from collections.abc import Callable, Coroutine
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar, cast

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from waterclock.client.calls import DoneBefore, clock_difference, others_of
from waterclock.client.errors import (
    NotConnected,
    UnusableAddress,
    error_of_status,
    needs_tls,
    not_grpc,
    tls_failure,
    unreachable,
)
from waterclock.client.nodes import Nodes
from waterclock.client.retry import (
    Backoff,
    is_for_another,
    is_transient,
    may_repeat,
    was_never_sent,
    was_refused,
)
from waterclock.client.settings import ClientSettings
from waterclock.client.target import Given, host_of, target_of
from waterclock.client.unary.http2 import (
    ALPN,
    ConnectionLost,
    Http2Connection,
    NeverSent,
    NotHttp2,
)
from waterclock.model.clock import Clock
from waterclock.model.errors import Closed, NodeFailed, TimedOut, WaterclockError
from waterclock.model.ids import Millis
from waterclock.runtime.clock import SystemClock
from waterclock.v1 import admin_pb2, broker_pb2, scheduler_pb2

if TYPE_CHECKING:
    import ssl

    import grpc

    from waterclock.client.encryption import Keys
    from waterclock.client.unary.http1 import BlockingHttp
    from waterclock.runtime.tracing import Tracer
    from waterclock.v1 import admin_pb2_grpc, broker_pb2_grpc, scheduler_pb2_grpc

Result = TypeVar("Result")
Request = TypeVar("Request")
Response = TypeVar("Response")

CONNECT_S = 2.0
"""How long a machine may take to accept a connection."""
_TLS_ALERT = b"\x15\x03"
"""How a server of TLS answers what is none (RFC 8446, 5.1 and 6)."""
_HTTP1 = b"HTTP/1."


def finished(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine that never suspends, and return what came of it."""
    try:
        work.send(None)
    except StopIteration as end:
        return cast(Result, end.value)
    work.close()
    raise AssertionError(f"{work!r} waits for something, which needs a loop")


class UnaryMethod:
    """A method of a service: where it is called, and what it answers with."""

    __slots__ = ("path", "response")

    def __init__(self, path: str, response: type[Message]) -> None:
        self.path = path
        self.response = response

    def __repr__(self) -> str:
        return f"<UnaryMethod {self.path}>"


class UnaryService:
    """The methods of a service by name, as its description in protobuf has them."""

    def __init__(self, file: FileDescriptor, name: str) -> None:
        self._service = file.services_by_name[name]

    def __getattr__(self, name: str) -> UnaryMethod:
        found = self._service.methods_by_name.get(name)
        if found is None:
            raise AttributeError(name)
        path = f"/{self._service.full_name}/{name}"
        return UnaryMethod(path, GetMessageClass(found.output_type))


class UnaryConnection:
    """A connection to a node, or to another of its cluster. Open it before use, close it after."""

    def __init__(self, address: Given | None, settings: ClientSettings) -> None:
        self.target = target_of(address)
        self.settings = settings
        self.keys: Keys | None = None
        self.tracer: Tracer | None = None
        self.clock: Clock = SystemClock()
        self.rng = Random()
        self.nodes = Nodes(self.target.addresses, self.rng)
        self._ahead_ms = 0
        self._is_open = False
        self._connections: dict[str, Http2Connection] = {}
        self._admin = UnaryService(admin_pb2.DESCRIPTOR, "Admin")
        self._broker = UnaryService(broker_pb2.DESCRIPTOR, "Broker")
        self._scheduler = UnaryService(scheduler_pb2.DESCRIPTOR, "Scheduler")
        credential = self.target.credential
        self._metadata: list[tuple[str, str]] = []
        if credential is not None:
            self._metadata.append(("authorization", f"Bearer {credential.token}"))

    def __repr__(self) -> str:
        return f"<UnaryConnection to {self.address}>"

    @property
    def address(self) -> str:
        """The node that is asked at the moment."""
        return self.nodes.current

    @property
    def admin(self) -> "admin_pb2_grpc.AdminAsyncStub":
        return cast("admin_pb2_grpc.AdminAsyncStub", self._admin)

    @property
    def broker(self) -> "broker_pb2_grpc.BrokerAsyncStub":
        return cast("broker_pb2_grpc.BrokerAsyncStub", self._broker)

    @property
    def scheduler(self) -> "scheduler_pb2_grpc.SchedulerAsyncStub":
        return cast("scheduler_pb2_grpc.SchedulerAsyncStub", self._scheduler)

    def check_open(self) -> None:
        """Raise Closed unless calls can be made."""
        if not self._is_open:
            raise Closed("the client is not open")

    def now_ms(self) -> Millis:
        """Return the time by the node's clock."""
        return Millis(self.clock.now_ms() + self._ahead_ms)

    def backoff(self) -> Backoff:
        """Return the waits between attempts at one thing."""
        return Backoff(
            delay_ms=self.settings.retry_delay_ms,
            delay_ms_max=self.settings.retry_delay_ms_max,
            rng=self.rng,
        )

    async def pause(self, ms: float) -> None:
        """Wait before another attempt."""
        time.sleep(ms / 1_000)  # noqa: ASYNC251 - there is no loop, and nobody else to wait

    def http(self, url: str) -> "BlockingHttp":
        """Return the connection to a node's HTTP."""
        from waterclock.client.unary.http1 import BlockingHttp

        return BlockingHttp(url, self.target.credential)

    def open(self) -> admin_pb2.NodeInfo:
        """Find a node and return what it says of itself.

        Raises Unreachable at once if no process listens at any of the addresses.
        """
        self._is_open = True
        backoff = self.backoff()
        ends_ms = self.clock.monotonic_ms() + self.settings.connect_timeout_ms
        absent: set[str] = set()
        while True:
            left_ms = max(ends_ms - self.clock.monotonic_ms(), 1)
            address, is_alone = self.address, self.nodes.is_alone
            try:
                return self._meet(left_ms / len(self.nodes))
            except WaterclockError as error:
                pause_ms = backoff.next_ms(error)
                if isinstance(error, NotConnected):
                    absent.add(address)
                is_left = self._failed(address, error, backoff.failures)
                may_pass = is_transient(error) or (is_left and not is_alone)
                if absent.issuperset(self.nodes.all) or not may_pass or pause_ms >= left_ms:
                    raise
                if is_left and self.address not in absent:
                    continue
            time.sleep(pause_ms / 1_000)

    def close(self) -> None:
        """Hang up."""
        self._is_open = False
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.close()

    async def call(
        self,
        method: "grpc.aio.UnaryUnaryMultiCallable[Request, Response]",
        request: Request,
        *,
        wait_ms: int = 0,
        found: type[WaterclockError] | None = None,
    ) -> Response:
        """Make a request, which the node may let wait; return its answer, or raise our error.

        `found` is what a repeat hears if the first attempt did it, though its answer was lost; then
        DoneBefore is raised.
        """
        return self._repeated(
            method,
            request,
            self.settings.call_timeout_ms + wait_ms,
            lambda error: may_repeat(request, error),
            found,
        )

    async def call_safely(
        self, method: "grpc.aio.UnaryUnaryMultiCallable[Request, Response]", request: Request
    ) -> Response:
        """Make a request that changes nothing more if it is repeated, as one to publish a message
        under an id is: it is tried for as long as `delivery_timeout_ms` says."""
        return self._repeated(method, request, self.settings.delivery_timeout_ms, is_transient)

    def _repeated(
        self,
        method: "grpc.aio.UnaryUnaryMultiCallable[Request, Response]",
        request: Request,
        timeout_ms: int,
        may_repeat: Callable[[WaterclockError], bool],
        found: type[WaterclockError] | None = None,
    ) -> Response:
        self.check_open()
        backoff = self.backoff()
        ends_ms = self.clock.monotonic_ms() + timeout_ms
        may_be_done = False
        while True:
            left_ms = max(ends_ms - self.clock.monotonic_ms(), 1)
            address = self.address
            try:
                return cast(Response, self._asked(cast(Any, method), cast(Any, request), left_ms))
            except WaterclockError as error:
                pause_ms = backoff.next_ms(error)
                if found is not None and may_be_done and isinstance(error, found):
                    raise DoneBefore from error
                self._failed(address, error, backoff.failures)
                is_new = was_refused(error) or was_never_sent(error)
                if isinstance(error, UnusableAddress) and address in self.nodes.all:
                    raise
                if not (is_new or may_repeat(error)) or pause_ms >= left_ms:
                    raise
                may_be_done |= not is_new
            time.sleep(pause_ms / 1_000)

    def _meet(self, timeout_ms: float) -> admin_pb2.NodeInfo:
        """Ask the current node what it says of itself, and take over what is of use."""
        asked_ms, asked_at = self.clock.now_ms(), self.clock.monotonic_ms()
        address = self.address
        method = self._admin.GetNode
        try:
            node = cast(
                admin_pb2.NodeInfo, self._asked(method, admin_pb2.GetNodeRequest(), timeout_ms)
            )
        except TimedOut:
            raise unreachable(address, "no answer") from None
        took_ms = self.clock.monotonic_ms() - asked_at
        self._ahead_ms = clock_difference(node.now_ms, asked_ms=asked_ms, took_ms=took_ms)
        self.nodes.learn(others_of(node, address))
        return node

    def _failed(self, address: str, error: WaterclockError, failures: int) -> bool:
        """Note that a node failed at something; return whether another is asked from now on."""
        if not is_for_another(error, failures):
            return False
        if isinstance(error, UnusableAddress):
            return self.nodes.drop(address)
        return self.nodes.leave(address) is not None

    # One attempt

    def _asked(self, method: UnaryMethod, request: Message, timeout_ms: float) -> Message:
        """Call a method at the current node, once; return its answer, or raise our error."""
        address = self.address
        try:
            connection = self._connection(address)
            answer = connection.call(
                method.path,
                request.SerializeToString(),
                self._metadata,
                timeout_s=timeout_ms / 1_000,
            )
        except TimeoutError:
            raise TimedOut(f"{address} did not answer in time") from None
        except NeverSent as error:
            raise NotConnected(str(unreachable(address, str(error)))) from None
        except ConnectionLost as error:
            if self._lacks_tls(address):
                raise needs_tls(address) from None
            raise unreachable(address, str(error)) from None
        except NotHttp2 as error:
            raise _unusable(address, error.greeting) from None
        if answer.code:
            raise error_of_status(answer.code, answer.details, answer.metadata, address)
        try:
            return method.response.FromString(answer.body)
        except DecodeError as error:
            raise NodeFailed(f"{address} answered what cannot be read: {error}") from error

    def _connection(self, address: str) -> Http2Connection:
        found = self._connections.pop(address, None)
        if found is None or not found.is_usable():
            port = int(address.rpartition(":")[2])
            tls = None if self.target.credential is None else self._tls
            try:
                found = Http2Connection(host_of(address), port, tls=tls, timeout_s=CONNECT_S)
            except OSError as error:  # those of TLS are among them
                failure = None if tls is None else tls_failure(address, str(error))
                raise failure or _not_connected(address, error.strerror or str(error)) from None
        self._connections[address] = found
        return found

    def _tls(self) -> "ssl.SSLContext":
        """Return what trusts the one CA of the credential; raises BadInput if it is none."""
        from waterclock.security.tls import client_context

        assert self.target.credential is not None
        context = client_context(self.target.credential.ca_pem)
        context.set_alpn_protocols([ALPN])
        return context

    def _lacks_tls(self, address: str) -> bool:
        """Return whether the node hung up on us because it speaks TLS only."""
        if self.target.credential is not None:
            return False
        import asyncio

        from waterclock.client.tls_probe import speaks_tls

        port = int(address.rpartition(":")[2])
        return asyncio.run(speaks_tls(host_of(address), port))


def _not_connected(address: str, reason: str) -> NotConnected:
    return NotConnected(str(unreachable(address, reason)))


def _unusable(address: str, greeting: bytes) -> WaterclockError:
    if greeting.startswith(_TLS_ALERT):
        return needs_tls(address)
    return not_grpc(address, "http1.x server" if greeting.startswith(_HTTP1) else "")
