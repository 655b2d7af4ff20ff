"""A network in one process, on virtual time and from one seed: what it does to packets and nodes.

Nodes are the real cores and packets are real bytes. Packets are lost, late, out of order and there
twice, as the weather says. A node is killed, started anew, stopped for a while (SIGSTOP), cut off,
or cut off one way: nothing reaches it, or nothing leaves it.

Streams carry the state as objects, for its encoding is tested elsewhere. TCP sends again what is
lost, after a second for a handshake and a fifth of one for data, as Linux does, so loss makes an
exchange late, and an exchange that is too late has failed. It needs both ways, and can break at any
step: a node may have been told and its answer lost.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random
from typing import Any

from waterclock.cluster.gossip import (
    Effect,
    Failed,
    Gossip,
    GossipConfig,
    Joined,
    Left,
    MemberEvent,
    OpenPushPull,
    OpenStreamPing,
    SendPacket,
    State,
    Updated,
)
from waterclock.cluster.gossip.keyring import OVERHEAD_BYTES
from waterclock.cluster.gossip.messages import Address
from waterclock.cluster.gossip.streams import PushPull, encode_stream
from waterclock.cluster.node_tags import LEAVING, NodeTags
from waterclock.cluster.ring_members import RingMembers

LOSS_MAX = 0.05
STRAGGLE_MS = 400
"""How much later than others a straggler can be."""
BACKLOG_MAX = 256
"""Packets that wait for a node that is stopped: what a socket's buffer of 208 KiB has room for."""
PACKET_HEAD_BYTES = 28 + OVERHEAD_BYTES
"""Of IP and UDP, and the seal of a secured cluster."""
SEGMENT_BYTES = 1_448
SEGMENT_HEAD_BYTES = 52
HANDSHAKE_BYTES = 3 * SEGMENT_HEAD_BYTES
"""Of one side, from the first segment of a connection to its last."""
SYN_AGAIN_MS = 1_000
DATA_AGAIN_MS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """What the network does to what it carries; shares are of packets, 0 to 1."""

    delay_ms: tuple[int, int] = (1, 5)
    loss: float = 0.0
    twice: float = 0.0
    late: float = 0.0
    """Packets that later ones overtake."""
    broken: float = 0.0
    """Steps of exchanges over TCP that fail, whatever the reason."""

    @property
    def is_rough(self) -> bool:
        """Whether more is lost than gossip must bear without a false alarm."""
        return self.loss > LOSS_MAX or self.broken > LOSS_MAX


def address_of(number: int) -> Address:
    return f"10.0.{number >> 8}.{number & 255}", 7946


def tags_of(name: str) -> dict[str, str]:
    """Return what a real node of a cluster says of itself, as long as that is."""
    return NodeTags(
        cluster="waterclock", http=f"http://{name}.nodes.internal:8080",
        peer_host=f"{name}.nodes.internal", peer_port=7950, points=200, zone="eu-central-1a",
    ).encode()  # fmt: skip


Passes = Callable[[Address, Address, str], bool]
"""Says from where, to where and of "packet" or "stream" whether anything gets through."""


class SimulatedNode:
    """A core, and what the network does to it."""

    def __init__(self, name: str, gossip: Gossip, address: Address) -> None:
        self.name = name
        self.gossip = gossip
        self.address = address
        self.is_up = True
        self.is_paused = False
        self.is_inbound_cut = False
        self.is_outbound_cut = False
        self.side = 0
        self.backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        """What came while it was stopped."""
        self.deadline_ms: int | None = None
        self.known = {name}
        """Who is there, by the events it told of."""
        self.leaving: set[str] = set()
        """Who says that it will leave."""
        self.ring_members = RingMembers(name)
        self.ring = self.ring_members.nodes
        self.is_ring_due = False
        self.events: list[tuple[int, MemberEvent]] = []
        self.sent_bytes = 0

    def __repr__(self) -> str:
        return f"<SimulatedNode {self.name}, {len(self.known)} known>"

    def alive(self) -> set[str]:
        """The names of those it holds for alive, suspects too."""
        members = self.gossip.members()
        return {each.name for each in members if each.state <= State.SUSPECT}

    def state_of(self, name: str) -> State | None:
        members = self.gossip.members()
        return next((each.state for each in members if each.name == name), None)

    def happened(self, kind: type) -> list[str]:
        """The names of members in events of a kind."""
        return [event.member.name for _, event in self.events if isinstance(event, kind)]  # type: ignore[union-attr]


