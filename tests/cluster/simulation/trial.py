"""One trial: a cluster from a seed, what is done to it, and the judge who looks on all the way.

The judge knows what the nodes cannot: who runs, who is stopped and who is cut off. It finds

    slow …           nodes that run did not agree in time: after a join, a failure, …
    forgotten        a node that runs is not known to another one that could reach it for minutes
    ghost            a node that is gone is still taken for alive
    false positive   a node that ran and could be reached was taken for dead
    ring disagrees   nodes that know the same members have other rings
    chatty           idle nodes send more than they should
    corrupt          a core contradicts itself, or the events it told of
"""

from collections.abc import Iterable
from random import Random

from tests.cluster.simulation.network import SimulatedNetwork, SimulatedNode, Weather
from tests.kit.verdict import Findings
from waterclock.cluster.gossip import Failed, MemberEvent
from waterclock.cluster.hash_ring import HashRing
from waterclock.cluster.ring_members import CONFIRM_MS_MAX
from waterclock.log.id_index.fingerprint import fingerprint

NODE_COUNT = 100
AGREED_MS_MAX = 300_000
"""Who does not agree after so long never will."""
GRACE_MS = 60_000
"""How long after a pause, a restart or a cut a node may still be taken for dead: those who suspect
it may not have heard of it since."""
RING_POINTS = 16
"""Fewer than of a real ring, which is as good for telling two apart."""
NAMES = [f"orders-{number}" for number in range(40)]


