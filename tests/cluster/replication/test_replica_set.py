"""Sets of replicas change by one, and who is preferred to lead without any change of the set."""

from tests.cluster.replication.model_world import World
from tests.cluster.replication.one_replica import A, C


def started() -> World:
    world = World("abc")
    world.start_all()
    world.run()
    return world


def test_a_voter_that_is_demoted_copies_on_and_a_leader_that_is_hands_over():
    world = started()
    world.tell("a", "demote", lambda it: it.demote(C, world.now_ms))
    world.run()
    world.publish("x")
    world.run()

    assert world.record is not None
    assert (world.record.replicas, world.record.learners) == (("a", "b"), ("c",))
    assert world.logs()["c"] == "1* 1x"
    world.tell("a", "demote", lambda it: it.demote(A, world.now_ms))
    world.run()
    assert world.leaders == {1: "a", 2: "b"}


def test_another_is_preferred_to_lead_and_the_set_stays_what_it_is():
    world = started()
    world.tell("a", "prefer", lambda it: it.prefer(C, world.now_ms))
    world.run()

    assert world.record is not None
    assert (world.record.replicas, world.record.leader) == (("c", "a", "b"), "a")
