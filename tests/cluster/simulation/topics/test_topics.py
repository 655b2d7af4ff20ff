"""A few of the many seeds of `make cluster-sim`, and bugs that some of them find."""

import pytest

from tests.cluster.simulation.topics.world import played


@pytest.mark.parametrize("seed", range(1, 7))
def test_replicated_topics_keep_their_guarantees(seed: int) -> None:
    world = played(seed)
    assert str(world.findings) == "nothing found"
    assert world.counts["publishes acked"]


def test_a_seed_always_does_the_same() -> None:
    assert played(7).events == played(7).events
