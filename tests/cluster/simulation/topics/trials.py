"""Seeds played side by side, in processes of their own."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tests.cluster.simulation.side_by_side import side_by_side
from tests.cluster.simulation.topics.plants import first_found
from tests.cluster.simulation.topics.world import World, played


class Heard(NamedTuple):
    """What a seed came to, for another process."""

    seed: int
    findings: str
    kinds: Counter[str]
    counts: Counter[str]
    faults: Counter[str]
    simulated_ms: int


def heard(world: World) -> Heard:
    """Return what there is to say of a run."""
    return Heard(
        world.seed,
        str(world.findings),
        Counter(world.findings),
        world.counts,
        world.faults.done,
        world.timeline.now_ms,
    )


def play(seed: int) -> Heard:
    """Play one seed."""
    return heard(played(seed))


def play_all(seeds: Sequence[int], processes: int) -> Iterator[Heard]:
    """Play many seeds side by side; they come as they end."""
    yield from side_by_side(play, seeds, processes, chunk=4)


def found(name: str) -> tuple[str, int | None, str, float]:
    """Look for one planted bug."""
    begun = time.monotonic()
    seed, findings = first_found(name)
    return name, seed, findings.summary, time.monotonic() - begun
