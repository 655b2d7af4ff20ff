"""Simulated clusters keep what gossip promises, and planted bugs are found (or it proves nothing).

`make cluster-sim` plays more and larger ones.
"""

import pytest

from tests.cluster.simulation.plants import PLANTS, first_found
from tests.cluster.simulation.scenarios import SCENARIOS, played

NODE_COUNT = 24
LONG = {
    "an accusation is not refuted", "a refutation does not end a suspicion",
    "suspicion without lifeguard", "who was not heard does not accuse again",
    "nobody reconnects", "who takes itself for alone answers",
}  # fmt: skip
"""Others give the same away sooner: `make cluster-plants` plants these as well."""
QUICK = [name for name in PLANTS if name not in LONG]


@pytest.mark.parametrize("name", SCENARIOS)
def test_nothing_is_found(name):
    trial = played(name, 1, NODE_COUNT)

    assert not trial.findings, "\n".join(trial.story)


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_bug_is_found(name):
    seed, findings = first_found(PLANTS[name])

    assert seed is not None, findings


def test_every_finding_that_a_plant_gives_away_has_a_quick_one():
    assert {plant.gives_away for plant in PLANTS.values()} == {
        PLANTS[name].gives_away for name in QUICK
    }
    assert set(PLANTS) > LONG
