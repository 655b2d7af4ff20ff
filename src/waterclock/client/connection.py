"""The connection to a node: the channel, the calls on it, and what the node shows of itself.

Where there are several nodes, it is that to the current one (`nodes.py`): whoever finds that a node
fails says so, and all go on at another, each with what it had under way. Requests that may have
happened are repeated only if that changes nothing (`retry.py`); publishing has its own retries,
made safe by message ids. Without another node, `call` waits for the connection to stand before it
sends.

Times go by the node's clock. A message for "in five seconds" should not be early or late by as much
as two computers disagree, so the difference is taken at the start, and left out where it cannot be
known from the time the question took.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import TypeVar, cast

import grpc

from waterclock.client.calls import DoneBefore, clock_difference, others_of
from waterclock.client.channel import CurrentChannel, channel_of
from waterclock.client.encryption import Keys
from waterclock.client.errors import UnusableAddress, error_of, needs_tls, unreachable
from waterclock.client.native.links import NodeLinks
from waterclock.client.nodes import Nodes, NodeWait
from waterclock.client.retry import (
    Backoff,
    is_for_another,
    is_transient,
    may_repeat,
    was_never_sent,
    was_refused,
)
from waterclock.client.settings import ClientSettings
from waterclock.client.streams.http_pool import HttpPool
from waterclock.client.target import Given, Target, target_of
from waterclock.client.tls_probe import speaks_tls
from waterclock.cluster.peer_link.client_frames import CALLS_MAX
from waterclock.model.clock import Clock
from waterclock.model.errors import (
    BadInput,
    Closed,
    NotAuthenticated,
    TimedOut,
    Unreachable,
    WaterclockError,
)
from waterclock.model.ids import Millis
from waterclock.model.protobuf import from_proto
from waterclock.model.views import NodeInfo
from waterclock.runtime.clock import SystemClock
from waterclock.runtime.tracing import Tracer, tracer_of
from waterclock.security.credential import Credential
from waterclock.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    backup_pb2_grpc,
    broker_pb2_grpc,
    scheduler_pb2_grpc,
    write_registry_pb2_grpc,
)

Request = TypeVar("Request")
Response = TypeVar("Response")
Method = grpc.aio.UnaryUnaryMultiCallable[Request, Response]

_log = logging.getLogger("waterclock.client")

_OPTIONS: list[tuple[str, int]] = [
    # The node has limits of its own and names them.
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # A client's trouble with a node is its own, not shared with all others in the process.
    ("grpc.use_local_subchannel_pool", 1),
    # gRPC would look for a returned node after 1 s, then ever later, up to 2 min.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.http2.max_pings_without_data", 0),
]
_KEEPALIVE = {
    # A node that vanished silently is noticed, also by a subscription that only waits.
    True: [("grpc.keepalive_time_ms", 20_000), ("grpc.keepalive_timeout_ms", 10_000)],
    # Where another could be asked, so is one that hangs, before a call is out of time.
    False: [
        ("grpc.keepalive_time_ms", 1_000),
        ("grpc.keepalive_timeout_ms", 2_500),
        # Of pings by which gRPC measures the way: while one is out no other is sent.
        ("grpc.http2.ping_timeout_ms", 2_500),
    ],
}
"""By whether there is no other node."""
LEARN_S = 60.0
"""How often a node of a cluster is asked which others there are."""

_SAID_IN_FULL = (Unreachable, BadInput, NotAuthenticated)


class Connection:
    """Channels to nodes. Open it before use, close it after."""

    def __init__(
        self,
        address: Given | None,
        settings: ClientSettings,
        *,
        credential: Credential | str | None = None,
        keys: Keys | str | Path | None = None,
        clock: Clock | None = None,
        rng: Random | None = None,
    ) -> None:
        self.target = target_of(address, credential)
        self.settings = settings
        self.keys = keys if isinstance(keys, Keys | None) else Keys.from_file(keys)
        """By which values are encrypted; None: they are not."""
        self.clock = clock or SystemClock()
        self.rng = rng or Random()
        self.nodes = Nodes(self.target.addresses, self.rng)
        self.tracer: Tracer | None = None
        """What makes spans, if the program used OpenTelemetry when this was opened."""
        self.native = NodeLinks(self.target.credential, is_enabled=settings.native)
        """Links to nodes that offer the native protocol, for calls."""
        self.publish_links = NodeLinks(self.target.credential, is_enabled=settings.native)
        """Those for publishes. While one waits for its turn the node reads nothing that comes
        behind it, and acks and heartbeats must not be there."""
        self._ahead_ms = 0
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._is_open = False
        self._home = ""
        """The node that answered last."""
        self._trouble = ""
        """Why it was left."""
        self._left_home = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Connection to {self.address}>"

    @property
    def address(self) -> str:
        """The node that is asked at the moment."""
        return self.nodes.current

    async def open(self) -> admin_pb2.NodeInfo:
        """Find a node and return what it says of itself; raise Unreachable if there is none."""
        self.tracer = tracer_of("waterclock.client")
        self._is_open = True
        channel = cast(grpc.aio.Channel, CurrentChannel(self._channel))
        swift = cast(grpc.aio.Channel, CurrentChannel(self._swift_channel))
        self._broker = broker_pb2_grpc.BrokerStub(swift)
        self._scheduler = scheduler_pb2_grpc.SchedulerStub(channel)
        self._admin = admin_pb2_grpc.AdminStub(channel)
        self._write_registry = write_registry_pb2_grpc.WriteRegistryStub(channel)
        self._backups = backup_pb2_grpc.BackupsStub(channel)
        try:
            return await self._meet()
        except BaseException:
            await self.close()
            raise

    @property
    def broker(self) -> "broker_pb2_grpc.BrokerAsyncStub":
        self.check_open()
        return self._broker

    @property
    def scheduler(self) -> "scheduler_pb2_grpc.SchedulerAsyncStub":
        self.check_open()
        return self._scheduler

    @property
    def admin(self) -> "admin_pb2_grpc.AdminAsyncStub":
        self.check_open()
        return self._admin

    @property
    def write_registry(self) -> "write_registry_pb2_grpc.WriteRegistryAsyncStub":
        self.check_open()
        return self._write_registry

    @property
    def backups(self) -> "backup_pb2_grpc.BackupsAsyncStub":
        self.check_open()
        return self._backups

    @property
    def is_open(self) -> bool:
        """Calls can be made."""
        return self._is_open

    def check_open(self) -> None:
        """Raise Closed unless calls can be made."""
        if not self.is_open:
            raise Closed("the client is not open: use it inside `async with`")

    async def close(self) -> None:
        """Hang up. Calls in flight fail."""
        self._is_open = False
        self.close_links()
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()
        for links in self._links:
            await links.wait_closed()

    def close_links(self) -> None:
        """Hang up what goes by links, and dial no more."""
        for links in self._links:
            links.close()

    def now_ms(self) -> Millis:
        """Return the time by the node's clock."""
        return Millis(self.clock.now_ms() + self._ahead_ms)

    def wait(self) -> NodeWait:
        """Return what logs the waits of one user of the connection for the node."""
        return NodeWait(self.nodes, self.clock)

    async def pause(self, ms: float) -> None:
        """Wait before another attempt."""
        await asyncio.sleep(ms / 1_000)

    def http(self, url: str) -> HttpPool:
        """Return connections to a node's HTTP, shared by all calls."""
        return HttpPool(
            url,
            connections_max=self.settings.stream_connections_max,
            credential=self.target.credential,
        )

    def backoff(self) -> Backoff:
        """Return the waits between attempts at one thing."""
        settings = self.settings
        return Backoff(
            delay_ms=settings.retry_delay_ms,
            delay_ms_max=settings.retry_delay_ms_max,
            rng=self.rng,
        )

    def failed(self, address: str, error: WaterclockError, failures: int = 1) -> bool:
        """Note that a node failed at something, for the n-th time in a row; return whether another
        is asked from now on, as it is if that may help and there is one."""
        if not is_for_another(error, failures):
            return False
        if isinstance(error, UnusableAddress):
            is_left = self.nodes.drop(address)
        else:
            is_left = self.nodes.leave(address) is not None
        if is_left:
            if address == self._home:
                reason = error.reason if isinstance(error, Unreachable) else ""
                self._trouble = reason or str(error)
            self._left_home.set()
        return is_left

    async def call(
        self,
        method: Method[Request, Response],
        request: Request,
        *,
        wait_ms: int = 0,
        found: type[WaterclockError] | None = None,
    ) -> Response:
        """Make a request, which the node may let wait; return its answer, or raise our error.

        `found` is what a repeat hears if the first attempt did it, though its answer was lost; then
        DoneBefore is raised.
        """
        backoff = self.backoff()
        ends_ms = self.clock.monotonic_ms() + self.settings.call_timeout_ms + wait_ms
        context = None if self.tracer is None else self.tracer.metadata()
        may_be_done = False
        while True:
            left_ms = ends_ms - self.clock.monotonic_ms()
            address, is_alone = self.address, self.nodes.is_alone
            try:
                return await method(
                    request,
                    timeout=max(left_ms, 1) / 1_000,
                    metadata=context,
                    wait_for_ready=is_alone,
                )
            except grpc.aio.AioRpcError as rpc:
                error = error_of(rpc, address)
                pause_ms = backoff.next_ms(error)
                if found is not None and may_be_done and isinstance(error, found):
                    raise DoneBefore from rpc
                if isinstance(error, TimedOut) and not self.is_ready:
                    self.failed(address, error)
                    raise unreachable(self._addresses, "connection refused or lost") from rpc
                is_left = self.failed(address, error, backoff.failures)
                is_new = was_refused(error) or (was_never_sent(error) and (is_left or not is_alone))
                if not (is_new or may_repeat(request, error)) or pause_ms >= left_ms:
                    raise error from rpc
                may_be_done |= not is_new
            await asyncio.sleep(pause_ms / 1_000)

    @property
    def _addresses(self) -> str:
        return ", ".join(self.nodes.all)

    def _channel(self) -> grpc.aio.Channel:
        """Return the channel to the node that is current, which is made when it is first asked."""
        channel = self._channels.get(self.address)
        if channel is None:
            target = Target(self.address, self.target.credential)
            channel = channel_of(target, [*_OPTIONS, *_KEEPALIVE[self.nodes.is_alone]])
            self._channels[self.address] = channel
        return channel

    def _swift_channel(self) -> grpc.aio.Channel:
        """Return the calls over the native protocol, if there is a link to the current node that
        takes more."""
        channel = self.native.channel(self.address)
        if channel is None or len(channel.link.channels) >= CALLS_MAX:
            return self._channel()
        return cast(grpc.aio.Channel, channel)

    async def _meet(self) -> admin_pb2.NodeInfo:
        """Ask for a node until one answers or the time to connect is over."""
        ends_ms = self.clock.monotonic_ms() + self.settings.connect_timeout_ms
        backoff = self.backoff()
        while True:
            left_ms = max(ends_ms - self.clock.monotonic_ms(), 1)
            address, is_alone = self.address, self.nodes.is_alone
            try:
                # One that hangs leaves time for the others.
                node = await self._ask(left_ms / len(self.nodes))
                await self._watch_closely(address, was_alone=is_alone)
                return node
            except grpc.aio.AioRpcError as rpc:
                error = error_of(rpc, address)
                wait_ms = backoff.next_ms(error)
                if isinstance(error, TimedOut):
                    error = unreachable(address, "no answer")
                elif await self._lacks_tls(address, error):
                    error = needs_tls(address)
                is_left = self.failed(address, error, backoff.failures)
                may_pass = is_transient(error) or (is_left and not is_alone)
                if not may_pass or wait_ms >= left_ms:
                    if isinstance(error, Unreachable) and not is_alone:
                        error = unreachable(self._addresses, error.reason)
                    # Whoever has no node needs one sentence, not two tracebacks.
                    raise error from (None if isinstance(error, _SAID_IN_FULL) else rpc)
            await asyncio.sleep(wait_ms / 1_000)

    async def _ask(self, timeout_ms: float) -> admin_pb2.NodeInfo:
        """Ask the current node what it says of itself, and take over what is of use."""
        asked_ms, asked_at = self.clock.now_ms(), self.clock.monotonic_ms()
        address = self.address
        node = await self.admin.GetNode(admin_pb2.GetNodeRequest(), timeout=timeout_ms / 1_000)
        took_ms = self.clock.monotonic_ms() - asked_at
        self._ahead_ms = clock_difference(node.now_ms, asked_ms=asked_ms, took_ms=took_ms)
        self.nodes.learn(others_of(node, address))
        if self._home not in ("", address):
            _log.warning("going on at %s: %s failed (%s)", address, self._home, self._trouble)
        self._home = address
        return node

    def link_in(self, tasks: asyncio.TaskGroup, node: admin_pb2.NodeInfo) -> None:
        """Have links to the node that was met, and to others that will be, by tasks of a group."""
        for links in self._links:
            links.dial_in(tasks)
        self._link_to(node, self.address)

    def _link_to(self, node: admin_pb2.NodeInfo, address: str) -> None:
        for links in self._links:
            links.meet(node, address, is_alone=self.nodes.is_alone)

    @property
    def _links(self) -> tuple[NodeLinks, NodeLinks]:
        return self.native, self.publish_links

    def want_link(self, links: NodeLinks) -> None:
        """Look beside whether the current node takes such a link by now, if that is due."""
        address = self.address
        if links.is_wanted(address):
            links.run(address, self._meet_again(links, address))

    async def settle_link(self) -> None:
        """Have a link for calls dialled if one is due; return when it stands, or in a moment. For
        calls that go on for long."""
        self.want_link(self.native)
        await self.native.settled(self.address)

    async def _meet_again(self, links: NodeLinks, address: str) -> None:
        """Try to have a link to a node, which may have been started anew."""
        with suppress(grpc.aio.AioRpcError):
            node = await self._ask(self.settings.connect_timeout_ms)
            if address == self._home and node.http_address:
                await links.link(node, address, is_alone=self.nodes.is_alone)

    async def _watch_closely(self, address: str, *, was_alone: bool) -> None:
        """Notice sooner that a node hangs, now that there are others."""
        if was_alone and not self.nodes.is_alone:
            await self._channels.pop(address).close()

    async def follow(self, on_met: Callable[[NodeInfo], None]) -> None:
        """Ask each node that becomes the current one what it says of itself, and the same one again
        now and then, for as long as this runs: nodes come and go."""
        backoff = self.backoff()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LEARN_S):
                    await self._left_home.wait()
            self._left_home.clear()
            address = self.address
            try:
                node = await self._ask(self.settings.connect_timeout_ms)
            except grpc.aio.AioRpcError as rpc:
                error = error_of(rpc, address)
                self.failed(address, error)
                if is_transient(error):
                    self._left_home.set()
                await asyncio.sleep(backoff.next_ms(error) / 1_000)
            else:
                backoff.reset()
                self._link_to(node, address)
                on_met(from_proto(node, NodeInfo))

    async def _lacks_tls(self, address: str, error: WaterclockError) -> bool:
        """Return whether the node hung up on us because it speaks TLS only.

        gRPC says so of the last address of a name that it tried, which may not be the node's.
        """
        if self.target.credential is not None or not isinstance(error, Unreachable):
            return False
        host, _, port = address.rpartition(":")
        return await speaks_tls(host.strip("[]"), int(port))

    @property
    def is_ready(self) -> bool:
        """The node can be reached, as far as is known."""
        if any(links.find(self.address) is not None for links in self._links):
            return True
        channel = self._channels.get(self.address)
        return channel is not None and channel.get_state() is grpc.ChannelConnectivity.READY
