"""What happens in a round, decided by (seed, round) and nothing else. Pure.

Every round has a theme, in turn; on top comes chance: when, for how long, to which node, how much.
"""

from dataclasses import dataclass
from enum import Enum
from random import Random

NODES = 3
"""That are there from the beginning."""
SPARE = NODES
"""The index of the one that joins and leaves."""


class Fault(Enum):
    """What the conductor can do."""

    KILL = "killed"
    PAUSE = "paused"
    CUT = "cut off"
    ONE_WAY = "cut off one way"
    LOSS = "packets lost"
    JOIN = "joined"
    LEAVE = "left"


@dataclass(frozen=True, slots=True)
class Step:
    """One fault: when, for how long, and to whom of several."""

    at_ms: int
    fault: Fault
    for_ms: int = 0
    index: int = 0
    loss: float = 0.0


THEMES = (
    "kill", "join", "leave", "partition", "pause", "loss", "long-pause", "join-kill",
    "rolling", "leave-kill", "one-way", "two-kills", "long-partition", "loss-join",
)  # fmt: skip
"""In this order, over and over."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A round."""

    seed: int
    number: int
    theme: str
    steps: tuple[Step, ...]
    work_streams: int = 6
    """In memory, with receivers that compete."""
    kept_streams: int = 4
    """In memory, read at the end."""
    stored_streams: int = 3
    receivers: int = 2
    """Of each stream that has some."""
    pause_ms: int = 60
    """Between two messages of a sender."""
    load_ms: int = 6_000

    @classmethod
    def of(cls, seed: int, number: int, *, theme: str = "") -> "Plan":
        """Draw a round."""
        rng = Random(f"{seed}:{number}")
        theme = theme or THEMES[number % len(THEMES)]
        steps = tuple(sorted(_steps_of(theme, rng), key=lambda step: step.at_ms))
        last_ms = max(step.at_ms + step.for_ms for step in steps)
        return cls(seed, number, theme, steps, load_ms=last_ms + rng.randrange(1_500, 3_000))


def _steps_of(theme: str, rng: Random) -> list[Step]:
    at_ms = rng.randrange(1_000, 2_000)
    one = rng.randrange(NODES)
    other = (one + rng.randrange(1, NODES)) % NODES

    def step(fault: Fault, index: int, after_ms: int, for_ms: int, loss: float = 0.0) -> Step:
        return Step(at_ms + after_ms, fault, for_ms, index, loss)

    short_ms, long_ms = rng.randrange(800, 2_500), rng.randrange(9_000, 14_000)
    soon_ms = rng.randrange(0, 1_500)
    return {
        "kill": [step(Fault.KILL, one, 0, short_ms)],
        "join": [step(Fault.JOIN, SPARE, 0, 3_000 + short_ms)],
        "leave": [step(Fault.LEAVE, one, 0, short_ms)],
        "partition": [step(Fault.CUT, one, 0, short_ms + 1_000)],
        "long-partition": [step(Fault.CUT, one, 0, long_ms)],
        "one-way": [step(Fault.ONE_WAY, one, 0, short_ms + 2_000)],
        "pause": [step(Fault.PAUSE, one, 0, short_ms)],
        "long-pause": [step(Fault.PAUSE, one, 0, long_ms)],
        "loss": [
            step(Fault.LOSS, index, 0, 4_000, rng.uniform(0.02, 0.25)) for index in range(NODES)
        ],
        "join-kill": [
            step(Fault.JOIN, SPARE, 0, 6_000), step(Fault.KILL, one, soon_ms, short_ms),
        ],
        "leave-kill": [
            step(Fault.LEAVE, one, 0, short_ms), step(Fault.KILL, other, soon_ms, short_ms),
        ],
        "two-kills": [
            step(Fault.KILL, one, 0, short_ms), step(Fault.KILL, other, soon_ms, short_ms),
        ],
        "rolling": [step(Fault.LEAVE, index, 3_500 * index, 500) for index in range(NODES)],
        "loss-join": [
            *(step(Fault.LOSS, index, 0, 7_000, 0.1) for index in range(NODES)),
            step(Fault.JOIN, SPARE, 500, 5_000),
        ],
    }[theme]  # fmt: skip