class Trial:
    """A cluster under judgement."""

    def __init__(self, seed: int, node_count: int | None = None) -> None:
        self.seed = seed
        self.is_sized = node_count is not None
        self.node_count = node_count or NODE_COUNT
        self.rng = Random(f"trial {seed}")
        self.network = SimulatedNetwork(seed)
        self.network.on_event = self._heard
        self.findings = Findings()
        self.measures: dict[str, tuple[float, float]] = {}
        """What was measured, and its bar."""
        self.story: list[str] = []
        self._excused: dict[str, int] = {}
        """Until when a node may be taken for dead."""
        self._confused: dict[str, int] = {}
        """Until when a node may take any other for dead."""
        self._splits: list[tuple[set[str], int]] = []
        """The nodes of one side of each partition, and until when it may be felt."""
        self._rough_ms = -GRACE_MS
        """When more was last lost than gossip is made for."""

    # What is done

    def tell(self, what: str) -> None:
        """Note what is done, for whoever reads the story of a seed."""
        self.story.append(f"{self.network.now_ms / 1_000:8.1f} s  {what}")

    def weather(self, weather: Weather) -> None:
        """Change what the network does to packets."""
        if self.network.weather.is_rough:
            self._rough_ms = self.network.now_ms
        self.network.weather = weather
        self.tell(repr(weather))

    def settled(self, count: int | None = None) -> list[str]:
        """Start nodes that have long known each other; return their names."""
        names = [f"n{number}" for number in range(1, (count or self.node_count) + 1)]
        for name in names:
            self.network.add(name)
        self.network.settle()
        for node in self.network.nodes.values():
            node.gossip.join([self.network.nodes[each].address for each in names[:3]], 0)
        self.tell(f"{len(names)} nodes know each other")
        return names

    def start(self, name: str, seeds: Iterable[str], incarnation: int | None = None) -> None:
        """Start a node, or start it anew."""
        self.tell(f"{name} is started")
        self._excuse(name, GRACE_MS)
        self.network.add(
            name, seeds=[each for each in seeds if each != name], incarnation=incarnation
        )

    def kill(self, name: str) -> None:
        """End a node without a word."""
        self.tell(f"{name} is killed")
        self.network.kill(name)

    def leave(self, name: str) -> None:
        """Let a node say goodbye."""
        self.tell(f"{name} leaves")
        self.network.leave(name)

    def pause(self, name: str, length_ms: int) -> None:
        """Stop a node for a while."""
        self.tell(f"{name} is stopped for {length_ms} ms")
        self._excuse(name, length_ms + GRACE_MS)
        self.network.pause(name, length_ms)

    def split(self, side: Iterable[str]) -> None:
        """Cut some nodes off from all others, and not from each other."""
        self.heal()
        names = set(side)
        self._splits.append((names, AGREED_MS_MAX + self.network.now_ms))
        self.tell(f"cut off: {' '.join(sorted(names))}")
        self.network.split(names)

    def cut_outbound(self, *names: str) -> None:
        """Let nodes hear and not be heard: nobody answers them."""
        self.heal()
        self.tell(f"nothing leaves: {' '.join(names)}")
        self.network.cut_outbound(*names)
        self._one_way(names, AGREED_MS_MAX)

    def cut_inbound(self, *names: str) -> None:
        """Let nodes be heard and not hear."""
        self.heal()
        self.tell(f"nothing reaches: {' '.join(names)}")
        self.network.cut_inbound(*names)
        self._one_way(names, AGREED_MS_MAX)

    def _one_way(self, names: Iterable[str], length_ms: int) -> None:
        for name in names:
            self._excused[name] = self._confused[name] = self.network.now_ms + length_ms

    def heal(self) -> None:
        """Let everything pass again."""
        nodes = self.network.nodes.values()
        self._one_way(
            [node.name for node in nodes if node.is_inbound_cut or node.is_outbound_cut], GRACE_MS
        )
        if any(node.side for node in nodes):
            self._splits[-1] = (self._splits[-1][0], self.network.now_ms + GRACE_MS)
        self.tell("all ways are open")
        self.network.split()
        self.network.cut_outbound()
        self.network.cut_inbound()

    def run(self, length_ms: int) -> None:
        """Let time pass."""
        self.network.run(length_ms)

    # What is judged

    def agree(self, what: str, bar_ms: int, *, since_ms: int | None = None) -> None:
        """Let time pass until all nodes that run agree, and measure how long that takes."""
        network = self.network
        began_ms = network.now_ms if since_ms is None else since_ms
        while not network.is_agreed() and network.now_ms - began_ms < AGREED_MS_MAX:
            network.run(50)
        took_ms = network.now_ms - began_ms
        network.run(CONFIRM_MS_MAX)  # until what is agreed is on the rings
        self.measures[f"{what} (s)"] = (took_ms / 1_000, bar_ms / 1_000)
        if took_ms > bar_ms:
            self.find(f"slow {what}", f"agreed after {took_ms / 1_000:.1f} s; {self._missing()}")
        self.judge()

    def judge(self) -> None:
        """Look at all nodes now: they have had the time to agree."""
        running = self.network.running()
        names = {node.name for node in running}
        for node in running:
            for name in sorted(names - node.known):
                self.find("forgotten", f"{node.name} does not know {name}")
            for name in sorted(node.known - names):
                self.find("ghost", f"{node.name} takes {name} for alive")
        if self.network.is_agreed():
            self._judge_rings(running)
        try:
            self.network.check()
        except AssertionError as error:
            self.find("corrupt", str(error))

    def judge_silence(self, length_ms: int, bar_bytes: int) -> None:
        """Let idle nodes run, and count what they send in a second."""
        nodes = self.network.running()
        before = [node.sent_bytes for node in nodes]
        self.run(length_ms)
        sent = [
            (node.sent_bytes - first) * 1_000 / length_ms
            for node, first in zip(nodes, before, strict=True)
        ]
        mean = sum(sent) / len(sent)
        self.measures["sent (B/s a node)"] = (mean, bar_bytes)
        if mean > bar_bytes:
            self.find("chatty", f"{mean:.0f} B/s a node, {max(sent):.0f} B/s at most")

    def _judge_rings(self, nodes: list[SimulatedNode]) -> None:
        found: dict[tuple[int, tuple[str, ...]], str] = {}
        for node in nodes:
            # In an order that is another one on each node.
            members = sorted(node.ring_members.nodes)
            self.rng.shuffle(members)
            ring = HashRing(members, lambda name: fingerprint(name, 1), points=RING_POINTS)
            owners = tuple(ring.owner(name) for name in NAMES)
            found.setdefault((ring.version, owners), f"{ring} of {node.name}")
        if len(found) > 1:
            self.find("ring disagrees", ", ".join(list(found.values())[:3]))

    def _heard(self, node: SimulatedNode, event: MemberEvent) -> None:
        if not isinstance(event, Failed):
            return
        other = self.network.nodes[event.member.name]
        if other.is_up and not self._was_cut(node, other):
            self.find("false positive", f"{node.name} takes {other.name} for dead")

    def _was_cut(self, node: SimulatedNode, other: SimulatedNode) -> bool:
        """Say whether one may take the other for dead, for it has not heard of it for a while."""
        now_ms = self.network.now_ms
        if self.network.weather.is_rough or now_ms < self._rough_ms + GRACE_MS:
            return True
        if now_ms < max(self._excused.get(other.name, 0), self._confused.get(node.name, 0)):
            return True
        return any(
            now_ms < until_ms and (node.name in side) != (other.name in side)
            for side, until_ms in self._splits
        )

    def _excuse(self, name: str, length_ms: int) -> None:
        until_ms = self.network.now_ms + length_ms
        self._excused[name] = max(until_ms, self._excused.get(name, 0))

    def _missing(self) -> str:
        running = self.network.running()
        names = {node.name for node in running}
        wrong = [node.name for node in running if node.known != names]
        return f"{len(wrong)} nodes disagree then"

    def find(self, kind: str, example: str) -> None:
        """Note that something is not as it must be."""
        self.tell(f"{kind}: {example}")
        self.findings.add(kind, f"{self.network.now_ms / 1_000:.1f} s  {example}")
