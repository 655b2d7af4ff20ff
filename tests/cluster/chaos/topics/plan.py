"""What happens to replicated topics in a round, decided by (seed, round) and nothing else. Pure.

Whom a step hits is a role, which the conductor looks up when its time has come: who leads is
nobody's to say beforehand.
"""

from dataclasses import dataclass
from enum import Enum
from random import Random

NODES = 3
SPARK_EACH = 3
"""Spark reads in every third round: it takes as much of the machine as all nodes together."""
HOUR_MS = 3_600_000
LEASE_MS = 3_000
"""After so long others take over from a leader that hangs (`cluster.lease`)."""


class Fault(Enum):
    """What the conductor can do."""

    KILL = "killed"
    PAUSE = "paused"
    CUT = "cut off"
    """From the other nodes and from etcd."""
    NO_ETCD = "cut off from etcd"
    ONE_WAY = "not heard"
    """It hears the others, and they do not hear it."""
    BRIDGE = "bridged"
    """The others do not reach each other, and all reach this one."""
    LOSS = "packets lost"
    SLOW = "slowed down"
    CLOCK = "clock set"
    FULL = "disk full"
    WIPE = "wiped"
    """Killed, and back with an empty disk."""
    RESTART = "restarted"


class Role(Enum):
    """Whom it hits."""

    LEADER = "leader"
    """Of the first partition of the round's topic."""
    FOLLOWER = "follower"
    HOME = "home"
    """Of some groups."""
    META = "meta"
    """Who makes topics."""
    SMALL = "small"
    """The node whose disk is small."""
    ALL = "all"
    ETCD = "etcd"


@dataclass(frozen=True, slots=True)
class Step:
    """One fault: when, for how long, and to whom."""

    at_ms: int
    fault: Fault
    role: Role
    for_ms: int = 0
    loss: float = 0.0
    clock_ms: int = 0


THEMES = (
    "kill-leader", "pause-leader", "cut-leader", "kill-follower", "loss", "bridge", "kill-etcd",
    "wipe-follower", "one-way", "pause-follower", "clock-ahead", "kill-home", "full",
    "leader-without-etcd", "slow", "pause-etcd", "two-kills", "clock-behind", "kill-meta",
    "pause-home", "cut-etcd", "rolling", "kill-all", "wipe-and-kill",
)  # fmt: skip
"""In this order, over and over."""
ALONE = ("kill-leader", "pause-leader", "full", "clock-ahead", "rolling")
"""What can be done to a node that has no others."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A round."""

    seed: int
    number: int
    theme: str
    steps: tuple[Step, ...]
    partitions: int = 3
    publishers: int = 2
    """Of each partition."""
    groups: int = 3
    consumers: int = 2
    """Of each group."""
    streams: int = 2
    """Stored ones: of each, one client stores and one reads."""
    pause_ms: int = 40
    """Between two messages of a publisher."""
    load_ms: int = 6_000
    has_spark: bool = False
    """Spark reads along, if there is a session."""

    @classmethod
    def of(cls, seed: int, number: int, *, theme: str = "", is_alone: bool = False) -> "Plan":
        """Draw a round."""
        rng = Random(f"{seed}:{number}")
        themes = ALONE if is_alone else THEMES
        theme = theme or themes[number % len(themes)]
        steps = tuple(sorted(_steps_of(theme, rng), key=lambda step: step.at_ms))
        last_ms = max(step.at_ms + step.for_ms for step in steps)
        load_ms = last_ms + rng.randrange(2_000, 4_000)
        return cls(seed, number, theme, steps, load_ms=load_ms, partitions=rng.choice((1, 3)),
                   has_spark=number % SPARK_EACH == 0)  # fmt: skip

    @property
    def group_names(self) -> list[str]:
        """Return the names of its groups."""
        return [f"g{number}" for number in range(self.groups)]

    @property
    def clock_ms(self) -> int:
        """How wrong a clock may be in it."""
        return max(abs(step.clock_ms) for step in self.steps)


def _steps_of(theme: str, rng: Random) -> list[Step]:
    at_ms = rng.randrange(1_000, 2_500)
    short_ms, long_ms = rng.randrange(500, 2_500), rng.randrange(LEASE_MS + 1_500, 9_000)
    soon_ms = rng.randrange(100, 1_500)
    any_ms = rng.choice((short_ms, long_ms))

    def step(
        fault: Fault,
        role: Role,
        for_ms: int,
        after_ms: int = 0,
        loss: float = 0.0,
        clock_ms: int = 0,
    ) -> Step:
        return Step(at_ms + after_ms, fault, role, for_ms, loss, clock_ms)

    someone = rng.choice((Role.LEADER, Role.FOLLOWER))
    return {
        "kill-leader": [step(Fault.KILL, Role.LEADER, short_ms)],
        "kill-follower": [step(Fault.KILL, Role.FOLLOWER, any_ms)],
        "kill-home": [step(Fault.KILL, Role.HOME, short_ms)],
        "kill-meta": [step(Fault.KILL, Role.META, short_ms)],
        "kill-etcd": [step(Fault.KILL, Role.ETCD, any_ms)],
        "kill-all": [step(Fault.KILL, Role.ALL, short_ms)],
        "two-kills": [
            step(Fault.KILL, Role.LEADER, short_ms),
            step(Fault.KILL, Role.FOLLOWER, short_ms, soon_ms),
        ],
        "pause-leader": [step(Fault.PAUSE, Role.LEADER, any_ms)],
        "pause-follower": [step(Fault.PAUSE, Role.FOLLOWER, long_ms)],
        "pause-home": [step(Fault.PAUSE, Role.HOME, long_ms)],
        "pause-etcd": [step(Fault.PAUSE, Role.ETCD, any_ms)],
        "cut-leader": [step(Fault.CUT, Role.LEADER, any_ms)],
        "cut-etcd": [step(Fault.CUT, Role.ETCD, long_ms)],
        "leader-without-etcd": [step(Fault.NO_ETCD, Role.LEADER, long_ms)],
        "one-way": [step(Fault.ONE_WAY, someone, any_ms)],
        "bridge": [step(Fault.BRIDGE, someone, long_ms)],
        "loss": [step(Fault.LOSS, Role.ALL, 5_000, loss=rng.uniform(0.02, 0.2))],
        "slow": [step(Fault.SLOW, someone, 6_000)],
        "clock-ahead": [step(Fault.CLOCK, someone, 5_000, clock_ms=HOUR_MS)],
        "clock-behind": [step(Fault.CLOCK, someone, 5_000, clock_ms=-HOUR_MS)],
        "full": [step(Fault.FULL, Role.SMALL, 4_000)],
        "wipe-follower": [step(Fault.WIPE, Role.FOLLOWER, short_ms)],
        "wipe-and-kill": [
            step(Fault.WIPE, Role.FOLLOWER, 500),
            step(Fault.KILL, Role.LEADER, short_ms, 1_500 + soon_ms),
        ],
        "rolling": [step(Fault.RESTART, Role.ALL, 0)],
    }[theme]  # fmt: skip
