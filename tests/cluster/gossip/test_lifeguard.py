"""Suspicion and self-doubt: how long a suspect has, and who shortens it."""

import pytest

from tests.cluster.gossip.one_node import OneNode, address_of, alive_of, only, sent
from waterclock.cluster.gossip import Failed, State
from waterclock.cluster.gossip.lifeguard import Awareness, Suspicion, suspicion_ms
from waterclock.cluster.gossip.messages import Ack, Dead, Ping, Suspect


def failed_after(me: OneNode, name: str) -> int:
    began_ms = me.now_ms
    while me.state(name) == State.SUSPECT:
        me.passes(50)
    assert [each.member.name for each in only(me.effects, Failed)] == [name]
    return me.now_ms - began_ms


@pytest.mark.parametrize(
    ("nodes", "length_ms"), [(1, 4_000), (10, 4_000), (11, 4_164), (100, 8_000), (1_000, 12_000)]
)
def test_the_least_time_of_a_suspect_grows_with_the_logarithm_of_the_cluster(nodes, length_ms):
    assert suspicion_ms(4, nodes, 1_000) == length_ms


@pytest.mark.parametrize(("confirmations", "length_ms"), [(0, 24_000), (1, 11_381), (2, 4_000)])
def test_each_confirmation_shortens_the_time_of_a_suspect(confirmations, length_ms):
    suspicion = Suspicion("a", expected=2, min_ms=4_000, max_ms=24_000, now_ms=0)

    for number in range(confirmations):
        assert suspicion.confirm(f"b{number}")

    assert suspicion.deadline_ms == length_ms


def test_the_first_accuser_confirms_nothing_nor_does_anyone_twice_or_more_than_are_expected():
    suspicion = Suspicion("a", expected=2, min_ms=4_000, max_ms=24_000, now_ms=0)

    assert [suspicion.confirm(name) for name in "abbcd"] == [False, True, False, True, False]


def test_three_nodes_wait_the_least_time_for_there_are_too_few_to_confirm():
    me = OneNode("b1", "b2")
    me.gossip._prober.stop()
    me.hears(Suspect(1, "b1", "b2"))

    assert failed_after(me, "b1") == 4_000


def test_five_nodes_wait_six_times_as_long_and_less_when_others_confirm():
    for confirmers, length_ms in (([], 24_000), (["b3"], 11_400), (["b3", "b4"], 4_000)):
        me = OneNode("b1", "b2", "b3", "b4")
        me.gossip._prober.stop()
        me.hears(Suspect(1, "b1", "b2"))
        for name in confirmers:
            me.hears(Suspect(1, "b1", name))

        assert failed_after(me, "b1") == length_ms


def test_the_dead_are_not_waited_for_to_confirm():
    me = OneNode("b1", "b2", "b3", "b4")
    me.gossip._prober.stop()
    me.hears(Dead(1, "b2", "b3"), Dead(1, "b3", "b4"))
    me.effects.clear()
    me.hears(Suspect(1, "b1", "b4"))

    assert failed_after(me, "b1") == 4_000


def test_a_confirmation_that_comes_late_ends_the_suspicion_at_once():
    me = OneNode("b1", "b2", "b3", "b4")
    me.gossip._prober.stop()
    me.hears(Suspect(1, "b1", "b2"))
    me.passes(12_000)

    me.hears(Suspect(1, "b1", "b3"))
    me.passes(0)

    assert me.state("b1") == State.DEAD


def test_a_node_that_nobody_answers_tells_nobody_of_deaths():
    me = OneNode("b1", "b2")

    effects = me.passes(20_000)

    assert me.state("b1") == State.DEAD
    assert sent(effects, Suspect)
    assert sent(effects, Dead) == []


def test_a_node_that_is_answered_again_accuses_again_so_that_suspects_can_refute():
    others = ["b1", "b2", "b3", "b4", "b5"]
    me = OneNode(*others)
    me.passes(3_000)
    pings: list[Ping] = []
    while not pings:  # to one that is not suspected yet
        pings = [ping for _, ping in sent(me.passes(1), Ping) if me.state(ping.node) == State.ALIVE]
    suspects = {name for name in others if me.state(name) == State.SUSPECT}
    me.forget_news()

    effects = me.hears(Ack(pings[0].seq_no), source=pings[0].node)

    accused = [(address_of(name), Suspect(1, name, "me")) for name in suspects]
    assert suspects
    assert sorted(sent(effects, Suspect)) == sorted(accused)
    assert sorted({claim for _, claim in sent(me.passes(200), Suspect)}) == sorted(
        claim for _, claim in accused
    )


def test_new_confirmations_are_told_on_and_old_ones_are_not():
    me = OneNode("b1", "b2", "b3", "b4")
    me.hears(Suspect(1, "b1", "b2"))
    me.forget_news()

    me.hears(Suspect(1, "b1", "b2"))
    assert sent(me.passes(300), Suspect) == []
    me.hears(Suspect(1, "b1", "b3"))
    assert {claim for _, claim in sent(me.passes(300), Suspect)} == {Suspect(1, "b1", "b3")}


def test_the_time_in_which_a_node_stood_still_is_not_counted_against_suspects():
    me = OneNode("b1", "b2")
    me.gossip._prober.stop()
    me.hears(Suspect(1, "b1", "b2"))

    me.now_ms += 10_000
    me.gossip.tick(me.now_ms)

    assert me.state("b1") == State.SUSPECT
    me.hears(alive_of("b1", 2))
    assert me.state("b1") == State.ALIVE


def test_a_node_that_stood_still_accuses_nobody_of_not_answering():
    me = OneNode("b1", "b2")
    while not sent(me.passes(1), Ping):
        pass

    me.now_ms += 10_000
    effects = me.gossip.tick(me.now_ms)

    assert sent(effects, Suspect) == []
    assert me.gossip.score == 0


def test_a_refuted_suspicion_does_not_come_back():
    me = OneNode("b1", "b2")
    me.gossip._prober.stop()
    me.hears(Suspect(1, "b1", "b2"))
    me.hears(alive_of("b1", 2))

    me.passes(60_000)

    assert me.state("b1") == State.ALIVE


def test_self_doubt_has_a_least_and_a_most():
    awareness = Awareness(8)
    assert awareness.scaled(100) == 100

    for delta, score in ((-1, 0), (3, 3), (9, 7), (-2, 5)):
        awareness.change(delta)
        assert awareness.score == score
    assert awareness.scaled(100) == 600
