"""A partition is under-replicated when fewer replicas vote, or are reached, than are to."""

import msgspec
import pytest

from tests.cluster.replicated import partition
from waterclock.model.cluster_views import ReplicationView


@pytest.mark.parametrize(
    ("view", "is_under_replicated"),
    [
        (partition("whole", 0, leader="a"), False),
        (partition("nobody leads", 0, leader=""), True),
        (partition("a voter is away", 0, leader="a", away="c"), True),
        (partition("a learner is away", 0, leader="a", away="c", learner="c", factor=2), False),
        (partition("one is to vote again", 0, leader="a", learner="c"), True),
        (partition("there are too few nodes", 0, leader="a", factor=5), True),
        (partition("one too many votes, to move", 0, leader="a", factor=2), False),
    ],
    ids=lambda each: each.topic if isinstance(each, ReplicationView) else "",
)
def test_fewer_voters_than_are_to_be_count_as_one_that_is_away_does(view, is_under_replicated):
    assert view.is_under_replicated is is_under_replicated


def test_a_node_of_an_older_release_does_not_say_how_many_are_to_vote_and_is_believed():
    said = msgspec.to_builtins(partition("orders", 0, leader="a", learner="c"))
    del said["factor"]

    view = msgspec.convert(said, ReplicationView)

    assert (view.factor, view.voters, view.is_under_replicated) == (0, 2, False)
