"""What a seed decides: the messages of a round, who consumes them and how, and every fault.

All of it is a pure function of the seed and the number of a message or a tick, so a round that went
wrong is told again by its seed. (What the machine makes of it in between is its own affair.)
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from random import Random

from waterclock.burrow.core.config import Order

PARTITIONS = 6
KEYS = 24
RATE = 300
"""Messages published in a second."""
TICK_S = 0.5
TICKS = 24
CALM_S = 2.0
"""How long messages are published after the last fault: each partition has something to do then."""
SESSION_MS = 4_000
"""After so long a silence Kafka takes a member for dead. Whatever a member that was killed held
stands still until then, and that time is part of what is measured as resuming."""
PAUSE_TICKS = 11
"""A pause is longer than the session."""
SLOTS = 4
STEP_CHANCE = 0.45

ASSIGNORS: Mapping[str, Mapping[str, str | int]] = {
    "cooperative": {
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": SESSION_MS,
        "heartbeat.interval.ms": 500,
    },
    "eager": {
        "partition.assignment.strategy": "range",
        "session.timeout.ms": SESSION_MS,
        "heartbeat.interval.ms": 500,
    },
    "kip848": {"group.protocol": "consumer"},  # its times are the broker's
}
ORDERS: tuple[Order, ...] = ("key", "partition", "none")


class StepKind(Enum):
    """Something that is done to the group."""

    JOIN = "join"
    LEAVE = "leave"
    KILL = "kill"
    PAUSE = "pause"
    RESTART = "restart"
    """The broker ends cleanly, and starts again."""
    CRASH = "crash"
    """The broker is killed, and starts again."""
    COORDINATOR = "coordinator"
    """The coordinator moves to another broker of the mock cluster."""
    COMMIT_ERRORS = "commit errors"
    """The next commits are answered with errors."""


Kind = Mapping[StepKind, int]
KINDS: Mapping[str, Kind] = {
    "gentle": {StepKind.JOIN: 1, StepKind.LEAVE: 1},
    "members": {StepKind.JOIN: 3, StepKind.LEAVE: 2, StepKind.KILL: 2, StepKind.PAUSE: 2},
    "broker": {
        StepKind.JOIN: 3,
        StepKind.LEAVE: 1,
        StepKind.KILL: 1,
        StepKind.PAUSE: 1,
        StepKind.RESTART: 2,
        StepKind.CRASH: 2,
    },
    "mock": {
        StepKind.JOIN: 1,
        StepKind.LEAVE: 1,
        StepKind.KILL: 1,
        StepKind.COORDINATOR: 4,
        StepKind.COMMIT_ERRORS: 6,
    },
}
"""How often an act is drawn, by the kind of a round. Gentle ones have no faults at all: nothing may
be done twice in them."""
OUTAGES = frozenset(
    {StepKind.RESTART, StepKind.CRASH, StepKind.COORDINATOR, StepKind.COMMIT_ERRORS}
)
"""Acts that may keep a member from committing although it does all it should."""
OUTAGES_MAX = 1
"""So many outages of a real broker in one round: each takes seconds."""


@dataclass(frozen=True, slots=True)
class Nature:
    """What a message is like for whoever works on it."""

    key: bytes | None
    partition: int
    work_s: float
    failures: int
    is_poison: bool


@dataclass(frozen=True, slots=True)
class Step:
    """One act, at a tick, to whoever is in a slot."""

    tick: int
    act: StepKind
    slot: int = 0
    detail: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """A round as its seed wants it."""

    seed: int
    kind: str
    assignor: str
    order: Order
    is_async: bool
    queue_max: int | None
    ticks: int = TICKS

    @classmethod
    def of(cls, seed: int, *, kind: str | None = None, ticks: int = TICKS) -> "Plan":
        """Return the plan of a seed; nine seeds in a row have every assignor with every order."""
        rng = Random(f"plan {seed}")
        drawn = rng.choices(["gentle", "members", "broker"], [1, 2, 2])[0]
        return cls(
            seed=seed,
            kind=kind or drawn,
            assignor=list(ASSIGNORS)[seed % 3],
            order=ORDERS[seed // 3 % 3],
            is_async=rng.random() < 0.7,
            queue_max=rng.choice([None, None, 40]),
            ticks=ticks,
        )

    def nature(self, number: int) -> Nature:
        """Return what a message is like."""
        rng = Random(f"message {self.seed} {number}")
        key = rng.randrange(KEYS)
        has_key = rng.random() < 0.9
        is_slow = rng.random() < 0.005
        return Nature(
            key=b"k%d" % key if has_key else None,
            partition=key % PARTITIONS,
            work_s=rng.uniform(0.3, 1.2) if is_slow else rng.uniform(0.001, 0.008),
            failures=rng.randint(1, 2) if rng.random() < 0.01 else 0,
            is_poison=rng.random() < 0.004,
        )

    def steps(self) -> Iterator[Step]:
        """Yield all steps in their order; the last leave somebody who lives."""
        slots = _Slots()
        for slot in (0, 1):
            yield slots.done(Step(0, StepKind.JOIN, slot))
        for tick in range(3, self.ticks):
            rng = Random(f"step {self.seed} {tick}")
            slots.wake(tick)
            if rng.random() >= STEP_CHANCE:
                continue
            kinds = {act: odds for act, odds in KINDS[self.kind].items() if slots.allows(act, tick)}
            if kinds:
                act = rng.choices(list(kinds), list(kinds.values()))[0]
                slot = slots.chosen(act, rng)
                yield slots.done(Step(tick, act, slot, rng.randrange(1_000)))
        if not slots.live:
            yield Step(self.ticks, StepKind.JOIN, slots.chosen(StepKind.JOIN, Random(self.seed)))


class _Slots:
    """Who is there, as far as the plan goes."""

    def __init__(self) -> None:
        self.live: set[int] = set()
        self._paused: dict[int, int] = {}
        self._outages = 0

    def allows(self, act: StepKind, tick: int) -> bool:
        match act:
            case StepKind.JOIN:
                return len(self.live) + len(self._paused) < SLOTS
            case StepKind.LEAVE | StepKind.PAUSE:
                return len(self.live) > 1
            case StepKind.KILL:
                return bool(self.live)
            case StepKind.RESTART | StepKind.CRASH:
                return self._outages < OUTAGES_MAX
            case StepKind.COORDINATOR | StepKind.COMMIT_ERRORS:
                return True

    def chosen(self, act: StepKind, rng: Random) -> int:
        if act is StepKind.JOIN:
            return min(set(range(SLOTS)) - self.live - set(self._paused))
        return rng.choice(sorted(self.live)) if self.live else 0

    def done(self, step: Step) -> Step:
        match step.act:
            case StepKind.JOIN:
                self.live.add(step.slot)
            case StepKind.LEAVE | StepKind.KILL:
                self.live.discard(step.slot)
            case StepKind.PAUSE:
                self.live.discard(step.slot)
                self._paused[step.slot] = step.tick + PAUSE_TICKS
            case StepKind.RESTART | StepKind.CRASH:
                self._outages += 1
        return step

    def wake(self, tick: int) -> None:
        for slot in [slot for slot, until in self._paused.items() if until <= tick]:
            del self._paused[slot]
            self.live.add(slot)
