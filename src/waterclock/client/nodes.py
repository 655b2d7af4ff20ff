"""The nodes that a client knows, and the one that it asks.

The program gives some addresses, and the node that answers names the others of its cluster; so a
client that was given one address can do without that node. One address is the current one, the
first by chance, so that clients spread over the nodes. All calls go there until it fails; then the
next one is asked, in a circle. No node is tried just to see whether it is back.
"""

import logging
from collections.abc import Iterable, Sequence
from random import Random

from waterclock.model.clock import Clock
from waterclock.model.errors import (
    Overloaded,
    StorageFailed,
    StorageFull,
    StoreUnavailable,
    Unreachable,
    WaterclockError,
)
from waterclock.model.waiting import Waiting

_log = logging.getLogger("waterclock.client")


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


class NodeWait:
    """One user of the connection that waits for the node: a subscription, a producer. It logs so.

    Each has its own, for what one of them can do another may not: a node whose disk is full
    delivers while it refuses to store, and is there all the time.
    """

    def __init__(self, nodes: Nodes, clock: Clock) -> None:
        self._nodes = nodes
        self._clock = clock
        self._failures = 0
        self._absence = Waiting("a node")
        self._refusal = Waiting("a node")

    def __repr__(self) -> str:
        return f"<NodeWait {self._absence!r}, {self._refusal!r}>"

    def away(self, error: WaterclockError) -> None:
        """Note that an attempt failed and is made again; says so, but not each time."""
        is_refusal = isinstance(error, StorageFull | StorageFailed | Overloaded | StoreUnavailable)
        reason = error.reason if isinstance(error, Unreachable) else ""
        self._failures += not is_refusal
        if not is_refusal and self._failures < len(self._nodes):
            return  # another is asked, which is not to wait
        if not self._waiting(is_refusal).is_waiting:
            self._name(is_refusal)
        self._say(self._waiting(is_refusal).away(reason or str(error), self._now_s()))

    def _waiting(self, is_refusal: bool) -> Waiting:
        return self._refusal if is_refusal else self._absence

    def _name(self, is_refusal: bool) -> None:
        """Say which nodes it is that are waited for, as they are known by now."""
        node = f"the node at {self._nodes.current}"
        if is_refusal:
            self._refusal = Waiting(f"{node}, which refuses", ends=f"{node} accepts again")
        else:
            others = f"a node, of {', '.join(self._nodes.all)}"
            self._absence = Waiting(node if self._nodes.is_alone else others)

    def here(self) -> None:
        """Note that the node did what was wanted of it."""
        self._failures = 0
        for waiting in (self._absence, self._refusal):
            if waiting.is_waiting:
                self._say(waiting.here(self._now_s()))

    def _now_s(self) -> float:
        return self._clock.monotonic_ms() / 1_000

    def _say(self, said: str | None) -> None:
        # A warning, which Python shows on stderr though nobody has set up its logging.
        if said is not None:
            _log.warning("%s", said)
