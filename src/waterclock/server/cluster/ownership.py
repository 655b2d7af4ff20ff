"""Who owns which stream, from the nodes there are: a ring, and where its nodes are reached."""

from collections.abc import Callable, Mapping
from typing import Final

from waterclock.cluster.hash_ring import POINTS, HashRing
from waterclock.log.id_index.fingerprint import fingerprint

SEED: Final = 0x5EED
"""The same on all nodes, whatever their release: another one would move every stream."""


def _hash(name: bytes) -> int:
    return fingerprint(name, SEED)


class RingOwnership:
    """What this node knows; `update` tells it of other nodes, or fewer."""

    def __init__(self, node_id: str, *, points: int = POINTS) -> None:
        self.node_id = node_id
        self._points = points
        self._addresses: dict[str, str] = {}
        self.ring = self._ring_of(node_id)
        """Of this node alone, until it is told of others."""
        self.is_joining = False
        """It is not known yet who else is there: nobody can say who owns a stream."""
        self.on_change: list[Callable[[HashRing, HashRing], None]] = []
        """Called with the ring before and the one from now on, when nodes came or went."""
        self.gate: Callable[[str], bool] | None = None
        """Says whether this node may answer for a stream of its own, while streams move."""

    def __repr__(self) -> str:
        return f"<RingOwnership of {self.node_id}, {self.ring!r}>"

    @property
    def version(self) -> int:
        """Of the ring."""
        return self.ring.version

    @property
    def others(self) -> list[str]:
        """The ids of all other nodes that own streams."""
        return [node for node in self.ring.nodes if node != self.node_id]

    def update(self, addresses: Mapping[str, str]) -> None:
        """Take the nodes there are, by id, and where clients reach each over HTTP."""
        self._addresses = dict(addresses)
        before, found = self.ring, self._ring_of(*addresses)
        if found.nodes != before.nodes:
            self.ring = found
            for callback in self.on_change:
                callback(before, found)

    def owner(self, stream: str) -> str | None:
        """Return the id of the node that owns a stream; None if it is this one, and it has it."""
        if self.is_joining:
            return self.node_id
        owner = self.ring.owner(stream) if self.ring.nodes else self.node_id
        if owner != self.node_id:
            return owner
        return None if self.gate is None or self.gate(stream) else owner

    def address(self, node_id: str) -> str:
        """Return where clients reach a node over HTTP; nothing if it is gone."""
        return self._addresses.get(node_id, "")

    def _ring_of(self, *nodes: str) -> HashRing:
        return HashRing(nodes, _hash, points=self._points)
