"""Which nodes are on the hash ring: those that are there, once they have been for a moment.

Each change of the ring moves streams from node to node. A node that has just come may be gone
again, and several may come together, as when a cluster starts: so who comes waits for CONFIRM_MS in
which nobody else came, CONFIRM_MS_MAX at most, and all who wait join the ring at once. Who goes,
goes at once: nobody answers for its streams meanwhile.
"""

from collections.abc import Set
from typing import Final

CONFIRM_MS: Final = 500
CONFIRM_MS_MAX: Final = 2_000


class RingMembers:
    """The nodes of the ring as one node knows it; this one is among them until it leaves."""

    def __init__(self, me: str) -> None:
        self._me = me
        self._others: frozenset[str] = frozenset()
        self._waiting: dict[str, int] = {}
        """Since when each node is there that is not on the ring yet; the first one first."""
        self._is_leaving = False

    def __repr__(self) -> str:
        return f"<RingMembers {sorted(self.nodes)}, {len(self._waiting)} to come>"

    @property
    def nodes(self) -> frozenset[str]:
        """Who is on the ring. A node that leaves stays if it is the last one."""
        return self._others if self._is_leaving and self._others else self._others | {self._me}

    def present(self, others: Set[str], now_ms: int) -> None:
        """Other nodes are there, and no others."""
        self._others &= others
        self._waiting = {name: at for name, at in self._waiting.items() if name in others}
        for name in sorted(others - self._others - self._waiting.keys()):
            self._waiting[name] = now_ms

    def leave(self) -> None:
        """Be no more on the ring."""
        self._is_leaving = True

    def tick(self, now_ms: int) -> None:
        """Let those onto the ring whose time has come."""
        due_ms = self.next_deadline()
        if due_ms is None or now_ms < due_ms:
            return
        ready = {name for name, at in self._waiting.items() if now_ms - at >= CONFIRM_MS}
        self._others |= ready
        self._waiting = {name: at for name, at in self._waiting.items() if name not in ready}

    def next_deadline(self) -> int | None:
        """Return when `tick` is to be called."""
        if not self._waiting:
            return None
        times = self._waiting.values()
        return min(max(times) + CONFIRM_MS, min(times) + CONFIRM_MS_MAX)

    def check_invariants(self) -> None:
        """Assert what must hold between any two events."""
        assert not self._others & self._waiting.keys()
        assert self._me not in self._others
        assert self.nodes
