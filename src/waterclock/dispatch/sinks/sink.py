"""Where a worker writes to: one interface for a Redis stream and a Waterclock topic.

A sink is told a batch and answers a status for each message, and never raises for a server that is
away: part of a batch may be written when another part is not. Writing what is written already is
the normal case after a redelivery, and changes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

KNOWN, WRITTEN, LATE, AWAY, STALE = 0, 1, 2, 3, 4
"""It was there already; it is there now; it is too old to know whether it was; the server is away,
try again; a higher epoch leads, forget it."""


@dataclass(frozen=True, slots=True)
class Writing:
    """Messages to be written, as parallel lists."""

    epoch: int
    uuids: Sequence[bytes]
    births_ms: Sequence[int]
    values: Sequence[Any]
    """What `prepare` made of what the handler returned."""


class Sink(Protocol):
    """Writes messages, each once."""

    def prepare(self, value: object) -> object:
        """Return what a handler returned in the form this sink writes. Called on any thread; raise
        `PermanentError` for what cannot be written."""
        ...

    async def write(self, writing: Writing) -> list[int]:
        """Write, and return the status of each message."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...
