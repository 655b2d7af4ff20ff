"""A network in one process, on virtual time: loss, delay, partitions, pauses, from one seed.

Nodes are the real cores; packets are real bytes. Streams carry the state as objects, for encoding
is tested elsewhere, and arrive or fail like a connection would.
"""

from collections import Counter
from collections.abc import Callable, Collection
from heapq import heappop, heappush
from random import Random
from typing import Any

from waterclock.cluster.gossip import (
    Effect,
    Gossip,
    GossipConfig,
    MemberEvent,
    OpenPushPull,
    OpenStreamPing,
    SendPacket,
    State,
)
from waterclock.cluster.gossip.messages import Address


def address_of(number: int) -> Address:
    return f"10.0.{number >> 8}.{number & 255}", 7946


class SimulatedNode:
    """A core, and what the network does to it."""

    def __init__(self, gossip: Gossip, address: Address) -> None:
        self.gossip = gossip
        self.address = address
        self.is_up = True
        self.paused_until_ms = 0
        self.deadline_ms: int | None = None
        self.events: list[tuple[int, MemberEvent]] = []
        self.sent_bytes = 0

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
        self, seed: int, *, config: GossipConfig | None = None, loss: float = 0.0,
        delay_ms: tuple[int, int] = (1, 5), start_s: int = 1_700_000_000,
    ) -> None:  # fmt: skip
        self.rng = Random(seed)
        self.config = config or GossipConfig.lan()
        self.loss = loss
        self.delay_ms = delay_ms
        self.now_ms = 0
        self.nodes: dict[str, SimulatedNode] = {}
        self.packets: Counter[str] = Counter()
        self._start_s = start_s
        self._by_address: dict[Address, SimulatedNode] = {}
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._sides: list[set[Address]] = []
        self.passes: Callable[[Address, Address, str], bool] = lambda source, target, how: True

    def add(
        self, name: str, *, seeds: Collection[str] = (), incarnation: int | None = None
    ) -> SimulatedNode:
        """Start a node, or start it anew at the same address."""
        old = self.nodes.get(name)
        address = old.address if old is not None else address_of(len(self.nodes) + 1)
        if incarnation is None:
            incarnation = self._start_s + self.now_ms // 1_000
        gossip = Gossip(
            self.config, name=name, address=address, tags={"id": name},
            incarnation=incarnation, rng=Random(self.rng.random()),
        )  # fmt: skip
        node = SimulatedNode(gossip, address)
        self.nodes[name] = self._by_address[address] = node
        self._perform(node, gossip.start(self.now_ms))
        self._perform(node, gossip.join([self.nodes[each].address for each in seeds], self.now_ms))
        return node

    def kill(self, name: str) -> None:
        self.nodes[name].is_up = False

    def leave(self, name: str) -> None:
        """Let a node say goodbye, and end once it has."""
        node = self.nodes[name]
        self._perform(node, node.gossip.leave(self.now_ms))
        while not node.gossip.has_sent_all:
            self.run(50)
        node.is_up = False

    def set_tags(self, name: str, tags: dict[str, str]) -> None:
        node = self.nodes[name]
        self._perform(node, node.gossip.set_tags(tags, self.now_ms))

    def pause(self, name: str, length_ms: int) -> None:
        """Let a node stand still; what comes meanwhile it reads afterwards."""
        self.nodes[name].paused_until_ms = self.now_ms + length_ms

    def split(self, *sides: Collection[str]) -> None:
        """Let nothing pass between these groups; without any, heal."""
        self._sides = [{self.nodes[name].address for name in side} for side in sides]

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

    def check(self) -> None:
        for node in self.nodes.values():
            node.gossip.check_invariants()

    def _at(self, due_ms: int, action: Callable[..., None], *args: Any) -> None:
        self._count += 1
        heappush(self._heap, (due_ms, self._count, action, args))

    def _perform(self, node: SimulatedNode, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendPacket(address, payload):
                    node.sent_bytes += len(payload) + 28  # with the heads of IP and UDP
                    if self._arrives(node.address, address, "packet"):
                        self._at(self._later(), self._packet, address, node.address, payload)
                case OpenPushPull(address, state):
                    if self._arrives(node.address, address, "stream"):
                        self._at(self._later(), self._push_pull, address, node, state)
                case OpenStreamPing(address, ping, deadline_ms):
                    if self._arrives(node.address, address, "stream"):
                        self._at(self._later(), self._stream_ping, address, node, ping, deadline_ms)
                case _:
                    node.events.append((self.now_ms, effect))
        due_ms = node.gossip.next_deadline()
        if due_ms is not None and due_ms != node.deadline_ms:
            node.deadline_ms = due_ms
            self._at(max(due_ms, self.now_ms), self._tick, node, due_ms)

    def _arrives(self, source: Address, target: Address, how: str) -> bool:
        self.packets[how] += 1
        for side in self._sides:
            if (source in side) != (target in side):
                return False
        # TCP sends again what is lost.
        is_lost = how == "packet" and self.loss and self.rng.random() < self.loss
        return not is_lost and self.passes(source, target, how)

    def _later(self) -> int:
        least, most = self.delay_ms
        return self.now_ms + least + int(self.rng.random() * (most - least + 1))

    def _awake(self, node: SimulatedNode, action: Callable[..., None], *args: Any) -> bool:
        """Say if a node can do something now; if it is paused, let it be done afterwards."""
        if node.is_up and node.paused_until_ms > self.now_ms:
            self._at(node.paused_until_ms, action, *args)
            return False
        return node.is_up

    def _tick(self, node: SimulatedNode, deadline_ms: int) -> None:
        if node.deadline_ms != deadline_ms:
            return  # another deadline came before it
        if self._awake(node, self._tick, node, deadline_ms):
            node.deadline_ms = None
            self._perform(node, node.gossip.tick(self.now_ms))

    def _packet(self, address: Address, source: Address, payload: bytes) -> None:
        node = self._by_address.get(address)
        if node is not None and self._awake(node, self._packet, address, source, payload):
            self._perform(node, node.gossip.packet_received(payload, source, self.now_ms))

    def _push_pull(self, address: Address, asker: SimulatedNode, state: Any) -> None:
        node = self._by_address.get(address)
        if node is not None and self._awake(node, self._push_pull, address, asker, state):
            answer, effects = node.gossip.push_pull_received(state, self.now_ms)
            self._perform(node, effects)
            if self._arrives(address, asker.address, "stream"):
                self._at(self._later(), self._answered, asker, answer)

    def _answered(self, asker: SimulatedNode, answer: Any) -> None:
        if self._awake(asker, self._answered, asker, answer):
            self._perform(asker, asker.gossip.push_pull_answered(answer, self.now_ms))

    def _stream_ping(self, address: Address, asker: SimulatedNode, ping: Any, end_ms: int) -> None:
        node = self._by_address.get(address)
        if node is None or not self._awake(node, self._stream_ping, address, asker, ping, end_ms):
            return
        ack = node.gossip.stream_ping_received(ping)
        if ack is not None and self._arrives(address, asker.address, "stream"):
            self._at(self._later(), self._stream_acked, asker, ack.seq_no, end_ms)

    def _stream_acked(self, asker: SimulatedNode, seq_no: int, end_ms: int) -> None:
        if asker.is_up and self.now_ms <= end_ms:
            self._perform(asker, asker.gossip.stream_acked(seq_no, self.now_ms))


def cluster(count: int, seed: int = 1, **settings: Any) -> SimulatedNetwork:
    """Return a network with nodes n1, n2, … that know each other."""
    network = SimulatedNetwork(seed, **settings)
    for number in range(1, count + 1):
        network.add(f"n{number}", seeds=["n1"] if number > 1 else [])
    names = set(network.nodes)
    network.run_until(lambda: all(each.alive() == names for each in network.nodes.values()), 60_000)
    return network
