"""A consistent hash ring: which node owns a name, as everybody who knows the same nodes says.

Each node has many points on a circle, and a name belongs to the node whose point is next. When a
node joins or leaves, only what is next to its own points moves, spread over all others. A ring is
made anew when the nodes change and never changes itself, so a lookup needs no lock and what was
looked up is good as long as the ring is.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator

POINTS = 200
"""Of a node. With 200, the busiest of ten has about a tenth more than its share."""
CIRCLE = 1 << 40
CACHE_MAX = 100_000
"""Names whose owner is remembered; all are forgotten when there are more."""

Hash = Callable[[bytes], int]
"""Gives a place below CIRCLE that is the same on every node, whatever its release."""


class HashRing:
    """The ring of a set of nodes. `version` is the same wherever the same nodes are known."""

    __slots__ = ("_cache", "_hash", "_hashes", "_owners", "nodes", "version")

    def __init__(self, nodes: Iterable[str], hash_: Hash, *, points: int = POINTS) -> None:
        self.nodes = tuple(sorted(set(nodes)))
        self.version = hash_("\0".join(self.nodes).encode())
        self._hash = hash_
        # Two points in one place are told apart by the node's name, the same on every node.
        found = sorted(
            (hash_(b"%b\0%d" % (node.encode(), point)), number)
            for number, node in enumerate(self.nodes)
            for point in range(points)
        )
        self._hashes = array("Q", (place for place, _ in found))
        self._owners = array("H", (number for _, number in found))
        self._cache: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"<HashRing {self.version:010x} of {len(self.nodes)} nodes>"

    def __len__(self) -> int:
        return len(self.nodes)

    def owner(self, name: str) -> str:
        """Return the node that owns a name; there must be one."""
        owner = self._cache.get(name)
        if owner is None:
            if len(self._cache) >= CACHE_MAX:
                self._cache.clear()
            owner = self._cache[name] = self.nodes[self._owners[self._place(name)]]
        return owner

    def successors(self, name: str) -> Iterator[str]:
        """Yield the owner of a name and then the others, each once, in the order of the ring.

        When the first is gone, the next is the owner: who keeps something for a name on several
        nodes keeps it there.
        """
        seen = set()
        place, size = self._place(name), len(self._owners)
        for step in range(size):
            number = self._owners[(place + step) % size]
            if number not in seen:
                seen.add(number)
                yield self.nodes[number]
                if len(seen) == len(self.nodes):
                    return

    def shares(self) -> dict[str, float]:
        """Return how much of the circle each node owns; they add up to 1."""
        arcs = [0] * len(self.nodes)
        before = self._hashes[-1] - CIRCLE if self._hashes else 0
        for place, number in zip(self._hashes, self._owners, strict=True):
            arcs[number] += place - before
            before = place
        return {node: arc / CIRCLE for node, arc in zip(self.nodes, arcs, strict=True)}

    def _place(self, name: str) -> int:
        place = bisect_left(self._hashes, self._hash(name.encode()))
        return 0 if place == len(self._hashes) else place
