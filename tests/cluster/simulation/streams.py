"""Streams in a simulated cluster: the core that moves them, the links between nodes, and clients.

The rings are what gossip makes them, so nodes have different ones for a while, and false ones after
a partition. A link is a TCP connection: what it carries arrives in order, late while one end is
stopped or cut off, and is lost when it breaks, which is at once if a process ends and after a few
seconds of silence else; at times it breaks by itself, above all while streams move. Clients send
and receive at any node, which passes them on to whom it takes for the owner. The judge finds

    received twice   a message went to two receivers
    begun anew       a stream was begun while another node had it, though nobody failed
    lost             messages are gone, though nobody failed that had them
    blocked          a stream is answered for by nobody, or for longer than anybody would wait
    misplaced        a stream is at a node that does not own it, when all has been quiet for long
"""

from collections import defaultdict
from itertools import count
from typing import Any

from tests.cluster.settling_net import SimNode, ring_of
from tests.cluster.simulation.network import SimulatedNode, tags_of
from tests.cluster.simulation.trial import Trial
from waterclock.cluster.node_tags import LEAVING
from waterclock.cluster.settling import Settling

NAMES = [f"s{number}" for number in range(24)]
PUMP_MS = 10
LOOKS = 5
"""Streams that a node looks at in that time."""
SILENCE_MS = 4_000
"""After which a link breaks."""
RESETS = 0.0002
RESETS_WHILE_BUSY = 0.4
"""How likely it is that a link breaks by itself in the time of a pump."""
DIAL_MS = 250
DRAIN_MS = 30_000
"""How long a node that leaves waits until it has handed over all."""


class _Link:
    """A connection between two nodes."""

    def __init__(self, now_ms: int) -> None:
        self.heard_ms = now_ms
        self.due_ms: dict[str, int] = defaultdict(int)
        """When the last message to each end arrives: they arrive in order."""
        self.is_broken = False


