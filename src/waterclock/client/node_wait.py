"""Waiting for a node, and saying so in the log: once when it begins, then now and then."""

import logging

from waterclock.client.nodes import Nodes
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
