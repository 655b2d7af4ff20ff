"""Many nodes that settle, on a network that delivers in any order of links and breaks them.

Streams are lists of messages. Clients send and receive at any node that thinks that it may answer.
What must hold is checked as it happens: a message is received once, and (`is_orderly`, if no node
was killed and no link broke) a stream is begun only if nobody has it.
"""

from collections import deque
from collections.abc import Iterator
from itertools import count
from random import Random
from typing import Any
from zlib import crc32

from waterclock.cluster.hash_ring import HashRing
from waterclock.cluster.settling import (
    Ask,
    Confirm,
    Effect,
    Greet,
    Look,
    Lose,
    Resend,
    Send,
    Settling,
    TakeBack,
)

CHUNK_STREAMS = 2
Streams = dict[str, list[int]]


def _hash(name: bytes) -> int:
    return crc32(name)


def ring_of(nodes: set[str]) -> HashRing:
    return HashRing(nodes, _hash, points=8)


class SimNode:
    """A node: the core, its memory, and the chunks that it has sent."""

    def __init__(self, net: "Net", name: str, run: int) -> None:
        self.net = net
        self.name = name
        self.core = net.core_type(name, run=run)
        self.memory: Streams = {}
        self.chunks: dict[int, Streams] = {}
        self.versions: dict[int, int] = {}
        self.asked: dict[str, int] = {}
        self.askers: dict[str, int] = {}
        """The last question to each node, and of each node: older ones were cancelled."""
        self.unseen: list[str] = []
        """What is left to look at."""
        self.is_looking = False
        self.is_leaving = False

    def may_serve(self, name: str) -> bool:
        ring = self.core.ring
        if ring is None or not ring.nodes or ring.owner(name) != self.name:
            return False
        return self.core.may_serve(name, is_in_memory=name in self.memory)

    def look(self) -> None:
        """Look at one more stream."""
        if self.unseen:
            self.core.found(self.unseen.pop())
        else:
            self.is_looking = False
            self.perform(self.core.looked(self.net.now_ms))

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Look():
                    self.unseen, self.is_looking = sorted(self.memory), True
                case Greet(node):
                    self.net.post(self.name, node, "greet")
                case Ask(node, version):
                    self.asked[node] = next(self.net.numbers)
                    self.net.post(self.name, node, "ask", version, self.asked[node])
                case Confirm(node):
                    assert self.core.ring is not None
                    answer = (self.core.ring.version, self.askers[node])
                    self.net.post(self.name, node, "confirmed", *answer)
                case Send(node):
                    self._send(node)
                case Resend(node, number):
                    self._post_chunk(node, number)
                case TakeBack(number):
                    self.take_in(self.chunks.pop(number))
                case Lose(number):
                    self.net.lost.update(*self.chunks.pop(number).values())

    def _send(self, node: str) -> None:
        found: Streams = {}
        while len(found) < CHUNK_STREAMS and (name := self.core.next_name(node)) is not None:
            if name in self.memory:
                found[name] = self.memory.pop(name)
        if not found:
            self.perform(self.core.emptied())
            return
        assert self.core.ring is not None
        number = self.core.sent(node, found)
        self.chunks[number] = found
        self.versions[number] = self.core.ring.version
        self._post_chunk(node, number)

    def _post_chunk(self, node: str, number: int) -> None:
        streams = {name: list(messages) for name, messages in self.chunks[number].items()}
        self.net.post(self.name, node, "chunk", number, self.versions[number], streams)

    def take_in(self, streams: Streams) -> None:
        for name, messages in streams.items():
            self.memory.setdefault(name, []).extend(messages)

    def hear(self, node: str, kind: str, *facts: Any) -> None:
        core, now_ms = self.core, self.net.now_ms
        match kind, *facts:
            case ("greet",):
                self.net.post(self.name, node, "greeted", core.run)
            case "greeted", run:
                self.perform(core.greeted(node, run, now_ms))
            case "ask", version, number:
                self.askers[node] = number
                self.perform(core.asked(node, version))
            case "confirmed", version, number:
                if self.asked[node] == number:
                    core.confirmed(node, version)
            case "chunk", number, version, streams:
                is_new = core.arrives(node, number, version, now_ms)
                if is_new:
                    self.take_in(streams)
                self.net.post(self.name, node, "put off" if is_new is False else "taken", number)
            case "taken", number:
                self.chunks.pop(number, None)
                self.perform(core.taken(node, number, now_ms))
            case "put off", number:
                self.perform(core.put_off(node, number, now_ms))


