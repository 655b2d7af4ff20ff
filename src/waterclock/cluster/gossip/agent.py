"""The shell around the core: UDP and TCP on one port, a timer, and the seal of each packet.

It decides nothing. What arrives is opened and handed to the core, and what the core returns is done
in its order. One timer stands for all deadlines. A peer that sends nonsense, hangs or is not there
costs a counter and a log line; an exchange over TCP has a time limit, and there are never more than
EXCHANGES_MAX at once.
"""

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random
from time import time
from typing import Any, TypeAlias, cast

from waterclock.cluster.gossip.config import GossipConfig
from waterclock.cluster.gossip.discovery import Seeds
from waterclock.cluster.gossip.effects import (
    Effect,
    Member,
    MemberEvent,
    MergeRefused,
    OpenPushPull,
    OpenStreamPing,
    SendPacket,
)
from waterclock.cluster.gossip.errors import BadPacket
from waterclock.cluster.gossip.gossip import Gossip
from waterclock.cluster.gossip.keyring import NONCE_BYTES, OVERHEAD_BYTES, Keyring
from waterclock.cluster.gossip.messages import Ack, Address, ErrorAnswer, Ping
from waterclock.cluster.gossip.streams import (
    PushPull,
    StreamMessage,
    StreamReader,
    encode_stream,
    sealed_stream,
)

EXCHANGES_MAX = 64
"""Connections that are served at once, and as many that are made: who hangs cannot hold up ours."""
SEEDS_INTERVAL_S = 30
"""How often the seeds are looked up anew."""
LEAVE_S_MAX = 5
"""How long a leave may take to be told."""
_CHUNK = 1 << 16
_PORT_TRIES = 16
WILDCARDS = ("", "0.0.0.0", "::")
"""Hosts that are every address of this machine."""

_log = logging.getLogger(__name__)

