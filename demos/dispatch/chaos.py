"""Who is killed when: a plan drawn from a seed before the demo begins.

The victim is replaced by the standby, or by the other workers; a fresh process is started
after `REVIVE_S`, so that the demo can go on for as long as one likes. Nobody is killed in the last
second: what comes of a kill is to be seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

REVIVE_S = 1.0
QUIET_S = 1.0
"""Nobody is killed so close to the end."""
LEADER, WORKER = "leader", "worker"
VICTIMS = (LEADER, WORKER)


@dataclass(frozen=True, slots=True)
class Kill:
    """One process that is ended with SIGKILL."""

    at_s: float
    victim: str


def plan(
    victims: Sequence[str], *, seconds: float, every_s: float, rng: Random
) -> list[Kill]:  # fmt: skip
    """Return the kills of a demo, in order: each kind of victim in turn, at a time of its own."""
    if not victims:
        return []
    kills: list[Kill] = []
    at_s = every_s * 0.5
    while at_s < seconds - QUIET_S:
        kills.append(Kill(round(at_s, 3), victims[len(kills) % len(victims)]))
        at_s += every_s * rng.uniform(0.8, 1.2)
    return kills
