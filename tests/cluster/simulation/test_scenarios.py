"""Simulated clusters keep what gossip promises, and planted bugs are found (or it proves nothing).

`make cluster-sim` plays more and larger ones.
"""

import pytest

from tests.cluster.simulation.plants import PLANTS, first_found
from tests.cluster.simulation.scenarios import SCENARIOS, played

NODE_COUNT = 24


@pytest.mark.parametrize("name", SCENARIOS)
def test_nothing_is_found(name):
    trial = played(name, 1, NODE_COUNT)

    assert not trial.findings, "\n".join(trial.story)


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_found(name):
    seed, findings = first_found(PLANTS[name])

    assert seed is not None, findings