Exchange: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
"""One connection: it begins when it is called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """What an agent is and where."""

    name: str
    """Unique in the cluster."""
    bind: Address
    """Where it listens, over UDP and TCP; port 0: any that is free."""
    advertise: str | None = None
    """The IP address others reach it at; None: the one it listens at, or that of the route out."""
    tags: Mapping[str, str] = field(default_factory=dict)
    gossip: GossipConfig = field(default_factory=GossipConfig.lan)
    keyring: Keyring | None = None
    """With keys, nothing is sent and nothing is read that is not sealed."""
    seeds: Seeds = field(default_factory=lambda: Seeds([]))


@dataclass(slots=True)
class AgentCounts:
    """What came and went, for metrics. Bytes are those of packets, sealed."""

    packets_sent: int = 0
    packets_received: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    packets_refused: int = 0
    exchanges_failed: int = 0


@asynccontextmanager
async def running_agent(
    settings: AgentSettings, on_event: Callable[[MemberEvent], None], *, rng: Random | None = None
) -> AsyncIterator["Agent"]:
    """Be a member of the cluster. Call `leave` before the end, or others take it for a failure.

    `on_event` is told of members, in the loop, and must not wait.
    """
    loop = asyncio.get_running_loop()
    udp, tcp = _sockets(settings.bind)
    with closing(udp), closing(tcp):
        async with asyncio.TaskGroup() as tasks:
            agent = Agent(settings, _own_address(settings, udp), on_event, tasks, rng or Random())
            transport, _ = await loop.create_datagram_endpoint(lambda: agent, sock=udp)
            server = await asyncio.start_server(agent.connected, sock=tcp, backlog=EXCHANGES_MAX)
            agent.start()
            try:
                yield agent
            finally:
                agent.stop()
                server.close()
                transport.close()


class Agent(asyncio.DatagramProtocol):
    """A running member."""

    def __init__(
        self,
        settings: AgentSettings,
        address: Address,
        on_event: Callable[[MemberEvent], None],
        tasks: asyncio.TaskGroup,
        rng: Random,
    ) -> None:
        self.address = address
        self.counts = AgentCounts()
        self._loop = asyncio.get_running_loop()
        self._settings = settings
        self._keyring = settings.keyring
        self._stream_s = settings.gossip.stream_timeout_ms / 1_000
        self._on_event = on_event
        self._tasks = tasks
        self._running: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        """Of connections that are served."""
        self._transport: asyncio.DatagramTransport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopped = False
        self._all_sent = asyncio.Event()
        self._seeds = settings.seeds
        self._seeds_changed = asyncio.Event()
        self.tried = asyncio.Event()
        """Set once every seed was asked, or could not be."""
        self._gossip = Gossip(
            settings.gossip,
            name=settings.name,
            address=address,
            tags=settings.tags,
            incarnation=int(time()),
            rng=rng,
            overhead_bytes=OVERHEAD_BYTES if settings.keyring is not None else 0,
        )

    def members(self) -> list[Member]:
        """Return all nodes that are known, this one first; the dead until they are forgotten."""
        return self._gossip.members()

    @property
    def score(self) -> int:
        """How far the node doubts itself: 0 is not at all."""
        return self._gossip.score

    @property
    def probes(self) -> tuple[int, int]:
        """How often a member was checked, and how often nobody was there."""
        return self._gossip.probes

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Say something else of this node. Raise LimitExceeded if it is too long."""
        self._perform(self._gossip.set_tags(tags, self._now_ms()))

    def declare_failed(self, name: str) -> None:
        """Tell the others that a member's process is gone; it refutes that if it is not so."""
        self._perform(self._gossip.declare_failed(name, self._now_ms()))

    def set_seeds(self, seeds: Seeds) -> None:
        """Join by others from now on."""
        self._seeds = seeds
        self._seeds_changed.set()

    async def leave(self) -> None:
        """Tell the others that this node goes, and wait until they were told."""
        self._perform(self._gossip.leave(self._now_ms()))
        try:
            async with asyncio.timeout(LEAVE_S_MAX):
                while not self._gossip.has_sent_all:
                    self._all_sent.clear()
                    await self._all_sent.wait()
        except TimeoutError:
            _log.warning("leave_not_told name=%s", self._settings.name)

    def start(self) -> None:
        """Begin; called once, by `running_agent`."""
        self._perform(self._gossip.start(self._now_ms()))
        self._spawn(self._follow_seeds())

    def stop(self) -> None:
        """Do nothing any more; called once, by `running_agent`."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._running:
            task.cancel()
        # A task that is cancelled before its first step closes nothing.
        for writer in self._writers:
            writer.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        if self._is_stopped:
            return
        self.counts.packets_received += 1
        self.counts.bytes_received += len(data)
        source = (str(addr[0]), int(addr[1]))
        try:
            payload = data if self._keyring is None else self._keyring.open(data)
            effects = self._gossip.packet_received(payload, source, self._now_ms())
        except BadPacket as error:
            self.counts.packets_refused += 1
            _log.debug("packet_refused source=%s:%d reason=%s", *source, error)
            return
        self._perform(effects)

    def error_received(self, exc: Exception) -> None:
        # The kernel says that nobody listens there; the probe finds out by itself.
        _log.debug("packet_not_delivered reason=%s", exc)

    def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection, or close it at once if there are too many."""
        if self._is_stopped or len(self._writers) >= EXCHANGES_MAX:
            writer.transport.abort()
            return
        peer = writer.get_extra_info("peername")[:2]
        self._writers.add(writer)
        self._spawn(self._exchange(peer, partial(self._serve, reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(self._stream_s):
                match await self._read(reader):
                    case PushPull() as remote:
                        answer, effects = self._gossip.push_pull_received(remote, self._now_ms())
                        self._write(writer, answer)
                        self._perform(effects)
                    case Ping() as ping:
                        if (ack := self._gossip.stream_ping_received(ping)) is not None:
                            self._write(writer, ack)
                await writer.drain()
        finally:
            self._writers.discard(writer)
            writer.close()

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendPacket(address, payload):
                    self._send(address, payload)
                case OpenPushPull(address, state):
                    self._open(address, partial(self._push_pull, address, state))
                case OpenStreamPing(address, ping, deadline_ms):
                    self._open(address, partial(self._stream_ping, address, ping, deadline_ms))
                case _:
                    self._report(effect)
        if self._gossip.has_sent_all:
            self._all_sent.set()
        self._set_timer()

    def _report(self, event: MemberEvent) -> None:
        _log.info("%s %s", type(event).__name__.lower(), _described(event))
        self._on_event(event)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        due_ms = self._gossip.next_deadline()
        if due_ms is not None and not self._is_stopped:
            self._timer = self._loop.call_at(due_ms / 1_000, self._tick)

    def _tick(self) -> None:
        self._perform(self._gossip.tick(self._now_ms()))

    def _now_ms(self) -> int:
        # The loop may call a timer a clock's resolution early: round, so that its deadline is here.
        return round(self._loop.time() * 1_000)

    def _send(self, address: Address, payload: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._keyring is not None:
            payload = self._keyring.seal(payload, nonce=os.urandom(NONCE_BYTES))
        self.counts.packets_sent += 1
        self.counts.bytes_sent += len(payload)
        self._transport.sendto(payload, address)

    def _open(self, address: Address, exchange: Exchange) -> None:
        if self._is_stopped or len(self._running) - len(self._writers) > EXCHANGES_MAX:
            self.counts.exchanges_failed += 1
            return
        self._spawn(self._exchange(address, exchange))

    async def _exchange(self, address: Address, exchange: Exchange) -> None:
        try:
            await exchange()
        except (OSError, TimeoutError, BadPacket) as error:
            self.counts.exchanges_failed += 1
            reason = str(error) or type(error).__name__
            _log.debug("exchange_failed address=%s:%d reason=%s", *address, reason)

    async def _push_pull(self, address: Address, state: PushPull) -> None:
        async with asyncio.timeout(self._stream_s):
            answer = await self._ask(address, state)
        if not isinstance(answer, PushPull):
            raise BadPacket(f"a push/pull is answered by {type(answer).__name__}")
        self._perform(self._gossip.push_pull_answered(answer, self._now_ms()))

    async def _stream_ping(self, address: Address, ping: Ping, deadline_ms: int) -> None:
        async with asyncio.timeout_at(deadline_ms / 1_000):
            answer = await self._ask(address, ping)
        if not isinstance(answer, Ack) or answer.seq_no != ping.seq_no:
            raise BadPacket(f"a ping is answered by {type(answer).__name__}")
        self._perform(self._gossip.stream_acked(answer.seq_no, self._now_ms()))

    async def _ask(self, address: Address, message: StreamMessage) -> StreamMessage:
        reader, writer = await asyncio.open_connection(*address)
        try:
            self._write(writer, message)
            await writer.drain()
            answer = await self._read(reader)
        finally:
            writer.close()
        if isinstance(answer, ErrorAnswer):
            raise BadPacket(f"the other side refuses: {answer.reason}")
        return answer

    async def _read(self, reader: asyncio.StreamReader) -> StreamMessage:
        stream = StreamReader(self._keyring)
        while data := await reader.read(_CHUNK):
            if (message := stream.feed(data)) is not None:
                return message
        raise BadPacket("a stream that ends early")

    def _write(self, writer: asyncio.StreamWriter, message: StreamMessage) -> None:
        data = encode_stream(message)
        if self._keyring is not None:
            data = sealed_stream(data, self._keyring, nonce=os.urandom(NONCE_BYTES))
        writer.write(data)

    async def _follow_seeds(self) -> None:
        known: set[Address] = set()
        while True:
            self._seeds_changed.clear()
            found = await self._seeds.addresses()
            if found and set(found) != known:
                known = set(found)
                others = set(self._running)
                self._perform(self._gossip.join(found, self._now_ms()))
                if asking := self._running - others:
                    await asyncio.wait(asking)
            self.tried.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(SEEDS_INTERVAL_S if known else 1):
                    await self._seeds_changed.wait()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._tasks.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)


def _described(event: MemberEvent) -> str:
    if isinstance(event, MergeRefused):
        return f"reason={event.reason}"
    host, port = event.member.address
    return f"name={event.member.name} address={host}:{port}"


def _sockets(bind: Address) -> tuple[socket.socket, socket.socket]:
    """Return a socket for packets and one for streams, on the same port."""
    host, port = bind
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for tries_left in range(_PORT_TRIES, 0, -1):
        tcp = socket.socket(family, socket.SOCK_STREAM)
        udp = socket.socket(family, socket.SOCK_DGRAM)
        try:
            tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tcp.bind((host, port))
            udp.bind((host, tcp.getsockname()[1]))
        except OSError:
            tcp.close()
            udp.close()
            # Of a port that was chosen for TCP, UDP may be taken: choose another.
            if port or tries_left == 1:
                raise
            continue
        for each in (tcp, udp):
            each.setblocking(False)
        return udp, tcp
    raise AssertionError("unreachable")


def _own_address(settings: AgentSettings, udp: socket.socket) -> Address:
    host, port = udp.getsockname()[:2]
    if settings.advertise is not None:
        return settings.advertise, port
    return (host if host not in WILDCARDS else route_out(udp.family)), port


def route_out(family: int) -> str:
    """Return the address of this machine that others see."""
    # Connecting a datagram socket sends nothing: it only asks for the route (RFC 5737's example).
    aim = "2001:db8::1" if family == socket.AF_INET6 else "192.0.2.1"
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((aim, 9))
        return str(probe.getsockname()[0])
