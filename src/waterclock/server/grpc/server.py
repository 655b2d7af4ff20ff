"""The gRPC server: which method is served by what, and how it listens.

Methods are found in the descriptors of the API, so none can be forgotten: `PublishBatch` is served
by `publish_batch`. A method that writes its answer itself, to know when it has gone, is served as a
stream; on the wire there is no difference.
"""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, Protocol

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from waterclock.model.config import Config
from waterclock.model.errors import BadConfig
from waterclock.model.units import KIB, MIB, MINUTE_MS, SECOND_MS
from waterclock.security.folder import SecureState
from waterclock.server import CIPHERS_VARIABLE, is_tls_13_only
from waterclock.server.access import Access
from waterclock.server.addresses import address_of, check_free
from waterclock.server.calls import Calls
from waterclock.server.grpc.needs import METHODS
from waterclock.server.tracing import CallSpans

SETTING = "cluster.grpc_port"
ENVELOPE_BYTES = 1 * MIB
"""What a request may hold besides its batch."""
SLACK = 1_000
"""Calls beyond `calls_max` that are refused in our words; health checks count too."""
STREAMS_MAX = 1_000
"""Calls of one connection at once; a client of ours lets more of them wait."""
WINDOW_BYTES = 64 * KIB
"""What a call may send before it is read, of each call: the library would take 4 MiB, and more from
a fast sender. While a request is read, all of it may come."""

STREAMS = frozenset(
    {
        "Fetch",
        "FindMessages",
        "PublishStream",
        "Replay",
        "ServerReflectionInfo",
        "Subscribe",
        "TakeBackup",
        "Watch",
    }
)
"""Methods that take (request, stream) and write their answers themselves."""


class Service(NamedTuple):
    """A service of the API, the object that serves it, and what bounds its calls."""

    descriptor: ServiceDescriptor
    servicer: object
    calls: Calls


class ServedMethod(NamedTuple):
    """A method as it is served, whatever the bytes around it."""

    handle: Callable[[Any, Any], Awaitable[Any]]
    """Takes nothing, and the call: it reads its requests, and unless `serialize` is None returns
    its answer."""
    serialize: Callable[[Any], bytes] | None
    """Of what it returns; None: it writes its answers itself."""


MethodTable = Mapping[str, ServedMethod]
"""By service and method, as in `waterclock.v1.Broker/Fetch`."""


class Routing(Protocol):
    """Has methods answered by other nodes, where those are to."""

    def unary(
        self, name: str, work: Callable[..., Awaitable[Any]], response: type[Message]
    ) -> Callable[..., Awaitable[Any]]:
        """Return what answers a method with one answer, here or elsewhere."""
        ...

    def stream(
        self, name: str, work: Callable[..., Awaitable[Any]], *, reads: bool
    ) -> Callable[..., Awaitable[Any]]:
        """Return what serves a method that writes as it goes, here or elsewhere."""
        ...


class GrpcServer:
    """A listening server. Make one with `serve_grpc`."""

    def __init__(self, server: grpc.aio.Server, port: int) -> None:
        self.port = port
        self._server = server

    async def stop(self, seconds: float) -> None:
        """Take no more calls; return when those under way have ended. After so many seconds they
        are cut off."""
        # Never twice at once: gRPC 1.85 then uses a server that it has freed (seen to crash).
        await self._server.stop(seconds)


@asynccontextmanager
async def serve_grpc(
    services: Sequence[Service], methods: MethodTable, config: Config, access: Access
) -> AsyncIterator[GrpcServer]:
    """Listen until left; calls still under way then are cancelled. `methods` are `methods_of` the
    services."""
    # `Calls` refuses in our words; this, before a request is even read, those far beyond.
    server = grpc.aio.server(
        options=_options(config), maximum_concurrent_rpcs=config.server.calls_max + SLACK
    )
    server.add_generic_rpc_handlers(tuple(_handlers(each, methods) for each in services))
    port = _bind(server, config, access)
    await server.start()
    try:
        yield GrpcServer(server, port)
    finally:
        await server.stop(None)


def request_bytes_max(config: Config) -> int:
    """Return how large a request may be; gRPC refuses a larger one by what it says of its size."""
    return config.limits.batch_bytes_max + ENVELOPE_BYTES


