"""The nodes that a client knows, and the one that it asks.

The program gives some addresses, and the node that answers names the others of its cluster; so a
client that was given one address can do without that node. One address is the current one, the
first by chance, so that clients spread over the nodes. All calls go there until it fails; then the
next one is asked, in a circle. No node is tried just to see whether it is back.
"""

from collections.abc import Iterable, Sequence
from random import Random


class Nodes:
    """Addresses, one of which is current."""

    def __init__(self, given: Sequence[str], rng: Random) -> None:
        self._given = rng.sample(given, len(given))
        self._named: list[str] = []
        self._dropped: set[str] = set()
        self._rng = rng
        self.current = self._given[0]

    def __repr__(self) -> str:
        return f"<Nodes {', '.join(self.all)}, now {self.current}>"

    def __len__(self) -> int:
        return len(self.all)

    @property
    def all(self) -> list[str]:
        """Those that can be asked; the current one is among them."""
        known = [*self._given, *self._named]
        return list(dict.fromkeys(each for each in known if each not in self._dropped)) or known[:1]

    @property
    def is_alone(self) -> bool:
        """There is no other to be asked."""
        return len(self) == 1

    def learn(self, named: Iterable[str]) -> None:
        """Know these beside those that were given; others that a node named are forgotten."""
        new = [each for each in named if each not in self._given]
        self._named = self._rng.sample(new, len(new))
        if self.current not in self.all:  # it answers, though nobody names it
            self._named.append(self.current)

    def leave(self, address: str) -> str | None:
        """Ask another than this one from now on; return it, or None if that is so already, or if
        there is no other."""
        known = self.all
        if address != self.current or len(known) == 1:
            return None
        self.current = known[(known.index(address) + 1) % len(known)]
        return self.current

    def drop(self, address: str) -> bool:
        """Never ask this one again; return whether that is so, as it is unless it is the last."""
        if address in self.all and self.is_alone:
            return False
        self.leave(address)
        self._dropped.add(address)
        return True