class StreamCluster:
    """The nodes of a trial with their streams."""

    core_type = Settling

    def __init__(self, trial: Trial, *, is_orderly: bool) -> None:
        """`is_orderly` if nothing will fail: then nothing may be lost or begun anew."""
        self.trial = trial
        self.network = trial.network
        self.is_orderly = is_orderly
        self.nodes: dict[str, SimNode] = {}
        self.numbers = count(1)
        self.sent: set[int] = set()
        self.received: set[int] = set()
        self.lost: set[int] = set()
        self.blocked_ms_max = 0
        self._runs = count(1)
        self._links: dict[frozenset[str], _Link] = {}
        self._dial_ms: dict[frozenset[str], int] = {}
        self._blocked: dict[str, int] = {}
        self._leaving: dict[str, int] = {}
        self._ending: set[str] = set()
        self._joined: set[str] = set()
        """Nodes that have met others: before, clients are not sent there."""
        self.network.on_ring = self._ring_changed
        self.network.at(self.network.now_ms + PUMP_MS, self._pump)

    @property
    def now_ms(self) -> int:
        return self.network.now_ms

    # Nodes

    def add(self, name: str, seeds: list[str]) -> None:
        """Start a node, or start it anew."""
        if name in self.nodes:
            self._end(name)
        self.trial.start(name, seeds)
        self.adopt(name)

    def adopt(self, name: str) -> None:
        """Give a node that was started its streams: none."""
        self._joined.discard(name)
        node = self.nodes[name] = SimNode(self, name, next(self._runs))  # type: ignore[arg-type]
        ring = self.network.nodes[name].ring
        node.perform(node.core.ring_changed(ring_of(set(ring)), self.now_ms))

    def kill(self, name: str) -> None:
        """End a process: who is linked to it sees that at once."""
        self.trial.kill(name)
        others = [other for other in self.nodes if frozenset((name, other)) in self._links]
        self._end(name)
        for other in others:
            self.network.declare_failed(name, by=other)

    def leave(self, name: str) -> None:
        """Let a node hand over what it has, then say goodbye."""
        self.trial.tell(f"{name} begins to leave")
        member = self.network.nodes[name]
        member.ring_members.leave()
        self.network.set_tags(name, tags_of(name) | {"state": LEAVING})
        member.ring = member.ring_members.nodes
        self._leaving[name] = self.now_ms + DRAIN_MS
        self._ring_changed(member)

    def _end(self, name: str) -> None:
        for other in list(self.nodes):
            self._break(frozenset((name, other)))
        node = self.nodes.pop(name, None)
        self._leaving.pop(name, None)
        self._ending.discard(name)
        if node is None:
            return
        held = [*node.memory.values(), *(m for c in node.chunks.values() for m in c.values())]
        if held and self.is_orderly:
            self.trial.find("lost", f"{name} ends with {len(node.memory)} streams")
        self.lost.update(*held)

    def _ring_changed(self, member: SimulatedNode) -> None:
        node = self.nodes.get(member.name)
        if node is not None and member.is_up:
            if len(member.ring) > 1:
                self._joined.add(member.name)
            node.perform(node.core.ring_changed(ring_of(set(member.ring)), self.now_ms))

    def staying(self) -> list[str]:
        """Return the names of nodes that run and do not leave."""
        return sorted(name for name in self.nodes if name not in self._leaving)

    # Links

    def post(self, source: str, target: str, *message: Any) -> None:
        """Send something over the link to another node, if there is one."""
        link = self._links.get(frozenset((source, target)))
        if link is not None:
            due_ms = self.now_ms + self.trial.rng.randrange(1, 5)
            due_ms = link.due_ms[target] = max(due_ms, link.due_ms[target])
            self.network.at(due_ms, self._arrive, link, source, target, message)

    def _arrive(self, link: _Link, source: str, target: str, message: tuple[Any, ...]) -> None:
        if link.is_broken:
            return
        if not self._is_open(source, target):
            self.network.at(self.now_ms + 50, self._arrive, link, source, target, message)
            return
        self.nodes[target].hear(source, *message)

    def _is_open(self, one: str, two: str) -> bool:
        network, here, there = self.network, self.network.nodes[one], self.network.nodes[two]
        if here.is_paused or there.is_paused or not (here.is_up and there.is_up):
            return False
        return network.is_open(here, there, "stream") and network.is_open(there, here, "stream")

    def _watch_links(self) -> None:
        names = sorted(self.nodes)
        for place, one in enumerate(names):
            for two in names[place + 1 :]:
                self._watch(one, two)

    def _watch(self, one: str, two: str) -> None:
        pair = frozenset((one, two))
        link, is_open = self._links.get(pair), self._is_open(one, two)
        if link is None:
            nodes = self.network.nodes
            is_wanted = two in nodes[one].known or one in nodes[two].known
            if is_open and is_wanted and self.now_ms >= self._dial_ms.get(pair, 0):
                self._links[pair] = _Link(self.now_ms)
                for here, there in ((one, two), (two, one)):
                    node = self.nodes[here]
                    node.perform(node.core.link_up(there, self.now_ms))
        elif is_open:
            link.heard_ms = self.now_ms
        elif self.now_ms - link.heard_ms > SILENCE_MS:
            self._break(pair)

    def _reset_links(self) -> None:
        rng = self.trial.rng
        for pair in sorted(self._links, key=sorted):
            is_busy = any(self.nodes[name].chunks for name in pair)
            if rng.random() < (RESETS_WHILE_BUSY if is_busy else RESETS):
                self._break(pair)

    def _break(self, pair: frozenset[str]) -> None:
        link = self._links.pop(pair, None)
        if link is None:
            return
        link.is_broken = True
        self._dial_ms[pair] = self.now_ms + DIAL_MS
        one, two = sorted(pair)
        for here, there in ((one, two), (two, one)):
            node = self.nodes[here]
            node.perform(node.core.link_down(there))

    # What goes on all the time

    def _pump(self) -> None:
        for name, node in list(self.nodes.items()):
            if not self.network.nodes[name].is_paused:
                for _ in range(LOOKS):
                    if node.is_looking:
                        node.look()
                node.perform(node.core.tick(self.now_ms))
        self._let_go()
        if not self.is_orderly:
            self._reset_links()
        if self.now_ms % 100 < PUMP_MS:
            self._watch_links()
        self._serve(self.trial.rng.choice(NAMES))
        self.network.at(self.now_ms + PUMP_MS, self._pump)

    def _let_go(self) -> None:
        for name, until_ms in list(self._leaving.items()):
            member = self.network.nodes[name]
            if name in self._ending:
                if member.gossip.has_sent_all:
                    member.is_up = False
                    self._end(name)
            elif not member.is_paused and (
                self.nodes[name].core.may_leave or self.now_ms >= until_ms
            ):
                self._ending.add(name)
                self.network.begin_to_leave(name)

    def _serve(self, name: str) -> None:
        """Let a client ask any node for a stream."""
        nodes = self.network.nodes
        fronts = [each for each in sorted(self._joined) if each in self.nodes]
        fronts = [each for each in fronts if not nodes[each].is_paused]
        if not fronts:
            return
        front = self.trial.rng.choice(fronts)
        owner = ring_of(set(nodes[front].ring)).owner(name)
        is_reached = owner == front or (
            frozenset((front, owner)) in self._links and self._is_open(front, owner)
        )
        if not (is_reached and self.nodes[owner].may_serve(name)):
            self._blocked.setdefault(name, self.now_ms)
            return
        since_ms = self._blocked.pop(name, self.now_ms)
        self.blocked_ms_max = max(self.blocked_ms_max, self.now_ms - since_ms)
        self._answer(self.nodes[owner], name)

    def _answer(self, node: SimNode, name: str) -> None:
        if self.trial.rng.random() < 0.55:
            if name not in node.memory and self.is_orderly and self._who_has(name):
                self.trial.find("begun anew", f"{name} at {node.name}, of {self._who_has(name)}")
            self.sent.add(number := next(self.numbers))
            node.memory.setdefault(name, []).append(number)
        elif node.memory.get(name):
            number = node.memory[name].pop(0)
            if number in self.received:
                self.trial.find("received twice", f"{number} of {name} at {node.name}")
            self.received.add(number)

    def _who_has(self, name: str) -> list[str]:
        nodes = self.nodes.values()
        found = [node.name for node in nodes if name in node.memory]
        chunks = [chunk for node in nodes for chunk in node.chunks.values()]
        return found + ["a chunk" for chunk in chunks if name in chunk]

    # The end

    def settle(self, bar_ms: int, *, blocked_ms_max: int) -> None:
        """Let all be sent where it belongs, and judge what came of it."""
        began_ms = self.now_ms
        while not self._is_settled() and self.now_ms - began_ms < bar_ms:
            self.network.run(100)
        self.trial.measures["settled (s)"] = ((self.now_ms - began_ms) / 1_000, bar_ms / 1_000)
        if not self._is_settled():
            cores = [str(node.core) for node in self.nodes.values()]
            self.trial.find("blocked", f"not settled: {', '.join(cores)}")
        self.network.run(10_000)
        bar_s, longest_s = blocked_ms_max / 1_000, self.blocked_ms_max / 1_000
        self.trial.measures["not answered (s)"] = (longest_s, bar_s)
        if longest_s > bar_s:
            self.trial.find("blocked", f"a stream was not answered for {longest_s:.1f} s")
        self._judge_kept()

    def _is_settled(self) -> bool:
        cores = [node.core for node in self.nodes.values()]
        return not self._leaving and all(core.is_sent and core.is_settled for core in cores)

    def _judge_kept(self) -> None:
        ring = ring_of(set(self.nodes))
        kept: list[int] = []
        for node in self.nodes.values():
            for name, messages in node.memory.items():
                kept += messages
                if ring.owner(name) != node.name:
                    self.trial.find("misplaced", f"{name} is at {node.name}")
        if len(kept) > len(set(kept)) or self.received.intersection(kept):
            self.trial.find("received twice", "a message is there more than once")
        missing = self.sent - self.received.union(kept)
        if missing - self.lost or (self.is_orderly and missing):
            self.trial.find(
                "lost", f"{len(missing)} messages, {len(missing - self.lost)} by nobody"
            )
        for name in NAMES:
            servers = [node.name for node in self.nodes.values() if node.may_serve(name)]
            if len(servers) != 1:
                self.trial.find("blocked", f"{name} is served by {servers}")
        counts = {"sent": self.sent, "received": self.received, "lost": missing}
        self.trial.tell(", ".join(f"{len(each)} {what}" for what, each in counts.items()))
