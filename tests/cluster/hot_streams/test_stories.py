"""Stories of hot streams on a virtual network, and the bugs that their judge must find."""

import pytest

from tests.cluster.hot_streams.simulated import Violation
from tests.cluster.hot_streams.stories import PLANTS, tell, tell_all, tell_steady, tell_uneven


@pytest.mark.parametrize("seed", range(100, 106))
def test_no_story_breaks_a_promise(seed):
    tell(seed)


def test_a_hot_stream_is_split_and_a_steady_rate_has_a_steady_count():
    assert max(tell_steady(seed) for seed in range(3)) > 1


def test_messages_do_not_wait_for_ever_where_nobody_polls():
    tell_uneven(3)


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_bug_is_found(plant):
    with pytest.raises(Violation):
        tell_all(PLANTS[plant], plant)
