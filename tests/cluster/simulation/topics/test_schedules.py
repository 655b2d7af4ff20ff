"""Schedules go well, and lead to where each of their planted bugs shows."""

import pytest

from tests.cluster.simulation.topics.plants import PLANTS, first_found
from tests.cluster.simulation.topics.schedules import SCHEDULES

DIRECTED = [
    name
    for name, plant in PLANTS.items()
    # The last takes seconds: `make cluster-plants` plays it.
    if plant.schedule and plant.schedule != "a node joins and is given its share"
]


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_goes_well(name: str) -> None:
    assert str(SCHEDULES[name](1).findings) == "nothing found"


@pytest.mark.parametrize("name", DIRECTED)
def test_a_planted_bug_is_found_by_its_schedule(name: str) -> None:
    seed, findings = first_found(name)
    assert seed is not None, str(findings)
