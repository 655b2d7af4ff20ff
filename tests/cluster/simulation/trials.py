"""Trials for processes of their own: what they are told, and what they tell."""

from collections import Counter
from typing import NamedTuple

from tests.cluster.simulation.scenarios import played


class Played(NamedTuple):
    """What a trial came to, for another process."""

    scenario: str
    seed: int
    kinds: Counter[str]
    findings: str
    measures: dict[str, tuple[float, float]]
    simulated_ms: int
    story: tuple[str, ...]


def play_one(task: tuple[str, int, int | None]) -> Played:
    """Play one trial."""
    name, seed, nodes = task
    trial = played(name, seed, nodes)
    kinds, findings = Counter(dict(trial.findings)), str(trial.findings)
    simulated_ms, story = trial.network.now_ms, tuple(trial.story)
    return Played(name, seed, kinds, findings, trial.measures, simulated_ms, story)
