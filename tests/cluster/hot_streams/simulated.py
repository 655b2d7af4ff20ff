"""Nodes that share a hot stream on a virtual clock and network: the real core, everything else made
up of lists. One seed is one story: senders and polls at every node, growth, shrinking, a node that
joins, leaves or dies, links that break.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any

from waterclock.cluster.hash_ring import HashRing
from waterclock.cluster.hot_streams import exchange
from waterclock.cluster.hot_streams.partitions import (
    Effect,
    Exchanged,
    Local,
    Partitions,
    Released,
    Return,
    SendKeep,
)
from waterclock.cluster.hot_streams.scaler import ScalerConfig
from waterclock.cluster.hot_streams.split import PARTITION_LEASE_MS
from waterclock.log.id_index.fingerprint import fingerprint

STREAM = "hot"
CONFIG = ScalerConfig(
    rate=40, up_window_ms=3_000, down_window_ms=6_000, cool_down_ms=3_000, pin_ms=8_000
)
HASTY = replace(CONFIG, shrink_percent=100, down_window_ms=3_000, cool_down_ms=0)
SIZE = 100_000
TICK_MS = 100
DELAY_MS_MAX = 20
RING_MS_MAX = 300
"""How long after another a node may hear of a change of the ring."""
STARVED_MS = 1_500
"""A poll and a message that have waited for so long should have met."""

Answer = Callable[[Any], None]
"""Takes an answer; None: there is none."""


def _hash(name: bytes) -> int:
    return fingerprint(name, 7)


class Violation(AssertionError):
    """A promise was broken."""


class Poll:
    """A receiver that waits, and the node that asks for it."""

    def __init__(self, front: "SimulatedNode", deadline_ms: int) -> None:
        self.front = front
        self.since_ms = 0
        self.deadline_ms = deadline_ms


class SimulatedNode:
    """A node: the core, the messages and polls in its memory, and open channels."""

    def __init__(self, name: str, world: "World") -> None:
        self.name = name
        self.world = world
        self.ring = world.ring
        self.is_alive = True
        self.messages: deque[tuple[int, int]] = deque()
        """Each with the time since when it is here."""
        self.polls: deque[Poll] = deque()
        self.core = Partitions(name, world.config, self._look, self.ring, world.now_ms)
        self.wants: dict[str, Answer] = {}
        self.watches: list[Answer] = []
        self.is_returning = False
        self.has_order = False

    def _look(self, stream: str) -> Local:
        room = SIZE - len(self.messages)
        return Local(len(self.messages), len(self.polls), room, SIZE, self.has_order)

    @property
    def is_owner(self) -> bool:
        return self.ring.owner(STREAM) == self.name

    @property
    def is_part(self) -> bool:
        return self.is_owner or STREAM in self.core.exchanges

    # Requests of clients

    def take_message(self, message: int) -> None:
        self.messages.append((message, self.world.now_ms))
        self._match()

    def take_poll(self, poll: Poll) -> None:
        poll.since_ms = self.world.now_ms
        self.polls.append(poll)
        self._match()

    def _match(self) -> None:
        while self.messages and self.polls:
            self.world.deliver(self.messages.popleft()[0])
            self.polls.popleft()
        self.perform(self.core.changed(STREAM))

    # Time

    def tick(self) -> None:
        now_ms = self.world.now_ms
        self.polls = deque(poll for poll in self.polls if poll.deadline_ms > now_ms)
        self.perform(self.core.tick(now_ms))
        if not self.is_part and self.world.plant != "nothing is returned":
            self._return()

    def change_ring(self) -> None:
        self.ring = self.world.ring
        self.perform(self.core.ring_changed(self.ring, self.world.now_ms))

    # What the core wants

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Exchanged):
                self._exchange(effect.effect)
            elif isinstance(effect, SendKeep):
                node, keep = effect
                reported = partial(self._reported, node)
                self.world.ask(self, node, _keep(self, keep), reported)
            elif isinstance(effect, Released):
                for answer in [*self.watches, *self.wants.values()]:
                    answer(None)
                self.watches, self.wants = [], {}
            elif isinstance(effect, Return) and self.world.plant != "nothing is returned":
                self._return()

    def _exchange(self, effect: exchange.Effect) -> None:
        ask, plant = self.world.ask, self.world.plant
        if isinstance(effect, exchange.Want):
            root, size = effect
            ask(self, root, lambda n, a: n.hear_want(self, size, a), self._directed)
        elif isinstance(effect, exchange.Watch):
            node = effect.node
            ask(self, node, lambda n, a: n.hear_watch(a), lambda c: self._has(node, c))
        elif isinstance(effect, exchange.Has):
            watches, self.watches = self.watches, []
            for answer in watches:
                answer(effect.messages)
        elif isinstance(effect, exchange.Tell):
            if plant == "a want is forgotten" and self.world.random.random() < 0.1:
                return
            self.wants.pop(effect.node)(effect.source)
        else:
            source, size = effect
            ask(
                self,
                source,
                lambda n, a: n.hear_pull(size, a),
                lambda found: self._pulled(source, found),
            )

    def _reported(self, node: str, report: Any) -> None:
        if report is not None:
            self.perform(self.core.reported(STREAM, node, report, self.world.now_ms))

    def _directed(self, source: str | None) -> None:
        self.perform(self.core.answered(STREAM, source))

    def _has(self, node: str, size: int | None) -> None:
        self.perform(self.core.has(STREAM, node, size or 0))

    def _pulled(self, source: str, found: tuple[list[int], int] | None) -> None:
        if found is None:
            self.perform(self.core.pull_failed(STREAM))
            return
        items, left = found
        for message in items:
            if self.polls or self.world.plant != "surplus is dropped":
                self.messages.append((message, self.world.now_ms))
        while self.messages and self.polls:
            self.world.deliver(self.messages.popleft()[0])
            self.polls.popleft()
        self.perform(self.core.pulled(STREAM, source, left if items else 0))

    def _return(self) -> None:
        """Bring everything to the owner, as the hand-over of streams does."""
        polls, self.polls = self.polls, deque()
        for poll in polls:
            self.world.later(self.world.poll_again, poll)
        if self.is_returning or not self.messages:
            return
        self.is_returning = True
        items = [message for message, _ in self.messages]
        self.messages.clear()

        def answered(answer: Any) -> None:
            self.is_returning = False
            for item in items if answer == "refused" else ():
                self.take_message(item)

        owner = self.ring.owner(STREAM)
        self.world.ask(self, owner, lambda n, a: n.hear_return(items, a), answered, items)

    # What others say

    def hear_keep(self, sender: "SimulatedNode", keep: Any, answer: Answer) -> None:
        report, effects = self.core.keep_heard(sender.name, keep, self.world.now_ms)
        self.perform(effects)
        answer(report)

    def hear_want(self, node: "SimulatedNode", size: int, answer: Answer) -> None:
        self.wants[node.name] = answer
        effects = self.core.wanted(STREAM, node.name, size)
        if effects is None:
            self.wants.pop(node.name)(None)
        else:
            self.perform(effects)

    def hear_watch(self, answer: Answer) -> None:
        self.watches.append(answer)
        effects = self.core.watched(STREAM)
        if self.world.plant == "a watch sees only what comes" and effects:
            return
        if effects is None:
            self.watches.pop()(None)
        else:
            self.perform(effects)

    def hear_pull(self, size: int, answer: Answer) -> None:
        if STREAM not in self.core.exchanges:
            answer(None)
            return
        found = [self.messages.popleft()[0] for _ in range(min(size, len(self.messages)))]
        if self.world.plant == "pulled messages stay":
            self.messages.extendleft((message, 0) for message in reversed(found))
        answer((found, len(self.messages)))
        self.perform(self.core.changed(STREAM))

    def hear_return(self, items: list[int], answer: Answer) -> None:
        if not self.is_owner:
            answer("refused")
            return
        for message in items:
            self.take_message(message)
        answer("taken")


def _keep(sender: SimulatedNode, keep: Any) -> Callable[[SimulatedNode, Answer], None]:
    return lambda node, answer: node.hear_keep(sender, keep, answer)


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