def places_of(config: Config) -> int:
    """Return how many requests may be arriving; there is room for one that was given up, too."""
    return max(1, config.server.receive_bytes_max // request_bytes_max(config) - 1)


def _bind(server: grpc.aio.Server, config: Config, access: Access) -> int:
    host, port = config.server.host, config.cluster.grpc_port
    if port and not config.cluster.is_process:
        check_free(SETTING, host, port)
    address = address_of(host, port)
    try:
        if access.is_secure:
            return server.add_secure_port(address, _credentials(access, config))
        return server.add_insecure_port(address)
    except RuntimeError as error:
        raise BadConfig(SETTING, f"cannot listen on {address}") from error


def _credentials(access: Access, config: Config) -> grpc.ServerCredentials:
    """Return the node's certificate, looked up anew for each handshake that follows a change."""
    if not is_tls_13_only():
        raise BadConfig(
            CIPHERS_VARIABLE, "gRPC was loaded before it was set, and would take TLS 1.2, too"
        )
    shown = access.state.node

    def newest() -> Any:  # noqa: ANN401 - the stubs know no None, which is: as before
        # Called in threads of gRPC's own.
        nonlocal shown
        state = access.state
        if state.node is shown:
            return None
        shown = state.node
        return _certificate(state)

    return grpc.dynamic_ssl_server_credentials(
        _certificate(access.state),
        newest,
        require_client_authentication=config.security.grpc_certificates,
    )


def _certificate(state: SecureState) -> grpc.ServerCertificateConfiguration:
    pair = (state.node.key_pem, state.node.certificate_pem)
    return grpc.ssl_server_certificate_configuration([pair], root_certificates=state.ca_pem)


def _options(config: Config) -> list[tuple[str, Any]]:
    return [
        ("grpc.so_reuseport", int(config.cluster.is_process)),
        ("grpc.max_receive_message_length", request_bytes_max(config)),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", STREAMS_MAX),
        ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
        ("grpc.http2.bdp_probe", 0),  # it would widen the window
        # A client that lost its network is found within a minute and a half, also if it only waits.
        ("grpc.keepalive_time_ms", 1 * MINUTE_MS),
        ("grpc.keepalive_timeout_ms", 20 * SECOND_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        # Clients may do the same, this often; one that pings more is turned away.
        ("grpc.http2.min_ping_interval_without_data_ms", SECOND_MS // 2),
    ]


def methods_of(
    services: Sequence[Service], spans: CallSpans | None = None, routing: Routing | None = None
) -> MethodTable:
    """Return all methods of some services. With a routing, other nodes answer what is theirs."""
    return {
        f"{service.descriptor.full_name}/{method.name}": _method(method, service, spans, routing)
        for service in services
        for method in service.descriptor.methods
    }


def _method(
    method: MethodDescriptor, service: Service, spans: CallSpans | None, routing: Routing | None
) -> ServedMethod:
    work: Callable[..., Any] = getattr(service.servicer, snake_case(method.name))
    name = f"{service.descriptor.name}/{method.name}"
    path = f"{service.descriptor.full_name}/{method.name}"
    assert name in METHODS, f"{name} does not say what it needs"
    request = GetMessageClass(method.input_type)
    if method.name in STREAMS:
        if routing is not None:
            work = routing.stream(name, work, reads=method.client_streaming)
        # These serialise by themselves.
        handle = service.calls.stream(name, work, request, reads=method.client_streaming)
        if spans is not None and not method.client_streaming:
            handle = spans.grpc(path, handle)
        return ServedMethod(handle, None)
    assert not method.client_streaming, name
    assert not method.server_streaming, name
    response = GetMessageClass(method.output_type)
    if routing is not None:
        work = routing.unary(name, work, response)
    answer = service.calls.unary(name, work, request)
    if spans is not None:
        answer = spans.grpc(path, answer)
    return ServedMethod(answer, response.SerializeToString)


def _handlers(service: Service, methods: MethodTable) -> grpc.GenericRpcHandler:
    name = service.descriptor.full_name
    table = {
        method.name: _handler(methods[f"{name}/{method.name}"])
        for method in service.descriptor.methods
    }
    return grpc.method_handlers_generic_handler(name, table)


def _handler(method: ServedMethod) -> "grpc.RpcMethodHandler[Any, Any]":
    # All are streams of requests to gRPC, also where one comes: then it reads none before we do.
    if method.serialize is None:
        return grpc.stream_stream_rpc_method_handler(method.handle, None, None)
    return grpc.stream_unary_rpc_method_handler(method.handle, None, method.serialize)


def snake_case(name: str) -> str:
    """Return `PublishBatch` as `publish_batch`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
