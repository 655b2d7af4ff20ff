"""Groups of engines under many seeds keep every promise, and no planted bug goes unseen."""

import pytest

from tests.burrow.fake_group import Violation
from tests.burrow.plants import PLANTS
from tests.burrow.simulation import run
from tests.kit.examples import examples

SEEDS = 240
STORIES = examples(SEEDS)
SHARDS = 8
ONCE_RED = [5_534]
"""Stories that showed a bug of ours."""


@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_promise_is_kept_under_rebalances_kills_and_errors(shard):
    for seed in range(shard, STORIES, SHARDS):
        run(seed)


@pytest.mark.parametrize("seed", ONCE_RED)
def test_a_story_that_once_went_wrong_goes_well(seed):
    run(seed)


@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)
def test_a_planted_bug_is_found(plant):
    found = None
    for seed in range(SEEDS):
        with plant():
            try:
                run(seed)
            except Violation as violation:
                found = violation
                break

    assert found is not None, f"{plant.__name__} told {SEEDS} stories and nobody noticed"