class SimulatedNetwork:
    """Nodes and what is under way between them."""

    def __init__(
        self, seed: int, *, config: GossipConfig | None = None, weather: Weather | None = None,
        start_s: int = 1_700_000_000,
    ) -> None:  # fmt: skip
        self.rng = Random(seed)
        self.config = config or GossipConfig.lan()
        self.weather = weather or Weather()
        self.now_ms = 0
        self.nodes: dict[str, SimulatedNode] = {}
        self.counts: Counter[str] = Counter()
        self.on_event: Callable[[SimulatedNode, MemberEvent], None] = lambda node, event: None
        self.on_ring: Callable[[SimulatedNode], None] = lambda node: None
        """Told of a node whose ring has changed."""
        self._start_s = start_s
        self._by_address: dict[Address, SimulatedNode] = {}
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._passes: Passes | None = None
        self._is_clear = True

    # What happens to nodes

    def add(
        self, name: str, *, seeds: Collection[str] = (), incarnation: int | None = None
    ) -> SimulatedNode:
        """Start a node, or start it anew at the same address."""
        old = self.nodes.get(name)
        address = old.address if old is not None else address_of(len(self.nodes) + 1)
        if incarnation is None:
            incarnation = self._start_s + self.now_ms // 1_000
        gossip = Gossip(
            self.config, name=name, address=address, tags=tags_of(name),
            incarnation=incarnation, rng=Random(self.rng.random()), overhead_bytes=OVERHEAD_BYTES,
        )  # fmt: skip
        node = SimulatedNode(name, gossip, address)
        if old is not None:
            old.is_up = False
            node.side, node.is_inbound_cut, node.is_outbound_cut = (
                old.side,
                old.is_inbound_cut,
                old.is_outbound_cut,
            )
        self.nodes[name] = self._by_address[address] = node
        self._perform(node, gossip.start(self.now_ms))
        self._perform(node, gossip.join([self.nodes[each].address for each in seeds], self.now_ms))
        return node

    def settle(self) -> None:
        """Let all nodes know each other, as if that had happened long ago."""
        nodes = self.nodes.values()
        state = PushPull(tuple(node.gossip._state(is_join=False).states[0] for node in nodes))
        for node in nodes:
            self._perform(node, node.gossip.push_pull_answered(state, self.now_ms))
            node.gossip._outbox.broadcasts.clear()

    def kill(self, name: str) -> None:
        self.nodes[name].is_up = False

    def leave(self, name: str) -> None:
        """Let a node say goodbye, and end once it has."""
        node = self.nodes[name]
        self.begin_to_leave(name)
        while not node.gossip.has_sent_all:
            self.run(50)
        node.is_up = False

    def begin_to_leave(self, name: str) -> None:
        """Let a node say goodbye."""
        node = self.nodes[name]
        self._perform(node, node.gossip.leave(self.now_ms))

    def declare_failed(self, name: str, *, by: str) -> None:
        """Let one node see that the process of another is gone."""
        node = self.nodes[by]
        if node.is_up and not node.is_paused:
            self._perform(node, node.gossip.declare_failed(name, self.now_ms))

    def set_tags(self, name: str, tags: dict[str, str]) -> None:
        node = self.nodes[name]
        self._perform(node, node.gossip.set_tags(tags, self.now_ms))

    def pause(self, name: str, length_ms: int) -> None:
        """Let a node stand still; of what comes meanwhile it reads afterwards what was kept."""
        node = self.nodes[name]
        if node.is_up and not node.is_paused:
            node.is_paused = True
            self.at(self.now_ms + length_ms, self._resume, node)

    def split(self, *sides: Iterable[str]) -> None:
        """Let nothing pass between these groups and the rest; without any, heal."""
        for node in self.nodes.values():
            node.side = 0
        for number, side in enumerate(sides, 1):
            for name in side:
                self.nodes[name].side = number
        self._look_at_sky()

    def cut_outbound(self, *names: str) -> None:
        """Let nothing leave these nodes; without any, heal."""
        for node in self.nodes.values():
            node.is_outbound_cut = node.name in names
        self._look_at_sky()

    def cut_inbound(self, *names: str) -> None:
        """Let nothing reach these nodes; without any, heal."""
        for node in self.nodes.values():
            node.is_inbound_cut = node.name in names
        self._look_at_sky()

    def block(self, passes: Passes | None) -> None:
        """Let only some things pass."""
        self._passes = passes
        self._look_at_sky()

    # Time

    def run(self, length_ms: int) -> None:
        """Let time pass."""
        end_ms = self.now_ms + length_ms
        heap = self._heap
        while heap and heap[0][0] <= end_ms:
            self.now_ms, _, action, args = heappop(heap)
            action(*args)
        self.now_ms = end_ms

    def run_until(self, reached: Callable[[], bool], most_ms: int, step_ms: int = 100) -> int:
        """Let time pass until something holds; return how long that took."""
        began_ms = self.now_ms
        while not reached():
            assert self.now_ms - began_ms < most_ms, "it did not happen in time"
            self.run(step_ms)
        return self.now_ms - began_ms

    def running(self) -> list[SimulatedNode]:
        return [node for node in self.nodes.values() if node.is_up]

    def is_agreed(self) -> bool:
        """Say whether all nodes that run hold all of them, and nobody else, for alive."""
        running = self.running()
        names = {node.name for node in running}
        return all(node.known == names for node in running)

    def check(self) -> None:
        """Assert what must hold at any time, and that events told the truth."""
        for node in self.running():
            node.gossip.check_invariants()
            node.ring_members.check_invariants()
            assert node.known == node.alive(), node

    def at(self, due_ms: int, action: Callable[..., None], *args: Any) -> None:
        """Let something happen."""
        self._count += 1
        heappush(self._heap, (due_ms, self._count, action, args))

    # What nodes do

    def _perform(self, node: SimulatedNode, effects: list[Effect]) -> None:
        for effect in effects:
            if type(effect) is SendPacket:
                self._send(node, effect.address, effect.payload)
            else:
                self._other(node, effect)
        due_ms = node.gossip.next_deadline()
        if due_ms is not None and due_ms != node.deadline_ms:
            node.deadline_ms = due_ms
            self.at(max(due_ms, self.now_ms), self._tick, node, due_ms)

    def _other(self, node: SimulatedNode, effect: Effect) -> None:
        match effect:
            case OpenPushPull(address, state):
                end_ms = self.now_ms + self.config.stream_timeout_ms
                self._connect(
                    node, address, len(encode_stream(state)), self._push_pull, state, end_ms
                )
            case OpenStreamPing(address, ping, deadline_ms):
                self._connect(node, address, 64, self._stream_ping, ping, deadline_ms)
            case SendPacket():
                raise AssertionError("a packet is sent elsewhere")
            case _:
                self._note(node, effect)

    def _note(self, node: SimulatedNode, event: MemberEvent) -> None:
        node.events.append((self.now_ms, event))
        match event:
            case Joined(member) | Updated(member):
                node.known.add(member.name)
                is_leaving = LEAVING.encode() in member.meta
                (node.leaving.add if is_leaving else node.leaving.discard)(member.name)
            case Failed(member) | Left(member):
                node.known.discard(member.name)
        self.on_event(node, event)
        if not node.is_ring_due:
            node.is_ring_due = True
            self.at(self.now_ms, self._ring_due, node)

    def _ring_due(self, node: SimulatedNode) -> None:
        node.is_ring_due = False
        members = node.ring_members
        members.present(node.known - node.leaving - {node.name}, self.now_ms)
        members.tick(self.now_ms)
        due_ms = members.next_deadline()
        if due_ms is not None:
            self.at(due_ms, self._ring_due, node)
        if members.nodes != node.ring:
            node.ring = members.nodes
            self.on_ring(node)

    def _tick(self, node: SimulatedNode, deadline_ms: int) -> None:
        if node.deadline_ms != deadline_ms:
            return  # another deadline came before it
        if node.is_up and not node.is_paused:
            node.deadline_ms = None
            self._perform(node, node.gossip.tick(self.now_ms))

    def _resume(self, node: SimulatedNode) -> None:
        node.is_paused = False
        backlog, node.backlog = node.backlog, []
        # A loop that wakes up may look at its clock first, or at its sockets.
        is_clock_first = self.rng.random() < 0.5
        for turn in (is_clock_first, not is_clock_first):
            if turn and node.deadline_ms is not None:
                self._tick_late(node)
            elif not turn:
                for action, args in backlog:
                    action(*args)

    def _tick_late(self, node: SimulatedNode) -> None:
        if node.is_up and node.deadline_ms is not None and node.deadline_ms <= self.now_ms:
            node.deadline_ms = None
            self._perform(node, node.gossip.tick(self.now_ms))

    def _is_awake(self, node: SimulatedNode, action: Callable[..., None], *args: Any) -> bool:
        """Say if a node can do something now; if it is stopped, let it be done afterwards."""
        if node.is_up and node.is_paused and len(node.backlog) < BACKLOG_MAX:
            node.backlog.append((action, args))
        return node.is_up and not node.is_paused

    # Packets

    def _send(self, node: SimulatedNode, address: Address, payload: bytes) -> None:
        node.sent_bytes += len(payload) + PACKET_HEAD_BYTES
        self.counts["packets"] += 1
        weather, rng = self.weather, self.rng
        if weather.loss and rng.random() < weather.loss:
            return
        self.at(self._later(), self._packet, address, node, payload)
        if weather.twice and rng.random() < weather.twice:
            self.at(self._later(), self._packet, address, node, payload)

    def _later(self) -> int:
        weather, rng = self.weather, self.rng
        least, most = weather.delay_ms
        delay_ms = least + int(rng.random() * (most - least + 1))
        if weather.late and rng.random() < weather.late:
            delay_ms += int(rng.random() * STRAGGLE_MS)
        return self.now_ms + delay_ms

    def _packet(self, address: Address, source: SimulatedNode, payload: bytes) -> None:
        node = self._by_address.get(address)
        if node is None or not (self._is_clear or self.is_open(source, node, "packet")):
            return
        if self._is_awake(node, self._packet, address, source, payload):
            effects = node.gossip.packet_received(payload, source.address, self.now_ms)
            self._perform(node, effects)

    def _look_at_sky(self) -> None:
        self._is_clear = self._passes is None and not any(
            node.side or node.is_outbound_cut or node.is_inbound_cut for node in self.nodes.values()
        )

    def is_open(self, source: SimulatedNode, target: SimulatedNode, how: str) -> bool:
        """Say whether anything gets from one node to another."""
        if source.side != target.side or source.is_outbound_cut or target.is_inbound_cut:
            return False
        return self._passes is None or self._passes(source.address, target.address, how)

    # Streams

    def _connect(
        self, asker: SimulatedNode, address: Address, size: int, then: Callable[..., None],
        what: Any, end_ms: int,
    ) -> None:  # fmt: skip
        self.counts["streams"] += 1
        asker.sent_bytes += self._stream_bytes(size)
        shaken_ms = self._delivery_ms(1, SYN_AGAIN_MS) + self._delivery_ms(1, SYN_AGAIN_MS)
        due_ms = self.now_ms + shaken_ms + self._delivery_ms(size, DATA_AGAIN_MS)
        if due_ms <= end_ms:
            self.at(due_ms, then, address, asker, what, end_ms)

    def _answer(
        self, node: SimulatedNode, asker: SimulatedNode, size: int, then: Callable[..., None],
        what: Any, end_ms: int,
    ) -> None:  # fmt: skip
        node.sent_bytes += self._stream_bytes(size)
        due_ms = self.now_ms + self._delivery_ms(size, DATA_AGAIN_MS)
        if due_ms <= end_ms:
            self.at(due_ms, then, node, asker, what, end_ms)

    def _stream_bytes(self, size: int) -> int:
        return HANDSHAKE_BYTES + size + size // SEGMENT_BYTES * SEGMENT_HEAD_BYTES

    def _delivery_ms(self, size: int, again_ms: int) -> int:
        """Return how long it takes until bytes are there, of which some may be lost and sent
        again."""
        took_ms = self._later() - self.now_ms
        missing = 1 + size // SEGMENT_BYTES
        while self.weather.loss and missing:
            missing = sum(self.rng.random() < self.weather.loss for _ in range(missing))
            if missing:
                took_ms += again_ms
                again_ms *= 2
        return took_ms

    def _is_connected(self, one: SimulatedNode, other: SimulatedNode) -> bool:
        if self.weather.broken and self.rng.random() < self.weather.broken:
            return False
        return self._is_clear or (
            self.is_open(one, other, "stream") and self.is_open(other, one, "stream")
        )

    def _push_pull(
        self, address: Address, asker: SimulatedNode, state: PushPull, end_ms: int
    ) -> None:
        node = self._by_address.get(address)
        if node is None or not self._is_connected(asker, node):
            return
        if self._is_awake(node, self._push_pull, address, asker, state, end_ms):
            answer, effects = node.gossip.push_pull_received(state, self.now_ms)
            size = len(encode_stream(answer))
            self._answer(node, asker, size, self._answered, answer, end_ms)
            self._perform(node, effects)

    def _answered(
        self, node: SimulatedNode, asker: SimulatedNode, answer: PushPull, end_ms: int
    ) -> None:
        if self.now_ms > end_ms or not self._is_connected(asker, node):
            return
        if self._is_awake(asker, self._answered, node, asker, answer, end_ms):
            self._perform(asker, asker.gossip.push_pull_answered(answer, self.now_ms))

    def _stream_ping(self, address: Address, asker: SimulatedNode, ping: Any, end_ms: int) -> None:
        node = self._by_address.get(address)
        if node is None or not self._is_connected(asker, node):
            return
        if self._is_awake(node, self._stream_ping, address, asker, ping, end_ms):
            ack = node.gossip.stream_ping_received(ping)
            if ack is not None:
                self._answer(node, asker, 16, self._stream_acked, ack.seq_no, end_ms)

    def _stream_acked(
        self, node: SimulatedNode, asker: SimulatedNode, seq_no: int, end_ms: int
    ) -> None:
        if self.now_ms > end_ms or not self._is_connected(asker, node):
            return
        if self._is_awake(asker, self._stream_acked, node, asker, seq_no, end_ms):
            self._perform(asker, asker.gossip.stream_acked(seq_no, self.now_ms))


def cluster(count: int, seed: int = 1, *, loss: float = 0.0) -> SimulatedNetwork:
    """Return a network with nodes n1, n2, … that found each other."""
    network = SimulatedNetwork(seed, weather=Weather(loss=loss))
    for number in range(1, count + 1):
        network.add(f"n{number}", seeds=["n1"] if number > 1 else [])
    network.run_until(network.is_agreed, 60_000)
    return network
