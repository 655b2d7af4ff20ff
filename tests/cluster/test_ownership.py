"""Who owns a stream, and who hears when that changes."""

from waterclock.server.cluster.ownership import RingOwnership

A, B = {"a": "http://a"}, {"b": "http://b"}


def test_a_node_that_knows_no_others_owns_everything():
    ownership = RingOwnership("a")

    assert ownership.owner("orders") is None
    assert ownership.others == []


def test_nobody_answers_for_a_stream_while_it_is_not_known_who_is_there():
    ownership = RingOwnership("a")
    ownership.is_joining = True
    assert ownership.owner("orders") == "a"

    ownership.is_joining = False
    assert ownership.owner("orders") is None


def test_when_nodes_come_or_go_the_ring_before_and_the_ring_now_are_told():
    ownership, seen = RingOwnership("a"), []
    ownership.on_change.append(lambda old, new: seen.append((old.nodes, new.nodes)))

    ownership.update(A | B)
    ownership.update(B)

    assert seen == [(("a",), ("a", "b")), (("a", "b"), ("b",))]
    assert ownership.owner("orders") == "b"


def test_another_address_of_the_same_nodes_is_no_change_of_the_ring():
    ownership, seen = RingOwnership("a"), []
    ownership.update(A | B)
    ring = ownership.ring
    ownership.on_change.append(lambda old, new: seen.append(new))

    ownership.update(A | {"b": "http://elsewhere"})

    assert ownership.address("b") == "http://elsewhere"
    assert ownership.ring is ring
    assert seen == []


def test_nodes_with_other_numbers_of_points_disagree_about_streams():
    few, many = RingOwnership("a", points=1), RingOwnership("a", points=200)
    for each in (few, many):
        each.update(A | B)

    streams = [f"stream-{number}" for number in range(100)]
    assert [few.owner(name) for name in streams] != [many.owner(name) for name in streams]
