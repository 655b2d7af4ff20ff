"""What happens in a round, decided by (seed, round) and nothing else. Pure.

Every round has a theme, in turn, so that a hundred rounds have each of them several times; on top
comes chance: when, for how long, a second fault, how long the lease is, poison among messages.
"""

from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import Literal

from tests.kit.network import CutMode

SourceKind = Literal["stream", "pubsub"]


class Fault(Enum):
    """What the conductor can do."""

    LEADER_KILL = "leader killed"
    LEADER_PAUSE = "leader paused past its lease"
    LEADER_BLINK = "leader paused shortly"
    LEADER_STOP = "leader stopped"
    STANDBY_KILL = "standby killed"
    NEWCOMER = "dispatcher joins"
    WORKER_KILL = "worker killed"
    WORKER_DIES_BEFORE_WRITE = "worker dies before its write"
    WORKER_DIES_AFTER_WRITE = "worker dies after its write"
    WORKER_PAUSE = "worker paused"
    WORKER_STOP = "worker stopped"
    REDIS_RESTART = "redis restarted"
    REDIS_PAUSE = "redis paused"
    REDIS_FAILOVER = "redis failover"
    CUT_LEADER_REDIS = "cut leader-redis"
    CUT_STANDBY_REDIS = "cut standby-redis"
    CUT_WORKER_REDIS = "cut worker-redis"
    CUT_LEADER_WORKER = "cut leader-worker"
    CUT_PUBLISHER_REDIS = "cut publisher-redis"
    GARBAGE = "garbage on the port"


@dataclass(frozen=True, slots=True)
class Step:
    """One fault: when, for how long, and to whom of several."""

    at_ms: int
    fault: Fault
    for_ms: int = 0
    index: int = 0
    mode: CutMode = "reset"


@dataclass(frozen=True, slots=True)
class Shares:
    """How many messages of a thousand are not plain."""

    slow: int = 4
    spoiled: int = 3
    """Not even JSON."""
    refuse: int = 3
    fail: int = 3
    crash: int = 0
    """They end the worker that gets them."""


THEMES = (
    "leader-kill", "worker-kill", "leader-pause", "redis-restart", "cut-leader-redis",
    "worker-dies-after-write", "leader-kill", "cut-leader-worker", "worker-pause", "failover",
    "both-pause", "cut-worker-redis", "worker-dies-before-write", "poison", "redis-pause",
    "leader-stop", "cut-standby-redis", "garbage", "newcomers",
)  # fmt: skip
"""In this order, over and over."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A round."""

    seed: int
    number: int
    source_kind: SourceKind
    theme: str
    steps: tuple[Step, ...]
    lease_ms: int = 1_000
    deadline_ms: int = 800
    standbys: int = 2
    workers: int = 3
    streams: int = 1
    rate: int = 400
    publish_ms: int = 2_500
    deliveries_max: int = 6
    shares: Shares = field(default_factory=Shares)

    @property
    def is_replicated(self) -> bool:
        """Whether the round needs a master and a replica."""
        return any(step.fault is Fault.REDIS_FAILOVER for step in self.steps)

    @property
    def messages(self) -> int:
        """How many are published."""
        return self.rate * self.publish_ms // 1_000

    def kind_of(self, n: int) -> str:
        """Return what is special about a message, or nothing."""
        draw = Random(f"{self.seed}:{self.number}:message:{n}").randrange(1_000)
        for name in ("slow", "spoiled", "refuse", "fail", "crash"):
            share: int = getattr(self.shares, name)
            if draw < share:
                return name
            draw -= share
        return ""

    @classmethod
    def of(cls, seed: int, number: int, source_kind: SourceKind, *, theme: str = "") -> "Plan":
        """Draw a round."""
        rng = Random(f"{seed}:{number}:{source_kind}")
        theme = theme or THEMES[number % len(THEMES)]
        lease_ms = rng.choice((600, 600, 1_000, 1_000, 2_000))
        steps = _steps_of(theme, rng, lease_ms)
        last_ms = max((step.at_ms + step.for_ms for step in steps), default=0)
        shares = Shares(crash=2) if theme == "poison" else Shares()
        return cls(
            seed=seed, number=number, source_kind=source_kind, theme=theme, steps=tuple(steps),
            lease_ms=lease_ms, standbys=rng.choice((1, 2, 2)), workers=rng.choice((2, 3, 4)),
            streams=rng.choice((1, 1, 3)), rate=rng.choice((200, 400, 800)),
            publish_ms=max(1_500, min(last_ms + 500, 3_500)), shares=shares,
            deliveries_max=4 if theme == "poison" else 8,
        )  # fmt: skip


