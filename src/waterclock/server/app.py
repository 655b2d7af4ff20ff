"""Everything a running node answers: gRPC and HTTP before one node, and how they stop together.

Stopping, in this order: health says so; no new calls; calls that wait are ended, others finish, for
as long as `server.drain` allows; what is left is cut off. Then the node itself may be closed.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, cast

from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2

from waterclock.model.config import Config
from waterclock.node.node import Node
from waterclock.node.task_groups import task_group
from waterclock.security.certificates import hosts_of
from waterclock.server.access import Access, open_access
from waterclock.server.addresses import Addresses
from waterclock.server.arrivals import Arrivals
from waterclock.server.audit import Audit
from waterclock.server.calls import Calls
from waterclock.server.cluster.single_node import check_request, of_single_nodes
from waterclock.server.console.api import ConsoleApi
from waterclock.server.counts import Counts
from waterclock.server.grpc import reflection
from waterclock.server.grpc.admin import AdminApi
from waterclock.server.grpc.backlog import Backlog
from waterclock.server.grpc.backup import BackupApi
from waterclock.server.grpc.broker import BrokerApi
from waterclock.server.grpc.guard import Guard
from waterclock.server.grpc.health import Health
from waterclock.server.grpc.scheduler import SchedulerApi
from waterclock.server.grpc.server import (
    GrpcServer,
    Service,
    methods_of,
    places_of,
    serve_grpc,
)
from waterclock.server.grpc.write_registry import WriteRegistryApi
from waterclock.server.http.counters import HttpCounters
from waterclock.server.http.cross_origin import CrossOriginGuard
from waterclock.server.http.messages import Handler
from waterclock.server.http.openapi import with_description
from waterclock.server.http.operations import (
    Operation,
    linkable_of,
    routes_of,
    stopping_routes_of,
)
from waterclock.server.http.permits import guarded
from waterclock.server.http.routes import answer_from
from waterclock.server.http.server import HttpServer, http_limits, serve_http
from waterclock.server.metrics import LoopWatch, Metrics
from waterclock.server.native.server import NativeServer
from waterclock.server.reload import Reloader
from waterclock.server.rest.cluster import ClusterApi
from waterclock.server.rest.consumers import HttpConsumers
from waterclock.server.rest.frames import FramesApi
from waterclock.server.rest.health import operations
from waterclock.server.rest.operations import topic_operations
from waterclock.server.rest.reload import reload_operations
from waterclock.server.rest.starting import StartingHttp
from waterclock.server.streams.api import StreamsApi
from waterclock.server.streams.operations import stream_operations
from waterclock.server.tracing import call_spans
from waterclock.v1 import admin_pb2, backup_pb2, broker_pb2, scheduler_pb2, write_registry_pb2

if TYPE_CHECKING:
    from waterclock.server.cluster.calls.shared_topics import SharedTopics
    from waterclock.server.cluster.cluster import Cluster
    from waterclock.server.cluster.forwarder import Forwarder
    from waterclock.server.cluster.rights_sync import RightsSync

log = logging.getLogger(__name__)

APIS = (
    broker_pb2.DESCRIPTOR.services_by_name["Broker"],
    scheduler_pb2.DESCRIPTOR.services_by_name["Scheduler"],
    admin_pb2.DESCRIPTOR.services_by_name["Admin"],
    write_registry_pb2.DESCRIPTOR.services_by_name["WriteRegistry"],
    backup_pb2.DESCRIPTOR.services_by_name["Backups"],
)
HEALTH = cast(ServiceDescriptor, health_pb2.DESCRIPTOR.services_by_name["Health"])

END_S = 1.0
"""How long calls have to say goodbye once the drain is over."""
HEALTH_CALLS_MAX = 1_000
"""Of their own: a node that is merely busy must not look dead."""
HEALTH_ARRIVES_S = 0.5
"""How long a request for the health may take to arrive while others wait."""


class Server:
    """A node that can be reached. Make one with `serve`."""

    def __init__(
        self,
        node: Node,
        calls: Calls,
        health: Health,
        servers: tuple[GrpcServer, HttpServer, NativeServer],
        access: Access,
        operations: Sequence[Operation],
        shared: "SharedTopics | None" = None,
    ) -> None:
        self.node = node
        self.access = access
        self.operations = operations
        """All that HTTP offers."""
        self.calls = calls
        self.forwarder: Forwarder | None = None
        self.shared_topics = shared
        """If the node shares its topics with others."""
        self._health = health
        self._grpc, self._http, self.native = servers

    @property
    def grpc_port(self) -> int:
        """Where gRPC listens."""
        return self._grpc.port

    @property
    def http_port(self) -> int:
        """Where HTTP listens for clients."""
        return _http_port(self.node.config, self._http)

    @property
    def addresses(self) -> Addresses:
        """Where clients reach it."""
        config, is_secure = self.node.config, self.access.is_secure
        own_port = self._http.port if config.cluster.is_process else 0
        host, ports = config.server.host, (self.grpc_port, self.http_port)
        return Addresses(host, *ports, is_secure=is_secure, own_http_port=own_port)

    async def share_port(self) -> None:
        """Take clients of the port that several processes share, if this is one of them."""
        config = self.node.config
        if config.cluster.is_process:
            host, port = config.server.host, config.cluster.http_port
            await self._http.listen(host, port, is_shared=True)
            if self.forwarder is not None and not self.access.is_secure:
                from waterclock.server.cluster.processes.connections import shared_connections

                self.forwarder.shared_connections = shared_connections(
                    self._http, f"{host}:{port}", self.node.ownership.node_id
                )

    def configure(self, config: Config) -> None:
        """Go on under other settings, as far as they can change."""
        self.calls.calls_max = config.server.calls_max
        if self.access.is_secure:
            self.node.spawn(self._reload_access())

    async def stop(self, *, spent_s: float = 0.0) -> None:
        """Let calls finish and take no more; returns after `server.drain` at the latest, of which
        some may be spent."""
        drain_s = max(0.0, self.node.config.server.drain_ms / 1_000 - spent_s)
        log.info("stopping calls=%d drain_s=%g", self.calls.in_flight, drain_s)
        self.node.stop_serving()
        self._health.stop()
        self.calls.stop()
        self.node.streams.stop()
        if self.forwarder is not None:
            self.forwarder.stop()
            if self.forwarder.shared_connections is not None:
                self.forwarder.shared_connections.close()
        self._http.stop()
        self.native.stop()
        async with task_group() as tasks:
            ending = tasks.create_task(self._end_after(drain_s))
            tasks.create_task(self._http.drain(drain_s))
            tasks.create_task(self.native.drain(drain_s + END_S))
            await self._grpc.stop(drain_s + END_S)
            ending.cancel()

    async def _reload_access(self) -> None:
        await self.access.reload()

    async def _end_after(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self.calls.end()


@asynccontextmanager
async def serve(
    node: Node,
    config: Config,
    reloader: Reloader | None = None,
    cluster: "Cluster | None" = None,
    starting: StartingHttp | None = None,
) -> AsyncIterator[Server]:
    """Answer requests to a node until left. `Server.stop` first ends well what is under way. What
    answered HTTP while the node was `starting` listens on."""
    backlog, counts = Backlog(config.server.receive_bytes_max), Counts(node)
    access = open_access(config, node.clock) if starting is None else starting.access
    audit = access.audit = _audit_of(node, config, access)
    call_guard = None if audit is None else Guard(access, node, counts)
    calls = Calls(config.server.calls_max, Arrivals(places_of(config)), backlog, call_guard)
    counters = HttpCounters() if starting is None else starting.server.counters
    watch, reloader = LoopWatch(), reloader or Reloader(config)
    metrics = Metrics(node, calls, counters, watch, access, reloader, cluster)
    consumers, broker_api = HttpConsumers(node, calls), BrokerApi(node, calls)
    streams, nodes = StreamsApi(node, is_clustered=cluster is not None), ClusterApi(node, cluster)
    topics, shared = _topics(node, calls, consumers, broker_api), _shared(node, cluster)
    looks, own = _looks(node, metrics, cluster)
    console = ConsoleApi(node, access, cluster)
    table = [
        *looks,
        *reload_operations(reloader),
        *console.operations(),
        *(of_single_nodes(config, topics) if shared is None else shared.http.all_routed(topics)),
        *stream_operations(streams),
        *nodes.operations(),
    ]
    ring_max, now_ms = config.streams.ring_messages_max, node.clock.now_ms()
    table = with_description(table, config.limits, now_ms, ring_messages_max=ring_max)
    spans = call_spans(sample_percent=config.tracing.sample_percent)
    table = table if spans is None else [spans.http(operation) for operation in table]
    rights = await _rights(node, access, shared, cluster)
    permits = None if audit is None else partial(guarded, access=access, counts=counts)
    answer = answer_from(routes_of(table, permits, counters))
    stopping = answer_from(stopping_routes_of(table, permits, counters))
    guard = _cross_origin_guard(config, access, table)
    async with _http(answer, stopping, guard, access, counters, config, starting) as http_server:
        http_address = _http_address(config, http_server, access)
        health = Health(node, tuple(api.full_name for api in APIS))
        services = _services(node, calls, backlog, health, broker_api, http_address, cluster)
        methods = methods_of(services, spans, None if shared is None else shared.grpc)
        publishing = broker_api.publishing
        native_server = NativeServer(node, calls, access, counts, publishing, methods)
        listening = serve_grpc(services, methods, config, access)
        async with listening as listener, task_group() as tasks, native_server.on(http_server):
            parts = (watch, consumers, backlog, audit, rights, access if access.is_secure else None)
            running = [tasks.create_task(each.run()) for each in parts if each is not None]
            servers = listener, http_server, native_server
            server = Server(node, calls, health, servers, access, table, shared)
            nodes.http_address, console.grpc_port = server.addresses.http, server.grpc_port
            if cluster is not None:
                own += console.of_nodes()
                running += _begin(cluster, server, streams, nodes, topics, own, services, tasks)
            try:
                yield server
            finally:
                await _end(cluster, audit, running)


def _http_port(config: Config, http: HttpServer) -> int:
    """Return where clients reach HTTP: of processes it is the port that they share."""
    return config.cluster.http_port if config.cluster.is_process else http.port


def _http_address(config: Config, http: HttpServer, access: Access) -> str:
    port = _http_port(config, http)
    return Addresses(config.server.host, 0, port, is_secure=access.is_secure).http


@asynccontextmanager
async def _http(
    answer: Handler,
    stopping: Handler,
    guard: CrossOriginGuard,
    access: Access,
    counters: HttpCounters,
    config: Config,
    starting: StartingHttp | None,
) -> AsyncIterator[HttpServer]:
    """Have HTTP answered until left: by a listener that is there, or by one of its own."""
    if starting is None:
        async with serve_http(
            answer,
            host=config.server.host,
            port=config.cluster.http_port,
            limits=http_limits(config),
            guard=guard,
            stopping=stopping,
            access=access,
            counters=counters,
        ) as server:
            yield server
        return
    starting.server.take(answer, guard=guard, stopping=stopping, access=access)
    try:
        yield starting.server
    finally:
        starting.server.close()
        await starting.server.drain(END_S)  # nothing is asked of a node that is closed


async def _end(
    cluster: "Cluster | None", audit: Audit | None, running: Iterable[asyncio.Task[None]]
) -> None:
    """Answer nobody any more, and end what goes on."""
    if cluster is not None:
        cluster.end()
    if audit is not None:
        await audit.close()
    for task in running:
        task.cancel()


def _shared(node: Node, cluster: "Cluster | None") -> "SharedTopics | None":
    """Return what routes calls about topics; a node alone has nothing of it loaded."""
    if cluster is None:
        return None
    from waterclock.server.cluster.calls.shared_topics import shared_topics

    return shared_topics(node, cluster)


def _looks(
    node: Node, metrics: Metrics, cluster: "Cluster | None"
) -> tuple[list[Operation], list[Operation]]:
    """Return what HTTP offers to operators, and what of it other processes ask for."""
    looks = operations(node, metrics, cluster)
    if cluster is None or not node.config.cluster.is_process:
        return looks, []
    from waterclock.server.cluster.processes.metrics import of_all, own_metrics

    return of_all(looks, cluster, node.name), own_metrics(looks)


async def _rights(
    node: Node, access: Access, shared: "SharedTopics | None", cluster: "Cluster | None"
) -> "RightsSync | None":
    """Return what shares rights with other nodes; by now this node goes by what they know."""
    if shared is None or cluster is None:
        return None
    from waterclock.server.cluster.rights_sync import rights_sync

    sync = rights_sync(node, access, shared.rights, cluster.peers)
    if sync is not None:
        await sync.settle()
    return sync


def _topics(
    node: Node, calls: Calls, consumers: HttpConsumers, broker_api: BrokerApi
) -> list[Operation]:
    """Return what HTTP offers of topics."""
    return [
        *topic_operations(node, consumers, broker_api.publishing),
        *FramesApi(node, calls, broker_api.frames).operations(),
    ]


def _begin(
    cluster: "Cluster",
    server: Server,
    streams: StreamsApi,
    nodes: ClusterApi,
    topics: Sequence[Operation],
    own: Sequence[Operation],
    services: Sequence[Service],
    tasks: asyncio.TaskGroup,
) -> list[asyncio.Task[None]]:
    """Have other nodes answered, and asked for what is theirs, by tasks that go on; `own` is what
    they ask of this one by name."""
    server.node.ownership = cluster.ownership
    config, shared = server.node.config, server.shared_topics
    # The node that was asked first has looked who asks.
    led = [] if shared is None else map(shared.http.checked, topics)
    table = [*stream_operations(streams), *nodes.operations(), *own, *led]
    handler = answer_from(routes_of(table))
    bytes_max = http_limits(config).body_bytes_max
    forwarder = cluster.begin(handler, server.node, tasks, body_bytes_max=bytes_max)
    server.forwarder = streams.forwarder = streams.listing.forwarder = forwarder
    if shared is not None:
        shared.begin(services, server.calls, tasks)
    assert cluster.handover is not None
    streams.on_stray = cluster.handover.stray
    running = [tasks.create_task(each.run()) for each in (forwarder, cluster.handover)]
    if config.streams.partitions_max > 1:
        hot = cluster.split_busy(server.node.streams)
        streams.hot_streams = streams.listing.hot_streams = hot
        running.append(tasks.create_task(hot.run()))
    return running


def _audit_of(node: Node, config: Config, access: Access) -> Audit | None:
    """Return where it is noted what was refused and changed; None: nobody is looked at."""
    audit = Audit(node, config, is_secure=access.is_secure)
    return audit if access.is_secure or audit.is_kept else None


def _services(
    node: Node,
    calls: Calls,
    backlog: Backlog,
    health: Health,
    broker_api: BrokerApi,
    http_address: str,
    cluster: "Cluster | None",
) -> tuple[Service, ...]:
    """Return what is served over gRPC."""
    broker, scheduler, admin, write_registry, backups = APIS
    names = [api.full_name for api in (*APIS, HEALTH)]
    if node.config.cluster.is_clustered and (cluster is None or cluster.places is None):
        calls.check = check_request
    health_arrivals = Arrivals(1, contended_s=HEALTH_ARRIVES_S)
    return (
        Service(broker, broker_api, calls),
        Service(scheduler, SchedulerApi(node), calls),
        Service(admin, AdminApi(node, http_address=http_address, cluster=cluster), calls),
        Service(write_registry, WriteRegistryApi(node), calls),
        Service(backups, BackupApi(node, calls), calls),
        # Open to all, so no guard looks.
        Service(HEALTH, health, Calls(HEALTH_CALLS_MAX, health_arrivals, backlog)),
        Service(reflection.SERVICE, reflection.Reflection(names), calls),
    )


def _cross_origin_guard(
    config: Config, access: Access, table: Sequence[Operation]
) -> CrossOriginGuard:
    """Return what refuses foreign web pages, by the names that the node has at the time."""
    guard = CrossOriginGuard(
        origins=config.server.cors_origins,
        hosts=_hosts_of(config, access),
        linkable=linkable_of(table),
    )
    access.on_reloaded.append(lambda: guard.rename(_hosts_of(config, access)))
    return guard


def _hosts_of(config: Config, access: Access) -> tuple[str, ...]:
    """Return the names that requests may call the node by, beside addresses and localhost."""
    machine = socket.gethostname()
    certified = hosts_of(access.state.node.certificate_pem) if access.is_secure else []
    return (
        *config.server.hosts,
        *(host.removeprefix("*") for host in certified),
        config.server.host,
        machine,
        machine.partition(".")[0],
    )
