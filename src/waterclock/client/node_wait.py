"""One thing that waits for the node: a subscription, a producer. It says so, and why.

Each has its own, for what one of them can do another may not: a node whose disk is full delivers
while it refuses to store, and is there all the time.
"""

import logging

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
    """Whether something waits for a node that is away, or that answers and refuses."""

    def __init__(self, address: str, clock: Clock) -> None:
        node = f"the node at {address}"
        self._clock = clock
        self._absence = Waiting(node)
        self._refusal = Waiting(f"{node}, which refuses", ends=f"{node} accepts again")

    def __repr__(self) -> str:
        return f"<NodeWait {self._absence!r}, {self._refusal!r}>"

    def away(self, error: WaterclockError) -> None:
        """Note that an attempt failed and is made again; says so, but not each time."""
        is_refusal = isinstance(error, StorageFull | StorageFailed | Overloaded | StoreUnavailable)
        reason = error.reason if isinstance(error, Unreachable) else ""
        waiting = self._refusal if is_refusal else self._absence
        self._say(waiting.away(reason or str(error), self._now_s()))

    def here(self) -> None:
        """Note that the node did what was wanted of it."""
        for waiting in (self._absence, self._refusal):
            if waiting.is_waiting:
                self._say(waiting.here(self._now_s()))

    def _now_s(self) -> float:
        return self._clock.monotonic_ms() / 1_000

    def _say(self, said: str | None) -> None:
        # A warning, which Python shows on stderr though nobody has set up its logging.
        if said is not None:
            _log.warning("%s", said)
