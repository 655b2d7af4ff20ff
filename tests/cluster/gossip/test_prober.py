"""Failure detection: who is pinged, who is asked for help, and what follows from silence."""

from tests.cluster.gossip.one_node import ME, OneNode, address_of, alive_of, only, sent
from waterclock.cluster.gossip import Failed, OpenStreamPing, PacketsBlocked, State
from waterclock.cluster.gossip.messages import Ack, Alive, Dead, IndirectPing, Nack, Ping, Suspect
from waterclock.cluster.gossip.prober import RELAYS_MAX


def probe(me: OneNode) -> tuple[str, Ping]:
    """Let time pass until the next probe; return whom."""
    for _ in range(3_000):
        for _, ping in sent(me.passes(1), Ping):
            return ping.node, ping
    raise AssertionError("nobody is probed")


def others(count: int) -> list[str]:
    return [f"b{number}" for number in range(1, count + 1)]


def test_every_node_is_pinged_once_before_any_is_pinged_twice():
    me = OneNode(*others(7))

    rounds = []
    for _ in range(3):
        probed = []
        for _ in range(7):
            name, ping = probe(me)
            me.hears(Ack(ping.seq_no))
            probed.append(name)
        rounds.append(probed)

    assert [sorted(each) for each in rounds] == [others(7)] * 3
    assert rounds[0] != rounds[1] != rounds[2]  # shuffled at each wrap


def test_one_node_is_probed_each_interval():
    me = OneNode(*others(5))
    _, ping = probe(me)
    began_ms = me.now_ms
    me.hears(Ack(ping.seq_no))

    probe(me)

    assert me.now_ms - began_ms == 1_000


def test_the_dead_are_not_probed():
    me = OneNode("b1", "b2")
    me.hears(Dead(1, "b1", "b2"))

    for _ in range(4):
        name, ping = probe(me)
        me.hears(Ack(ping.seq_no))
        assert name == "b2"


def test_a_ping_says_who_asks_and_for_whom():
    me = OneNode("b1")

    _, ping = probe(me)

    assert (ping.node, ping.source, ping.source_node) == ("b1", ME, "me")


def test_a_suspect_is_pinged_with_what_it_has_to_refute():
    me = OneNode("b1", suspicion_mult=40)
    me.hears(Suspect(1, "b1", "b9"))
    me.forget_news()

    _, ping = probe(me)

    pinged = [each for each in me.effects if sent([each], Ping)]
    assert sent(pinged, Suspect) == [(address_of("b1"), Suspect(1, "b1", "me"))]
    assert ping.node == "b1"


def test_others_are_asked_and_tcp_is_tried_when_a_ping_is_not_answered_in_time():
    me = OneNode(*others(6))
    name, ping = probe(me)

    assert me.passes(499) == []
    effects = me.passes(1)

    asked = sent(effects, IndirectPing)
    assert len({to for to, _ in asked}) == 3
    assert address_of(name) not in [to for to, _ in asked]
    assert {each for _, each in asked} == {
        IndirectPing(ping.seq_no, address_of(name), name, True, ME, "me")
    }
    (stream,) = only(effects, OpenStreamPing)
    assert (stream.address, stream.ping.seq_no) == (address_of(name), ping.seq_no)
    assert stream.deadline_ms == me.now_ms + 500


def test_suspects_and_the_dead_are_not_asked_for_help():
    me = OneNode(*others(3), suspicion_mult=40)
    me.hears(Suspect(1, "b1", "b9"), Dead(1, "b2", "b9"))
    me.forget_news()

    while probe(me)[0] != "b1":
        me.hears(Ack(me.gossip._prober._seq_no))
    assert {to for to, _ in sent(me.passes(500), IndirectPing)} == {address_of("b3")}


def test_an_ack_through_a_helper_is_as_good():
    me = OneNode(*others(4))
    name, ping = probe(me)
    me.passes(600)

    me.hears(Ack(ping.seq_no), source="b3")
    me.passes(400)

    assert me.state(name) == State.ALIVE
    assert me.gossip.score == 0


def test_a_node_that_answers_over_tcp_only_is_alive_and_the_network_is_blamed():
    me = OneNode(*others(4))
    name, ping = probe(me)
    me.passes(600)

    me.gossip.stream_acked(ping.seq_no, me.now_ms)
    effects = me.passes(400)

    assert [each.member.name for each in only(effects, PacketsBlocked)] == [name]
    assert me.state(name) == State.ALIVE


def test_a_node_that_answers_nobody_is_suspect_after_the_interval():
    me = OneNode(*others(4))
    name, _ = probe(me)

    me.passes(999)
    assert me.state(name) == State.ALIVE
    me.passes(1)
    assert me.state(name) == State.SUSPECT
    me.passes(200)
    assert Suspect(1, name, "me") in [claim for _, claim in sent(me.effects, Suspect)]


def test_probes_are_counted_and_those_that_found_nobody():
    me = OneNode(*others(4))
    _, answered = probe(me)
    me.hears(Ack(answered.seq_no))
    assert me.gossip.probes == (1, 0)

    probe(me)
    me.passes(999)
    assert me.gossip.probes == (2, 0)
    me.passes(1)
    assert me.gossip.probes[1] == 1


