"""Nodes that share a hot stream on a virtual clock and network: the real core, everything else made
up of lists. One seed is one story: senders and polls at every node, growth, shrinking, a node that
joins, leaves or dies, links that break.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any

from tests.cluster.hot_streams.simulated_node import STREAM, Answer, Poll, SimulatedNode
from waterclock.cluster.hash_ring import HashRing
from waterclock.cluster.hot_streams.scaler import ScalerConfig
from waterclock.cluster.hot_streams.split import PARTITION_LEASE_MS
from waterclock.log.id_index.fingerprint import fingerprint

CONFIG = ScalerConfig(
    rate=40, up_window_ms=3_000, down_window_ms=6_000, cool_down_ms=3_000, pin_ms=8_000
)
HASTY = replace(CONFIG, shrink_percent=100, down_window_ms=3_000, cool_down_ms=0)
TICK_MS = 100
DELAY_MS_MAX = 20
RING_MS_MAX = 300
"""How long after another a node may hear of a change of the ring."""
STARVED_MS = 1_500
"""A poll and a message that have waited for so long should have met."""


def _hash(name: bytes) -> int:
    return fingerprint(name, 7)


class Violation(AssertionError):
    """A promise was broken."""


class World:
    """The clock, the network, the clients and the judge."""

    def __init__(self, seed: int, nodes: int, plant: str = "") -> None:
        self.random = Random(seed)
        self.plant = plant
        self.config = HASTY if plant == "no hysteresis" else CONFIG
        self.now_ms = 1_000_000
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._number = count()
        self._names = count()
        self._busy_until: dict[tuple[str, str], int] = {}
        self._asked: dict[int, tuple[str, str, Answer, list[int]]] = {}
        """Channels that are open: from, to, who hears, and messages that go with them."""
        self.cut: dict[frozenset[str], int] = {}
        """How often a link broke."""
        self.ring = HashRing((), _hash)
        self.nodes: dict[str, SimulatedNode] = {}
        self.sent = 0
        self.delivered: dict[int, int] = {}
        self.excused: set[int] = set()
        self.faults_ms = 0
        """When something was last broken or changed."""
        self.senders = self.pollers = ""
        """The node that all messages are sent to, and that of all polls; empty: any."""
        self.rate = 0.0
        self.poll_rate = 0.0
        for _ in range(nodes):
            self.nodes[f"n{next(self._names)}"] = None  # type: ignore[assignment]
        self.ring = HashRing(self.nodes, _hash)
        for name in self.nodes:
            self.nodes[name] = SimulatedNode(name, self)
        self.at(self.now_ms + TICK_MS, self._tick)
        self.at(self.now_ms, self._client)

    # Time

    def at(self, at_ms: int, action: Callable[[], None]) -> None:
        heappush(self._events, (at_ms, next(self._number), action))

    def later(self, action: Callable[..., None], *args: Any) -> None:
        self.at(self.now_ms + self.random.randint(1, DELAY_MS_MAX), partial(action, *args))

    def run(self, span_ms: int) -> None:
        end_ms = self.now_ms + span_ms
        while self._events and self._events[0][0] <= end_ms:
            self.now_ms, _, action = heappop(self._events)
            action()
        self.now_ms = end_ms

    def _tick(self) -> None:
        for node in [node for node in self.nodes.values() if node.is_alive]:
            node.tick()
        self.judge_waiting()
        self.at(self.now_ms + TICK_MS, self._tick)

    # The network

    def ask(
        self,
        front: SimulatedNode,
        to: str,
        hear: Callable[[SimulatedNode, Answer], None],
        answered: Answer,
        items: list[int] | None = None,
    ) -> None:
        """Ask something of a node; a link that breaks answers None."""
        number = next(self._number)
        self._asked[number] = (front.name, to, answered, items or [])
        breaks = self._breaks(front.name, to)

        def answer(value: Any) -> None:
            if number not in self._asked:
                return
            taken = value[0] if type(value) is tuple else []
            source, target, _, _ = self._asked[number]
            self._asked[number] = (source, target, answered, taken)
            self._carry(to, front.name, partial(self._answered, number, value))

        def arrive() -> None:
            node = self.nodes.get(to)
            if number not in self._asked or breaks != self._breaks(front.name, to):
                return
            if node is None or not node.is_alive:
                self._fail(number)
            else:
                self._asked[number] = (front.name, to, answered, [])
                hear(node, answer)

        self._carry(front.name, to, arrive)

    def _answered(self, number: int, value: Any) -> None:
        if number in self._asked:
            front, _, answered, _ = self._asked.pop(number)
            if self.nodes[front].is_alive:
                answered(value)

    def _carry(self, source: str, to: str, action: Callable[[], None]) -> None:
        """In order, as a connection does."""
        at_ms = self.now_ms + self.random.randint(1, DELAY_MS_MAX)
        at_ms = self._busy_until[source, to] = max(at_ms, self._busy_until.get((source, to), 0))
        self.at(at_ms, action)

    def _breaks(self, one: str, other: str) -> int:
        return self.cut.get(frozenset((one, other)), 0)

    def _fail(self, number: int) -> None:
        front, _, answered, items = self._asked.pop(number)
        self.excused.update(items)
        if self.nodes[front].is_alive:
            answered(None)

    def break_link(self, one: str, other: str) -> None:
        """Whatever is on its way is lost; both sides hear of it."""
        pair = frozenset((one, other))
        self.cut[pair] = self.cut.get(pair, 0) + 1
        self.faults_ms = self.now_ms
        for number in [n for n, (a, b, _, _) in self._asked.items() if {a, b} == pair]:
            self._fail(number)

    # Nodes

    def set_ring(self, names: list[str]) -> None:
        self.ring = HashRing(names, _hash)
        self.faults_ms = self.now_ms + RING_MS_MAX
        for node in self.nodes.values():
            if node.is_alive:
                wait_ms = self.random.randint(0, RING_MS_MAX)
                self.at(self.now_ms + wait_ms, node.change_ring)

    def kill(self, name: str) -> None:
        node = self.nodes[name]
        node.is_alive = False
        self.excused.update(message for message, _ in node.messages)
        for poll in node.polls:
            self.later(self.poll_again, poll)
        for other in self.nodes:
            self.break_link(name, other)
        self.set_ring([each for each in self.ring.nodes if each != name])

    def restart(self, name: str) -> None:
        """End a node and begin it anew before anyone takes it from the ring: it knows nothing."""
        before = self.nodes[name]
        before.is_alive = False
        self.excused.update(message for message, _ in before.messages)
        for other in self.nodes:
            self.break_link(name, other)
        self.nodes[name] = SimulatedNode(name, self)
        for poll in before.polls:
            self.later(self.poll_again, poll)
        self.faults_ms = self.now_ms + PARTITION_LEASE_MS

    def join(self) -> None:
        name = f"n{next(self._names)}"
        self.nodes[name] = SimulatedNode(name, self)
        self.set_ring([*self.ring.nodes, name])

    def leave(self, name: str) -> None:
        """Out of the ring; the node itself stays to bring away what it has."""
        self.set_ring([each for each in self.ring.nodes if each != name])

    # Clients

    def _client(self) -> None:
        for rate, action in ((self.rate, self.send), (self.poll_rate, self.poll)):
            times = int(rate / 100) + (self.random.random() < rate / 100 % 1)
            for _ in range(times):
                action()
        self.at(self.now_ms + 10, self._client)

    def _front(self, name: str) -> SimulatedNode:
        fronts = [self.nodes[each] for each in self.ring.nodes if self.nodes[each].is_alive]
        chosen = [node for node in fronts if node.name == name]
        return self.random.choice(chosen or fronts)

    def send(self) -> None:
        self.sent += 1
        self._send(self._front(self.senders), self.sent, is_first=True)

    def _send(self, front: SimulatedNode, message: int, *, is_first: bool) -> None:
        if not front.is_alive:
            self.excused.add(message)
            return
        route = front.core.routes.get(STREAM)
        to = None if route is None or not is_first else route.send()
        if route is None or not is_first:
            to = front.ring.owner(STREAM)
        if to is None:
            to = front.name

        def hear(node: SimulatedNode, answer: Answer) -> None:
            if node.is_part:
                node.core.used(STREAM)
                node.take_message(message)
                answer("taken")
            else:
                answer("refused")

        def answered(value: Any) -> None:
            if value == "refused":
                self.later(lambda: self._send(front, message, is_first=False))

        self._ask_or_do(front, to, hear, answered, [message])

    def poll(self) -> None:
        wait_ms = self.random.choice((500, 3_000, 10_000))
        poll = Poll(self._front(self.pollers), self.now_ms + wait_ms)
        self._poll(poll, is_first=True)

    def poll_again(self, poll: Poll) -> None:
        self._poll(poll, is_first=False)

    def _poll(self, poll: Poll, *, is_first: bool) -> None:
        if not poll.front.is_alive or poll.deadline_ms <= self.now_ms:
            return
        route = poll.front.core.routes.get(STREAM)
        if route is None or not is_first:
            to = poll.front.ring.owner(STREAM)
        else:
            is_at_home = self.plant == "polls stay at home" and route.index < route.keep.read
            to = (None if is_at_home else route.poll()) or poll.front.name

        def hear(node: SimulatedNode, answer: Answer) -> None:
            if node.is_part:
                node.core.used(STREAM)
                node.take_poll(poll)
                answer("taken")
            else:
                answer("refused")

        def answered(value: Any) -> None:
            if value != "taken":
                self.later(self.poll_again, poll)

        self._ask_or_do(poll.front, to, hear, answered, [])

    def _ask_or_do(
        self,
        front: SimulatedNode,
        to: str,
        hear: Callable[[SimulatedNode, Answer], None],
        answered: Answer,
        items: list[int],
    ) -> None:
        if to == front.name:
            hear(front, answered)
        else:
            self.ask(front, to, hear, answered, items)

    # The judge

    def deliver(self, message: int) -> None:
        """A receiver has a message."""
        if message in self.delivered:
            raise Violation(f"message {message} was delivered twice")
        self.delivered[message] = self.now_ms

    def judge_waiting(self) -> None:
        """No poll waits while a message waits, once what was broken has settled."""
        since_ms = self.now_ms - STARVED_MS
        if self.faults_ms + STARVED_MS > since_ms:
            return
        alive = [node for node in self.nodes.values() if node.is_alive]
        waiting = [n.name for n in alive if n.polls and n.polls[0].since_ms <= since_ms]
        backlog = [n.name for n in alive if n.messages and n.messages[0][1] <= since_ms]
        if waiting and backlog:
            raise Violation(f"polls wait at {waiting} while messages wait at {backlog}")

    def judge_lost(self) -> None:
        """All that was sent was delivered, but for what was on a node or link that died."""
        lost = set(range(1, self.sent + 1)) - set(self.delivered) - self.excused
        if lost:
            raise Violation(f"{len(lost)} of {self.sent} messages are lost: {sorted(lost)[:5]}")

    @property
    def count(self) -> int:
        """How many partitions take sends."""
        split = self.nodes[self.ring.owner(STREAM)].core.split_of(STREAM)
        return 1 if split is None else split.write
