"""What a round left behind: events for the checkers of all topics, and what only real processes
have: deliveries to groups, faults as they were performed, how long nobody took publishes."""

import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.cluster.chaos.topics.plan import Plan, Step
from tests.cluster.history.events import Changed, Event, Polled, Published

STREAM = "stream "
"""What the places of stored streams begin with; groups are not given what is there."""
REFUSALS_MAX = 50_000
"""The last ones: clients that are refused ask again and again."""


class Delivered(NamedTuple):
    """A message as a member of a group got it."""

    group: str
    partition: str
    offset: int
    message: str
    at_ms: int


class Refusal(NamedTuple):
    """What a client was told instead of what it had asked for."""

    at_ms: int
    asked: str
    said: str


class Performed(NamedTuple):
    """A fault: what was done to whom, and when by the run's clock."""

    step: Step
    name: str
    from_ms: int
    to_ms: int
    led: tuple[str, ...] = ()
    """Partitions that it led."""


class RunClock:
    """Milliseconds since the round began, and what that is on the clocks of nodes."""

    def __init__(self) -> None:
        self._begun_s = time.monotonic()
        self._wall_ms = time.time_ns() // 1_000_000

    def now_ms(self) -> int:
        """Return the time of the round."""
        return int((time.monotonic() - self._begun_s) * 1_000)

    def stepped_ms(self) -> int:
        """Return how far the machine's clock is from where it would be if nobody had set it."""
        return abs(time.time_ns() // 1_000_000 - self.wall_ms(self.now_ms()))

    def wall_ms(self, at_ms: int) -> int:
        """Return a time of the round as nodes know it."""
        return self._wall_ms + at_ms

    def run_ms(self, wall_ms: int) -> int:
        """Return a time that a node knows as one of the round."""
        return wall_ms - self._wall_ms


@dataclass(slots=True)
class RoundRecord:
    """A round, as it goes."""

    plan: Plan
    events: list[Event] = field(default_factory=list)
    delivered: list[Delivered] = field(default_factory=list)
    performed: list[Performed] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """Requests by what came of them."""
    refusals: deque[Refusal] = field(default_factory=lambda: deque(maxlen=REFUSALS_MAX))
    stuck: list[str] = field(default_factory=list)
    """What nodes said of themselves when groups had not been given all there is in time."""
    forgotten: list[str] = field(default_factory=list)
    """Changes of messages that nodes had acknowledged, and then did not know."""
    written_ms: dict[tuple[str, int], int] = field(default_factory=dict)
    """When each offset of a partition was written, by the clock of the node that led it then."""
    late: list[str] = field(default_factory=list)
    """What was not as it should be when it should have been; empty texts say nothing."""
    lag_ms: int = 0
    """How late this side itself was at most."""
    stepped_ms: int = 0
    """How far the machine's own clock was set at most, by whoever looks after it."""
    seconds: float = 0.0

    def outages_ms(self) -> list[int]:
        """Return how long it took, after each leader that went, until a majority acknowledged
        something that was published since."""
        acks: dict[str, list[tuple[int, int]]] = {}
        for event in self.events:
            if not isinstance(event, Published) or event.acks != "quorum":
                continue
            if event.until_ms and event.outcome == "acked":
                acks.setdefault(event.partition, []).append((event.at_ms, event.until_ms))
        firsts = (
            (_first_since(acks.get(partition, ()), each.from_ms), each.from_ms)
            for each in self.performed
            for partition in each.led
        )
        return [first - from_ms for first, from_ms in firsts if first is not None]


def undelivered(record: RoundRecord) -> dict[str, set[str]]:
    """Return by group what readers saw, and it was not given; groups with nothing missing not."""
    polls = (
        each
        for each in record.events
        if isinstance(each, Polled) and not each.partition.startswith(STREAM)
    )
    wanted = {row.message for poll in polls for row in poll.rows if row.kind != "scheduled"}
    missed = {group: set(wanted) for group in record.plan.group_names}
    for each in record.delivered:
        missed[each.group].discard(each.message)
    return {group: messages for group, messages in missed.items() if messages}


def last_due_ms(events: Iterable[Event]) -> int:
    """Return when the last message is due, as it was sent or put off; 0 if none is for later."""
    times = (each.due_ms for each in events if isinstance(each, Published | Changed))
    return max((due_ms or 0 for due_ms in times), default=0)


def _first_since(acks: Iterable[tuple[int, int]], at_ms: int) -> int | None:
    return min((until_ms for from_ms, until_ms in acks if from_ms >= at_ms), default=None)
