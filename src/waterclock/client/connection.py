"""One connection to a node: the channel, the calls on it, and what the node shows of itself.

Requests that change something are made once: a second attempt might find the first one's work and
report that. So `call` waits for the connection to stand before it sends, and repeats only what the
node refused to begin. Publishing has its own retries, made safe by message ids.

Times go by the node's clock. A message for "in five seconds" should not be early or late by as much
as two computers disagree, so the difference is taken at the start, and left out where it cannot be
known from the time the question took.
"""

import asyncio
import logging
from pathlib import Path
from random import Random
from typing import TypeVar

import grpc

from waterclock.client.channel import channel_of
from waterclock.client.encryption import Keys
from waterclock.client.errors import error_of, needs_tls, unreachable
from waterclock.client.retry import Backoff, is_transient, was_refused
from waterclock.client.settings import ClientSettings
from waterclock.client.target import target_of
from waterclock.client.tls_probe import speaks_tls
from waterclock.model.clock import Clock
from waterclock.model.errors import (
    BadInput,
    Closed,
    NotAuthenticated,
    Overloaded,
    StorageFailed,
    StorageFull,
    StoreUnavailable,
    TimedOut,
    Unreachable,
    WaterclockError,
)
from waterclock.model.ids import Millis
from waterclock.model.waiting import Waiting
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
    # A node that vanished silently is noticed, also by a subscription that only waits.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
]

_SAID_IN_FULL = (Unreachable, BadInput, NotAuthenticated)


class Connection:
    """A channel to a node. Open it before use, close it after."""

    def __init__(
        self,
        address: str | None,
        settings: ClientSettings,
        *,
        credential: Credential | str | None = None,
        keys: Keys | str | Path | None = None,
        clock: Clock | None = None,
        rng: Random | None = None,
    ) -> None:
        self.target = target_of(address, credential)
        self.address = self.target.address
        self.settings = settings
        self.keys = keys if isinstance(keys, Keys | None) else Keys.from_file(keys)
        """By which values are encrypted; None: they are not."""
        self.clock = clock or SystemClock()
        self.rng = rng or Random()
        self.tracer: Tracer | None = None
        """What makes spans, if the program used OpenTelemetry when this was opened."""
        self._ahead_ms = 0
        self._channel: grpc.aio.Channel | None = None

    def __repr__(self) -> str:
        return f"<Connection to {self.address}>"

    async def open(self) -> admin_pb2.NodeInfo:
        """Find the node and return what it says of itself; raise Unreachable if there is none."""
        self.tracer = tracer_of("waterclock.client")
        channel = self._channel = channel_of(self.target, _OPTIONS)
        self._broker = broker_pb2_grpc.BrokerStub(channel)
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
        return self._channel is not None

    def check_open(self) -> None:
        """Raise Closed unless calls can be made."""
        if not self.is_open:
            raise Closed("the client is not open: use it inside `async with`")

    async def close(self) -> None:
        """Hang up. Calls in flight fail."""
        if self._channel is not None:
            channel, self._channel = self._channel, None
            await channel.close()

    def now_ms(self) -> Millis:
        """Return the time by the node's clock."""
        return Millis(self.clock.now_ms() + self._ahead_ms)

    def wait(self) -> "NodeWait":
        """Return what logs the waits of one user of the connection for the node."""
        return NodeWait(self.address, self.clock)

    def backoff(self) -> Backoff:
        """Return the waits between attempts at one thing."""
        settings = self.settings
        return Backoff(
            delay_ms=settings.retry_delay_ms,
            delay_ms_max=settings.retry_delay_ms_max,
            rng=self.rng,
        )

    async def call(
        self, method: Method[Request, Response], request: Request, *, wait_ms: int = 0
    ) -> Response:
        """Make a request, which the node may let wait; return its answer, or raise our error."""
        backoff = self.backoff()
        ends_ms = self.clock.monotonic_ms() + self.settings.call_timeout_ms + wait_ms
        context = None if self.tracer is None else self.tracer.metadata()
        while True:
            left_ms = ends_ms - self.clock.monotonic_ms()
            timeout_s = max(left_ms, 1) / 1_000
            try:
                return await method(
                    request, timeout=timeout_s, metadata=context, wait_for_ready=True
                )
            except grpc.aio.AioRpcError as rpc:
                error = error_of(rpc, self.address)
                pause_ms = backoff.next_ms(error)
                if isinstance(error, TimedOut) and not self.is_ready:
                    raise unreachable(self.address, "connection refused or lost") from rpc
                if not was_refused(error) or pause_ms >= left_ms:
                    raise error from rpc
            await asyncio.sleep(pause_ms / 1_000)

    async def _meet(self) -> admin_pb2.NodeInfo:
        """Ask for the node until it answers or the time to connect is over."""
        ends_ms = self.clock.monotonic_ms() + self.settings.connect_timeout_ms
        backoff = self.backoff()
        while True:
            left_ms = max(ends_ms - self.clock.monotonic_ms(), 1)
            asked_ms, asked_at = self.clock.now_ms(), self.clock.monotonic_ms()
            try:
                node = await self.admin.GetNode(admin_pb2.GetNodeRequest(), timeout=left_ms / 1_000)
            except grpc.aio.AioRpcError as rpc:
                error = error_of(rpc, self.address)
                wait_ms = backoff.next_ms(error)
                if isinstance(error, TimedOut):
                    error = unreachable(self.address, "no answer")
                elif await self._lacks_tls(error):
                    error = needs_tls(self.address)
                if not is_transient(error) or wait_ms >= left_ms:
                    # Whoever has no node needs one sentence, not two tracebacks.
                    raise error from (None if isinstance(error, _SAID_IN_FULL) else rpc)
            else:
                took_ms = self.clock.monotonic_ms() - asked_at
                self._ahead_ms = clock_difference(node.now_ms, asked_ms=asked_ms, took_ms=took_ms)
                return node
            await asyncio.sleep(wait_ms / 1_000)

    async def _lacks_tls(self, error: WaterclockError) -> bool:
        """Return whether the node hung up on us because it speaks TLS only.

        gRPC says so of the last address of a name that it tried, which may not be the node's.
        """
        if self.target.credential is not None or not isinstance(error, Unreachable):
            return False
        host, _, port = self.address.rpartition(":")
        return await speaks_tls(host.strip("[]"), int(port))

    @property
    def is_ready(self) -> bool:
        """The node can be reached, as far as is known."""
        channel = self._channel
        return channel is not None and channel.get_state() is grpc.ChannelConnectivity.READY


