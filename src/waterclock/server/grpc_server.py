"""The gRPC server: which method is served by what, health, reflection, and how it listens.

Methods are found in the descriptors of the API, so none can be forgotten: `PublishBatch` is served
by `publish_batch`. A method that writes its answer itself, to know when it has gone, is served as a
stream; on the wire there is no difference.
"""

import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from waterclock.model.config import Config
from waterclock.model.errors import BadConfig
from waterclock.model.units import MIB, MINUTE_MS, SECOND_MS
from waterclock.server.addresses import address_of, check_free
from waterclock.server.calls import Calls, parser_of

SETTING = "cluster.grpc_port"
ENVELOPE_BYTES = 1 * MIB
"""What a request may hold besides its batch."""
SLACK = 1_000
"""Calls beyond `calls_max` that are refused in our words; health checks count too."""
STREAMS_MAX = 10_000
"""Calls of one connection at once."""

Service = tuple[ServiceDescriptor, object]


class GrpcServer:
    """A listening server. Make one with `serve_grpc`."""

    def __init__(self, server: grpc.aio.Server, port: int, names: Sequence[str]) -> None:
        self.port = port
        self._server = server
        self._health = health.aio.HealthServicer()
        self._names = ("", *names)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)

    async def set_serving(self, is_serving: bool) -> None:
        """Say whether calls are welcome."""
        statuses = health_pb2.HealthCheckResponse
        status = statuses.SERVING if is_serving else statuses.NOT_SERVING
        for name in self._names:
            await self._health.set(name, status)

    async def stop(self, seconds: float | None) -> None:
        """Take no more calls; return when those under way have ended, at the latest after so many
        seconds (None: at once). A second call may only shorten that."""
        await self._server.stop(seconds)


@asynccontextmanager
async def serve_grpc(
    services: Sequence[Service], streams: frozenset[str], calls: Calls, config: Config
) -> AsyncIterator[GrpcServer]:
    """Listen until left; calls still under way then are cancelled.

    `streams` are the methods that take (request, context) and write their answers themselves.
    """
    host, port = config.server.host, config.cluster.grpc_port
    # `calls` refuses in our words; this, before a request is even read, those far beyond.
    server = grpc.aio.server(
        options=_options(config), maximum_concurrent_rpcs=config.server.calls_max + SLACK
    )
    for descriptor, servicer in services:
        server.add_generic_rpc_handlers((_handlers(descriptor, servicer, streams, calls),))
    names = [descriptor.full_name for descriptor, _ in services]
    reflected = (*names, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(reflected, server)
    bound = _bind(server, host, port)
    running = GrpcServer(server, bound, names)
    await running.set_serving(False)
    await server.start()
    try:
        yield running
    finally:
        await server.stop(None)


def _bind(server: grpc.aio.Server, host: str, port: int) -> int:
    if port:
        check_free(SETTING, host, port)
    address = address_of(host, port)
    try:
        return server.add_insecure_port(address)
    except RuntimeError as error:
        raise BadConfig(SETTING, f"cannot listen on {address}") from error


def _options(config: Config) -> list[tuple[str, Any]]:
    return [
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", config.limits.batch_bytes_max + ENVELOPE_BYTES),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", STREAMS_MAX),
        # A client that lost its network is found within a minute and a half, also if it only waits.
        ("grpc.keepalive_time_ms", 1 * MINUTE_MS),
        ("grpc.keepalive_timeout_ms", 20 * SECOND_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        # Clients may do the same.
        ("grpc.http2.min_ping_interval_without_data_ms", 10 * SECOND_MS),
        ("grpc.http2.max_ping_strikes", 0),
    ]


def _handlers(
    service: ServiceDescriptor, servicer: object, streams: frozenset[str], calls: Calls
) -> grpc.GenericRpcHandler:
    handlers = {
        method.name: _handler(method, servicer, streams, calls) for method in service.methods
    }
    return grpc.method_handlers_generic_handler(service.full_name, handlers)


def _handler(
    method: MethodDescriptor, servicer: object, streams: frozenset[str], calls: Calls
) -> "grpc.RpcMethodHandler[Any, Any]":
    work: Callable[..., Any] = getattr(servicer, snake_case(method.name))
    name = f"{method.containing_service.name}/{method.name}"
    parse = parser_of(GetMessageClass(method.input_type))
    if method.name in streams:
        # These serialise by themselves.
        kind = (
            grpc.stream_stream_rpc_method_handler
            if method.client_streaming
            else grpc.unary_stream_rpc_method_handler
        )
        return kind(calls.stream(name, work), parse, None)
    assert not method.client_streaming, name
    assert not method.server_streaming, name
    serialize = GetMessageClass(method.output_type).SerializeToString
    return grpc.unary_unary_rpc_method_handler(calls.unary(name, work), parse, serialize)


def snake_case(name: str) -> str:
    """Return `PublishBatch` as `publish_batch`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
