"""The nodes that are known, in the order in which they are probed.

Each is probed once before any is probed twice (SWIM 4.3): a list is walked, shuffled when it wraps,
and a new node is put at a random place in it, so that the time until it is probed has a bound and
its mean is small. The dead stay a while, to be told so, and are reaped when the list wraps.
"""

from collections.abc import Callable
from random import Random

from waterclock.cluster.gossip.effects import Member
from waterclock.cluster.gossip.lifeguard import Suspicion
from waterclock.cluster.gossip.messages import Address, Alive
from waterclock.cluster.gossip.streams import NodeState, State


class Node:
    """What is known of one node."""

    __slots__ = (
        "_snapshot", "accused_ms", "address", "changed_ms", "incarnation", "meta", "name", "state",
        "suspicion", "versions",
    )  # fmt: skip

    def __init__(self, alive: Alive, now_ms: int) -> None:
        self.name = alive.node
        self.address = alive.address
        self.meta = alive.meta
        self.versions = alive.versions
        self.incarnation = alive.incarnation
        self.state = State.DEAD
        self.changed_ms = now_ms
        self.accused_ms: int | None = None
        """When we last told it that it was taken for dead."""
        self.suspicion: Suspicion | None = None
        self._snapshot: NodeState | None = None

    def __repr__(self) -> str:
        return f"<Node {self.name} {self.state.name} {self.incarnation}>"

    @property
    def is_gone(self) -> bool:
        """Whether it is dead or left."""
        return self.state >= State.DEAD

    @property
    def protocol_max(self) -> int:
        """The greatest version of memberlist's protocol that it speaks."""
        return self.versions[1] if len(self.versions) > 1 else 0

    def is_known(self, address: Address, incarnation: int) -> bool:
        """Whether it is alive, and was when that was said of it."""
        is_news = incarnation > self.incarnation or address != self.address
        return self.state == State.ALIVE and not is_news

    def become(self, state: State, incarnation: int, now_ms: int) -> None:
        """Take on a state; a suspicion ends with it."""
        if self.suspicion is not None and state != State.SUSPECT:
            self.suspicion.end()
            self.suspicion = None
        if state != self.state:
            self.changed_ms = now_ms
        self.state = state
        self.incarnation = incarnation
        self._snapshot = None

    def describe(self, alive: Alive) -> None:
        """Take over what a node says of itself."""
        self.address = alive.address
        self.meta = alive.meta
        if len(alive.versions) >= 6:
            self.versions = alive.versions
        self._snapshot = None

    def snapshot(self) -> NodeState:
        """Return it as it goes into a push/pull; the same object until something changes."""
        if self._snapshot is None:
            self._snapshot = NodeState(
                self.name, self.address, self.meta, self.incarnation, self.state, self.versions
            )
        return self._snapshot

    def alive(self) -> Alive:
        """Return what says that it is there."""
        return Alive(self.incarnation, self.name, self.address, self.meta, self.versions)

    def view(self) -> Member:
        """Return it as others may see it."""
        return Member(self.name, self.address, self.meta, self.incarnation, self.state)


class Members:
    """All nodes that are known, ourselves included."""

    def __init__(self, me: Node, rng: Random) -> None:
        self.me = me
        self._rng = rng
        self._by_name = {me.name: me}
        self._others: list[Node] = []
        """In the order of probes."""
        self._next = 0

    def __len__(self) -> int:
        """Count all, the dead that are not reaped too: what the protocol scales by."""
        return len(self._by_name)

    def get(self, name: str) -> Node | None:
        """Return the node of that name, if it is known."""
        return self._by_name.get(name)

    def all(self) -> list[Node]:
        """Return all, ourselves first."""
        return list(self._by_name.values())

    def count_present(self) -> int:
        """Count those that are neither dead nor left, ourselves too."""
        return sum(not node.is_gone for node in self._by_name.values())

    def add(self, node: Node) -> None:
        """Know a node, which will be probed at a random place in the round."""
        self._by_name[node.name] = node
        others = self._others
        others.append(node)
        place = self._index(len(others))
        others[place], others[-1] = others[-1], others[place]

    def next_to_probe(self, now_ms: int, *, keep_dead_ms: int) -> tuple[Node | None, list[Node]]:
        """Return the next node of the round, and those that were reaped on the way."""
        reaped: list[Node] = []
        for _ in range(len(self._others) + 1):
            if self._next >= len(self._others):
                reaped += self._wrap(now_ms, keep_dead_ms)
                if not self._others:
                    break
            node = self._others[self._next]
            self._next += 1
            if not node.is_gone:
                return node, reaped
        return None, reaped

    def pick(self, count: int, accept: Callable[[Node], bool]) -> list[Node]:
        """Return up to `count` of the others by chance; in a large cluster it may miss some."""
        others = self._others
        found: list[Node] = []
        if len(others) <= 2 * count:
            fit = [node for node in others if accept(node)]
            return fit if len(fit) <= count else self._rng.sample(fit, count)
        for _ in range(3 * len(others)):
            node = others[self._index(len(others))]
            if accept(node) and node not in found:
                found.append(node)
                if len(found) == count:
                    break
        return found

    def _wrap(self, now_ms: int, keep_dead_ms: int) -> list[Node]:
        reaped = [
            node
            for node in self._others
            if node.is_gone and now_ms - node.changed_ms > keep_dead_ms
        ]
        for node in reaped:
            del self._by_name[node.name]
        if reaped:
            self._others = [node for node in self._others if node.name in self._by_name]
        self._rng.shuffle(self._others)
        self._next = 0
        return reaped

    def _index(self, count: int) -> int:
        return int(self._rng.random() * count)

    def check_invariants(self) -> None:
        """Assert what must hold between any two events."""
        assert len(self._others) == len(self._by_name) - 1
        assert all(self._by_name[node.name] is node for node in self._others)
        for node in self._by_name.values():
            assert (node.suspicion is not None) == (node.state == State.SUSPECT), node
