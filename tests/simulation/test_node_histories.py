"""No history of a whole node breaks a guarantee, and planted bugs are found (or this proves
nothing).

`make hunt` runs more of them.
"""

import os
from collections.abc import Iterable

import pytest

from tests.kit.examples import examples
from tests.simulation.hunt import Broken, live
from tests.simulation.plants import PLANTS

HISTORIES = int(os.environ.get("WATERCLOCK_HUNT") or examples(160))
CHUNKS = 8
HUNTED_MAX = 400
"""A planted bug must be found in so many histories."""


def hunt(seeds: Iterable[int]) -> None:
    for seed in seeds:
        live(seed)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_history_breaks_a_guarantee(chunk):
    hunt(range(chunk, HISTORIES, CHUNKS))


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant, monkeypatch):
    plant(monkeypatch)

    with pytest.raises(Broken):
        hunt(range(HUNTED_MAX))