class Net:
    """The nodes, their links, and who is a member in truth."""

    def __init__(self, random: Random, names: list[str], core: type[Settling] = Settling) -> None:
        self.random = random
        self.core_type = core
        self.names = names
        self.now_ms = 0
        self.nodes: dict[str, SimNode] = {}
        self.members: set[str] = set()
        self.links: dict[tuple[str, str], deque[tuple[Any, ...]]] = {}
        """What is under way, one way each."""
        self.lost: set[int] = set()
        self.sent: set[int] = set()
        self.received: set[int] = set()
        self.is_orderly = True
        self.numbers = count(1)
        self._runs = count(1)

    # Membership

    def join(self, name: str) -> None:
        node = self.nodes[name] = SimNode(self, name, next(self._runs))
        self.members.add(name)
        for other in list(self.nodes):
            self.link(name, other)
        self.see(node)

    def leave(self, name: str) -> None:
        self.members.discard(name)
        self.nodes[name].is_leaving = True
        self.see(self.nodes[name])

    def kill(self, name: str) -> None:
        self.is_orderly = False
        self._end(name)

    def _end(self, name: str) -> None:
        node = self.nodes[name]
        for other in list(self.nodes):
            self.cut(name, other)
        del self.nodes[name]
        self.members.discard(name)
        self.lost.update(*node.memory.values())
        for chunk in node.chunks.values():
            self.lost.update(*chunk.values())

    def see(self, node: SimNode) -> None:
        """Let a node learn who is a member."""
        node.perform(node.core.ring_changed(ring_of(self.members), self.now_ms))

    # Links

    def link(self, one: str, two: str) -> None:
        if one == two or (one, two) in self.links:
            return
        self.links[one, two], self.links[two, one] = deque(), deque()
        for here, there in ((one, two), (two, one)):
            node = self.nodes[here]
            node.perform(node.core.link_up(there, self.now_ms))

    def cut(self, one: str, two: str) -> None:
        if (one, two) not in self.links:
            return
        del self.links[one, two], self.links[two, one]
        for here, there in ((one, two), (two, one)):
            node = self.nodes[here]
            node.perform(node.core.link_down(there))

    def post(self, source: str, target: str, *message: Any) -> None:
        if (link := self.links.get((source, target))) is not None:
            link.append(message)

    # Steps

    def deliver(self) -> bool:
        """Deliver something; False if nothing is under way."""
        ready = sorted(pair for pair, queue in self.links.items() if queue)
        if not ready:
            return False
        source, target = self.random.choice(ready)
        message = self.links[source, target].popleft()
        self.nodes[target].hear(source, *message)
        return True

    def work(self) -> bool:
        """Have a node look at a stream; False if none has to."""
        looking = [node for node in self.nodes.values() if node.is_looking]
        if not looking:
            return False
        self.random.choice(looking).look()
        return True

    def serve(self) -> None:
        """Send something, and receive something, wherever a node takes it."""
        name = f"s{self.random.randrange(12)}"
        for node in self._servers(name):
            if self.random.random() < 0.5:
                if name not in node.memory and self.is_orderly:
                    assert not self.who_has(name), f"{name} is begun anew at {node.name}"
                self.sent.add(number := next(self.numbers))
                node.memory.setdefault(name, []).append(number)
            elif node.memory.get(name):
                number = node.memory[name].pop(0)
                assert number not in self.received, f"{number} is received twice"
                self.received.add(number)

    def _servers(self, name: str) -> Iterator[SimNode]:
        return (node for node in list(self.nodes.values()) if node.may_serve(name))

    def who_has(self, name: str) -> list[str]:
        nodes = self.nodes.values()
        found = [node.name for node in nodes if name in node.memory]
        chunks = [chunk for node in nodes for chunk in node.chunks.values()]
        return found + ["a chunk" for chunk in chunks if name in chunk]

    def step(self) -> None:
        self.now_ms += 1
        for _ in range(3):
            self.deliver()
            self.work()
        for node in list(self.nodes.values()):
            node.perform(node.core.tick(self.now_ms))
            if node.is_leaving and node.core.may_leave:
                self._end(node.name)
            elif self.random.random() < 0.3:
                self.see(node)
        self.serve()

    def settle(self) -> None:
        """Let everybody see the same, and all be done; fail if that takes too long."""
        for one in self.nodes:
            for two in self.nodes:
                self.link(one, two)
        for _ in range(2_000):
            self.now_ms += 20
            for node in list(self.nodes.values()):
                node.perform(node.core.tick(self.now_ms))
                if node.is_leaving and node.core.may_leave:
                    self._end(node.name)
                else:
                    self.see(node)
            while self.deliver() or self.work():
                pass
            if all(node.core.is_sent and node.core.is_settled for node in self.nodes.values()):
                return
        raise AssertionError(f"not settled: {[node.core for node in self.nodes.values()]}")

    def check(self) -> None:
        """Fail unless every message is with its owner, was received, or was lost with a node."""
        ring = ring_of(self.members)
        kept: list[int] = []
        for node in self.nodes.values():
            for name, messages in node.memory.items():
                assert ring.owner(name) == node.name, f"{name} is at {node.name}"
                kept += messages
        assert len(kept) == len(set(kept)), "something would be received twice"
        assert not self.received.intersection(kept), "what was received is there again"
        assert self.sent - self.lost <= self.received.union(kept)
        for name in (f"s{number}" for number in range(12)):
            assert len(list(self._servers(name))) == 1, f"{name} is not served once"
