"""Whole clusters on a simulated network: joins, kills, loss, partitions, pauses, restarts."""

import pytest

from tests.cluster.simulation.network import SimulatedNetwork, cluster
from waterclock.cluster.gossip import Failed, Left, State, Updated


def everyone_sees(network: SimulatedNetwork, *names: str) -> bool:
    return all(network.nodes[name].alive() == set(names) for name in names)


def failures(network: SimulatedNetwork) -> list[tuple[str, str]]:
    return [(name, each) for name, node in network.nodes.items() for each in node.happened(Failed)]


def without(network: SimulatedNetwork, *gone: str) -> list[str]:
    return [name for name in network.nodes if name not in gone]


def test_a_node_that_joins_a_hundred_is_known_to_all_in_three_seconds():
    network = cluster(100)
    network.add("new", seeds=["n50"])

    took_ms = network.run_until(lambda: everyone_sees(network, *network.nodes), 3_000)

    assert took_ms <= 3_000
    assert failures(network) == []
    network.check()


def test_an_idle_node_of_a_hundred_sends_less_than_a_kilobyte_a_second():
    network = cluster(100)
    network.run(60_000)
    before = [node.sent_bytes for node in network.nodes.values()]

    network.run(90_000)  # so often a node exchanges all it knows, in a cluster of this size

    sent = sum(node.sent_bytes for node in network.nodes.values()) - sum(before)
    assert sent / 100 / 90 < 1_000


@pytest.mark.parametrize("seed", range(3))
def test_nobody_is_taken_for_dead_while_every_twentieth_packet_is_lost(seed):
    network = cluster(20, seed=seed, loss=0.05)

    network.run(60_000)

    assert failures(network) == []
    assert everyone_sees(network, *network.nodes)


@pytest.mark.parametrize("seed", range(8))
def test_a_killed_node_of_three_is_known_to_both_in_six_and_a_half_seconds(seed):
    network = cluster(3, seed=seed)
    network.run(5_000 + 137 * seed)

    network.kill("n2")

    network.run_until(lambda: sorted(failures(network)) == [("n1", "n2"), ("n3", "n2")], 6_500)


def test_a_killed_node_of_twenty_is_known_to_all_and_nobody_else_is_taken_for_dead():
    network = cluster(20)
    network.kill("n7")

    network.run_until(lambda: everyone_sees(network, *without(network, "n7")), 20_000)

    assert {each for _, each in failures(network)} == {"n7"}


def test_a_node_that_leaves_has_left_for_all_and_failed_for_none():
    network = cluster(20)
    network.leave("n7")

    network.run_until(lambda: everyone_sees(network, *without(network, "n7")), 3_000)

    assert [network.nodes[name].happened(Left) for name in without(network, "n7")] == [["n7"]] * 19
    assert failures(network) == []


def test_tags_reach_everyone():
    network = cluster(20)
    network.set_tags("n3", {"zone": "b"})

    others = [network.nodes[name] for name in without(network, "n3")]
    network.run_until(lambda: all(node.happened(Updated) == ["n3"] for node in others), 3_000)


def test_a_node_that_only_some_can_reach_is_not_taken_for_dead():
    """Indirect pings: n1 and n2 do not hear each other, over UDP or TCP."""
    network = cluster(5)
    cut = {network.nodes["n1"].address, network.nodes["n2"].address}
    network.block(lambda source, target, how: {source, target} != cut)

    network.run(60_000)

    assert failures(network) == []


def test_a_node_that_only_tcp_reaches_is_not_taken_for_dead():
    network = cluster(3)
    shut = network.nodes["n2"].address
    network.block(lambda source, target, how: how == "stream" or shut not in (source, target))

    network.run(20_000)

    assert {each for name, each in failures(network) if name != "n2"} == set()


@pytest.mark.parametrize("length_ms", [10_000, 60_000, 180_000])
def test_two_halves_find_each_other_after_a_partition_also_once_they_forgot_each_other(length_ms):
    network = cluster(6)
    left, right = ["n1", "n2", "n3"], ["n4", "n5", "n6"]
    network.split(left, right)
    network.run(length_ms)
    if length_ms > 60_000:
        assert network.nodes["n1"].state_of("n4") is None

    network.split()

    network.run_until(lambda: everyone_sees(network, *left, *right), 90_000)
    network.run(30_000)
    assert everyone_sees(network, *left, *right)
    network.check()


def test_all_nodes_started_anew_at_once_find_each_other_though_clocks_were_set_back():
    network = cluster(8)
    network.run(10_000)
    names = list(network.nodes)
    for name in names:
        network.kill(name)
    network.run(2_000)
    for name in names[1:]:
        network.add(name, seeds=["n1", "n2"], incarnation=5)
    network.run(3_000)
    network.add("n1", seeds=["n2"], incarnation=5)

    network.run_until(lambda: everyone_sees(network, *names), 30_000)


def test_a_node_started_anew_with_its_clock_set_back_is_alive_again_to_those_who_remember_it():
    network = cluster(5)
    network.kill("n3")
    network.run_until(lambda: everyone_sees(network, *without(network, "n3")), 40_000)

    network.add("n3", seeds=["n1"], incarnation=5)

    network.run_until(lambda: everyone_sees(network, *network.nodes), 5_000)


def test_a_node_that_pauses_is_back_by_itself_and_takes_nobody_for_dead():
    network = cluster(10)
    network.pause("n4", 40_000)
    network.run(40_000)

    network.run_until(lambda: everyone_sees(network, *network.nodes), 30_000)

    assert {each for _, each in failures(network)} <= {"n4"}
    assert network.nodes["n1"].state_of("n4") == State.ALIVE


def test_the_same_seed_has_the_same_history():
    def history():
        network = cluster(10, seed=7, loss=0.1)
        network.kill("n3")
        network.run(30_000)
        return [node.events for node in network.nodes.values()], network.counts

    assert history() == history()
