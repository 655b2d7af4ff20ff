"""Members of groups that speak HTTP: a session lives on between the requests of a consumer.

A member is one session of the node, named by topic, group and consumer; consumers that give no name
share one. Who polls stands in line; whoever is first gets credit for what it asked, and nobody
holds messages that were not asked for. What is handed out has a lease:

    <partition>-<generation>-<offset>-<attempt>

It ends with its deadline, as everywhere. The member remembers which attempts it has handed out, so
that an answer that comes after the deadline does not speak for another attempt.

    nothing asked for `IDLE_MS`, and nothing held    the member leaves
    the session is over                              polls are told why; the next one joins anew
    the node stops                                   polls end at once (503); acks are still taken
                                                     until the drain is over

No task and no timer stands for a poll: a member has one task, all polls together one timer.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any, NamedTuple

from waterclock.model.errors import (
    Busy,
    Overloaded,
    Stopping,
    Unavailable,
    UnknownTopic,
    WaterclockError,
)
from waterclock.model.units import MIB, MINUTE_MS, SECOND_MS
from waterclock.node.groups import Start
from waterclock.node.node import Node
from waterclock.node.outgoing import Delivery, Lost, Refused
from waterclock.node.session import AnswerKind, Ending, Session
from waterclock.server.calls import Calls

MEMBERS_MAX = 10_000
IDLE_MS = 1 * MINUTE_MS
BEAT_S = 1.0
TAKEN_BYTES = 16 * MIB
"""About how much one poll is given at a time."""
CONSUMER = "http"
"""The name of consumers that give none."""


class Key(NamedTuple):
    """Names a member."""

    topic: str
    group: str
    consumer: str


class Lease(NamedTuple):
    """A message in somebody's hands."""

    partition: int
    generation: int
    offset: int
    attempt: int

    def __str__(self) -> str:
        return "-".join(map(str, self))


class Handed(NamedTuple):
    """A message on its way to a consumer."""

    lease: Lease
    deadline_ms: int
    row: dict[str, Any]


class Taker:
    """Somebody who waits for messages, for one answer. Make it a poll or a stream."""

    __slots__ = ("is_over", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.is_over = False
        """It does not wait any more."""

    def credit(self, held: int) -> int:
        """Return how many messages the member may hold for it."""
        return held + self.limit

    def take(self, messages: list[Handed]) -> bool:
        """Take messages, perhaps none because time is up; False if nobody is there."""
        raise AssertionError("a taker takes")

    def fail(self, error: WaterclockError) -> None:
        """End with an error."""
        raise AssertionError("a taker can fail")