def test_nacks_spare_our_self_doubt_and_missing_ones_do_not():
    for nacks, score in ((0, 3), (1, 2), (3, 0)):
        me = OneNode(*others(5))
        _, ping = probe(me)
        me.passes(600)
        for _ in range(nacks):
            me.hears(Nack(ping.seq_no))
        me.passes(400)

        assert me.gossip.score == score


def test_without_helpers_that_could_nack_a_failed_probe_is_one_of_self_doubt():
    me = OneNode("b1")
    probe(me)

    me.passes(1_000)

    assert me.gossip.score == 1


def test_self_doubt_stretches_the_probe_but_not_its_timeout():
    me = OneNode("b1", "b2", suspicion_mult=400)
    me.gossip._awareness.change(2)
    name, _ = probe(me)

    assert len(sent(me.passes(500), IndirectPing)) == 1
    me.passes(2_499)
    assert me.state(name) == State.ALIVE
    effects = me.passes(1)
    assert me.state(name) == State.SUSPECT
    assert len(sent(effects, Ping)) == 1  # the next probe begins at once


def test_a_probe_that_succeeds_takes_self_doubt_back():
    me = OneNode("b1")
    me.gossip._awareness.change(3)
    _, ping = probe(me)

    me.hears(Ack(ping.seq_no))

    assert me.gossip.score == 2


def test_a_late_ack_is_ignored():
    me = OneNode("b1", "b2")
    name, ping = probe(me)
    me.passes(1_001)

    assert sent(me.hears(Ack(ping.seq_no)), Alive) == []
    assert me.state(name) == State.SUSPECT


def test_a_ping_is_answered_to_where_it_says_or_where_it_came_from():
    me = OneNode("b1")

    assert sent(me.hears(Ping(5, "me", ("10.1.1.1", 9), "x")), Ack) == [(("10.1.1.1", 9), Ack(5))]
    assert sent(me.hears(Ping(6, "me"), source="b3"), Ack) == [(address_of("b3"), Ack(6))]
    assert sent(me.hears(Ping(7, ""), source="b3"), Ack) == [(address_of("b3"), Ack(7))]
    assert me.hears(Ping(8, "another"), source="b3") == []


def test_a_ping_over_tcp_is_answered_if_it_is_for_us():
    me = OneNode()

    assert me.gossip.stream_ping_received(Ping(5, "me")) == Ack(5)
    assert me.gossip.stream_ping_received(Ping(5, "another")) is None


def test_a_helper_relays_the_ack_under_the_number_of_the_asker():
    me = OneNode("b1", "b2")
    request = IndirectPing(77, address_of("b2"), "b2", True, address_of("b1"), "b1")

    ((to, ping),) = sent(me.hears(request), Ping)
    effects = me.hears(Ack(ping.seq_no), source="b2")

    assert (to, ping.node) == (address_of("b2"), "b2")
    assert sent(effects, Ack) == [(address_of("b1"), Ack(77))]
    assert sent(me.passes(500), Nack) == []


def test_a_helper_that_gets_no_answer_says_so_if_it_is_asked_to():
    for wants_nack in (True, False):
        me = OneNode()
        me.hears(IndirectPing(77, address_of("b2"), "b2", wants_nack, address_of("b1"), "b1"))

        assert sent(me.passes(499), Nack) == []
        assert sent(me.passes(1), Nack) == [(address_of("b1"), Nack(77))] * wants_nack


def test_a_helper_that_is_asked_too_much_helps_no_more():
    me = OneNode()
    request = IndirectPing(77, address_of("b2"), "b2", True, address_of("b1"), "b1")

    answered = [bool(me.hears(request)) for _ in range(RELAYS_MAX + 1)]

    assert answered == [True] * RELAYS_MAX + [False]


def test_nodes_do_not_begin_in_step():
    firsts = set()
    for seed in range(8):
        me = OneNode("b1", seed=seed)
        probe(me)
        firsts.add(me.now_ms)

    assert len(firsts) > 4


def test_the_dead_are_told_so_for_a_while_and_then_reaped_when_the_round_wraps():
    me = OneNode("b1", "b2")
    me.hears(Dead(1, "b1", "b2"))

    me.hears(alive_of("b3"))
    assert address_of("b1") in [to for to, _ in sent(me.passes(1_000), Alive)]
    me.passes(29_000)
    assert me.state("b1") == State.DEAD
    me.passes(10_000)
    assert me.state("b1") is None


def test_a_killed_node_of_three_is_known_dead_in_six_and_a_half_seconds():
    for seed in range(20):
        me = OneNode("b1", "b2", seed=seed)
        began_ms = me.now_ms
        while not only(me.effects, Failed):
            for to, ping in sent(me.passes(1), Ping):
                if to == address_of("b2"):
                    me.hears(Ack(ping.seq_no), source="b2")
        # Its own probe may come last in the round of two; then four seconds of suspicion.
        assert me.now_ms - began_ms <= 1_000 + 2_000 + 4_000