def _steps_of(theme: str, rng: Random, lease_ms: int) -> list[Step]:
    at_ms = rng.randrange(300, 900)
    beyond_ms = lease_ms + rng.randrange(300, 900)
    mode: CutMode = rng.choice(("reset", "hold", "drop"))
    short_ms = rng.randrange(150, 1_200)

    def step(fault: Fault, after_ms: int = 0, for_ms: int = 0) -> Step:
        return Step(at_ms + after_ms, fault, for_ms, rng.randrange(100), mode)

    steps = {
        "leader-kill": [step(Fault.LEADER_KILL)],
        "leader-pause": [step(Fault.LEADER_PAUSE, for_ms=beyond_ms)],
        "leader-stop": [step(Fault.LEADER_STOP), step(Fault.WORKER_STOP, after_ms=400)],
        "both-pause": [
            step(Fault.LEADER_PAUSE, for_ms=beyond_ms),
            step(Fault.WORKER_PAUSE, for_ms=beyond_ms + 200),
        ],
        # They were not there to hear it all: one that was must take over.
        "newcomers": [
            step(Fault.LEADER_KILL), *(step(Fault.NEWCOMER, after_ms=at) for at in (100, 150, 300)),
        ],
        "worker-kill": [step(Fault.WORKER_KILL, after_ms=after) for after in (0, 250, 600)],
        "worker-dies-before-write": [step(Fault.WORKER_DIES_BEFORE_WRITE, at) for at in (0, 500)],
        "worker-dies-after-write": [step(Fault.WORKER_DIES_AFTER_WRITE, at) for at in (0, 500)],
        "worker-pause": [step(Fault.WORKER_PAUSE, for_ms=rng.randrange(300, 2_000))],
        "redis-restart": [step(Fault.REDIS_RESTART, for_ms=rng.randrange(0, 1_000))],
        "redis-pause": [step(Fault.REDIS_PAUSE, for_ms=short_ms)],
        "failover": [step(Fault.REDIS_FAILOVER, for_ms=rng.randrange(0, 500))],
        "cut-leader-redis": [
            step(Fault.CUT_LEADER_REDIS, for_ms=rng.choice((short_ms, beyond_ms)))
        ],
        "cut-standby-redis": [
            step(Fault.CUT_STANDBY_REDIS, for_ms=short_ms), step(Fault.LEADER_BLINK, 200, 250),
        ],
        "cut-worker-redis": [step(Fault.CUT_WORKER_REDIS, for_ms=short_ms)],
        "cut-leader-worker": [step(Fault.CUT_LEADER_WORKER, for_ms=short_ms)],
        "poison": [],
        "garbage": [
            step(Fault.GARBAGE), step(Fault.GARBAGE, 300),
            step(Fault.CUT_PUBLISHER_REDIS, 400, 200),
        ],
    }[theme]  # fmt: skip
    if rng.random() < 0.4:
        extra = rng.choice(
            (Fault.WORKER_KILL, Fault.GARBAGE, Fault.LEADER_KILL, Fault.STANDBY_KILL,
             Fault.CUT_LEADER_WORKER, Fault.LEADER_BLINK)
        )  # fmt: skip
        steps.append(step(extra, after_ms=rng.randrange(-200, 600), for_ms=rng.randrange(100, 500)))
    return sorted(steps, key=lambda each: each.at_ms)
