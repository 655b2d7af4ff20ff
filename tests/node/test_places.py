"""Who answers for what, on a node that is alone."""

from waterclock.node.places import AlonePlaces, Places


def test_a_node_alone_answers_for_everything():
    places: Places = AlonePlaces("a")

    assert places.meta_leader() == "a"
    assert places.group_home("mailers") == "a"
    assert places.group_homes() == ("a",)
    assert places.leader_of("orders", 7) == "a"
    assert places.replicas_of("orders", 7) == ("a",)
