"""One node is current; it stays so until it fails, and then the next one is."""

from collections import Counter
from random import Random

from waterclock.client.nodes import Nodes


def nodes(*given: str, seed: int = 1) -> Nodes:
    return Nodes(given, Random(seed))


def test_clients_spread_over_the_nodes():
    chosen = Counter(nodes("a", "b", "c", seed=seed).current for seed in range(300))

    assert chosen.keys() == {"a", "b", "c"}
    assert min(chosen.values()) > 50


def test_all_are_asked_one_after_the_other():
    known = nodes("a", "b", "c")

    seen = {known.current}
    for _ in range(2):
        left = known.current
        assert known.leave(left) == known.current != left
        seen.add(known.current)
    assert seen == {"a", "b", "c"}


def test_one_that_many_have_seen_fail_is_left_once():
    known = nodes("a", "b", "c")
    failed = known.current

    other = known.leave(failed)

    assert known.leave(failed) is None
    assert known.current == other


def test_the_only_node_is_never_left():
    known = nodes("a")

    assert known.leave("a") is None
    assert known.drop("a") is False
    assert (known.current, known.is_alone) == ("a", True)


def test_nodes_that_are_named_are_asked_as_well():
    known = nodes("a")
    known.learn(["b", "c"])

    assert sorted(known.all) == ["a", "b", "c"]
    assert known.leave("a") in ("b", "c")


def test_what_was_given_is_never_forgotten_and_what_was_named_is():
    known = nodes("a")
    known.learn(["b", "c"])
    known.learn(["d"])

    assert known.all == ["a", "d"]


def test_the_current_node_is_kept_though_nobody_names_it():
    known = nodes("a")
    known.learn(["b"])
    known.leave("a")
    known.learn(["c"])

    assert known.current == "b"
    assert sorted(known.all) == ["a", "b", "c"]


def test_one_that_is_no_node_is_not_asked_again_though_it_is_named():
    known = nodes("a")
    known.learn(["b"])
    known.leave("a")
    assert known.drop("b")
    known.learn(["b"])

    assert (known.all, known.current, known.is_alone) == (["a"], "a", True)