class NodeWait:
    """One user of the connection that waits for the node: a subscription, a producer. It logs so.

    Each has its own, for what one of them can do another may not: a node whose disk is full
    delivers while it refuses to store, and is there all the time.
    """

    def __init__(self, address: str, clock: Clock) -> None:
        node = f"the node at {address}"
        self._clock = clock
        self._absence = Waiting(node)
        self._refusal = Waiting(f"{node}, which refuses", ends=f"{node} accepts again")

    def __repr__(self) -> str:
        return f"<NodeWait {self._absence!r}, {self._refusal!r}>"

    def away(self, error: WaterclockError) -> None:
        """Note that an attempt failed and is made again; says so, but not each time."""
        is_refusal = isinstance(error, StorageFull | StorageFailed | Overloaded | StoreUnavailable)
        reason = error.reason if isinstance(error, Unreachable) else ""
        waiting = self._refusal if is_refusal else self._absence
        self._say(waiting.away(reason or str(error), self._now_s()))

    def here(self) -> None:
        """Note that the node did what was wanted of it."""
        for waiting in (self._absence, self._refusal):
            if waiting.is_waiting:
                self._say(waiting.here(self._now_s()))

    def _now_s(self) -> float:
        return self._clock.monotonic_ms() / 1_000

    def _say(self, said: str | None) -> None:
        # A warning, which Python shows on stderr though nobody has set up its logging.
        if said is not None:
            _log.warning("%s", said)


def clock_difference(node_ms: int, *, asked_ms: int, took_ms: int) -> int:
    """Return how far a node's clock is ahead, 0 if that may be the time its answer took."""
    earliest, latest = asked_ms, asked_ms + took_ms
    # A millisecond more each way, for both clocks are cut to whole ones.
    if earliest - 1 <= node_ms <= latest + 1:
        return 0
    return node_ms - (earliest + latest) // 2
