"""News: how often they are sent, in which order, and that the newer replaces the older."""

import pytest

from tests.cluster.gossip.one_node import OneNode, address_of, alive_of, only, sent
from waterclock.cluster.gossip import OpenPushPull, SendPacket
from waterclock.cluster.gossip.broadcasts import Broadcasts, retransmit_limit
from waterclock.cluster.gossip.members import Node
from waterclock.cluster.gossip.messages import Ack, Alive, Ping
from waterclock.cluster.gossip.streams import PushPull, State


@pytest.mark.parametrize(("nodes", "limit"), [(4, 4), (5, 8), (9, 8), (10, 12), (100, 16)])
def test_news_are_sent_more_often_in_larger_clusters(nodes, limit):
    assert retransmit_limit(4, nodes, fanout=3) == limit


def test_what_was_sent_least_goes_first_then_the_longest_then_the_newest():
    news = Broadcasts()
    news.put("sent before", b"0" * 9)
    assert news.take(100, sends_max=9) == [b"0" * 9]
    for subject, data in (("short", b"a"), ("old", b"bb"), ("new", b"cc"), ("long", b"ddd")):
        news.put(subject, data)

    assert news.take(100, sends_max=9) == [b"ddd", b"cc", b"bb", b"a", b"0" * 9]


def test_news_are_sent_so_often_and_no_more():
    news = Broadcasts()
    news.put("n", b"x")

    assert [news.take(100, sends_max=3) for _ in range(4)] == [[b"x"], [b"x"], [b"x"], []]
    assert len(news) == 0


def test_what_is_newer_about_a_node_replaces_the_older():
    news = Broadcasts()
    news.put("n", b"old")
    news.put("n", b"new")

    assert news.take(100, sends_max=9) == [b"new"]


def test_news_that_do_not_fit_make_room_for_shorter_ones():
    news = Broadcasts()
    news.put("long", b"x" * 50)
    news.put("short", b"y" * 8)

    assert news.take(20, sends_max=9) == [b"y" * 8]


def test_no_packet_is_longer_than_it_may_be():
    me = OneNode(*(f"b{number}" for number in range(1, 4)))
    for number in range(4, 80):
        me.hears(alive_of(f"b{number}", meta=b"m" * 300))

    packets = only(me.passes(2_000), SendPacket)

    assert packets
    assert max(len(packet.payload) for packet in packets) <= 1_400
    assert max(len(packet.payload) for packet in packets) > 1_000


def test_news_go_with_answers_that_go_anyway():
    me = OneNode("b1")
    me.hears(alive_of("b2"))

    effects = me.hears(Ping(5, "me"), source="b1")

    assert [ack for _, ack in sent(effects, Ack)] == [Ack(5)]
    assert [claim for _, claim in sent(effects, Alive)] == [alive_of("b2")]


def test_a_node_without_news_sends_none_and_wakes_for_probes_only():
    me = OneNode("b1")
    me.gossip._prober.stop()
    me.passes(2_000)
    me.effects.clear()

    me.passes(20_000)

    assert only(me.effects, SendPacket) == []


def test_news_go_to_three_nodes_in_each_round():
    me = OneNode(*(f"b{number}" for number in range(1, 9)))
    me.gossip._prober.stop()
    me.passes(1_000)

    me.hears(alive_of("b9"))

    rounds = [sent(me.passes(200), Alive) for _ in range(5)]
    assert [len({to for to, _ in each}) for each in rounds] == [3, 3, 3, 3, 0]  # twelve times


@pytest.mark.parametrize(("nodes", "interval_s"), [(3, 30), (32, 30), (33, 60), (65, 90)])
def test_push_pulls_are_rarer_in_larger_clusters(nodes, interval_s):
    me = OneNode(*(f"b{number}" for number in range(1, nodes)))
    for number in range(1, nodes):
        me.gossip._members.get(f"b{number}").changed_ms = 0  # type: ignore[union-attr]
    me.gossip._prober.stop()

    exchanges = only(me.passes(900_000), OpenPushPull)

    assert len(exchanges) in (900 // interval_s, 900 // interval_s + 1)
    assert {each.state.is_join for each in exchanges} == {False}
    assert {each.address for each in exchanges} <= {address_of(f"b{n}") for n in range(1, nodes)}


def test_a_node_that_joined_exchanges_again_soon_and_then_ever_more_rarely():
    me = OneNode("b1")
    me.gossip._prober.stop()
    states = tuple(Node(alive_of(f"b{number}"), 0).snapshot() for number in range(1, 4))
    alive = tuple(state._replace(state=State.ALIVE) for state in states)

    me.gossip.push_pull_answered(PushPull(alive, is_join=True), me.now_ms)
    counts = [len(only(me.passes(each), OpenPushPull)) for each in (2_000, 5_000, 60_000, 60_000)]

    assert counts[0] >= 1
    assert counts[1] >= 1
    assert counts[2] <= 5
    assert counts[3] == 2


def test_a_join_that_brings_nobody_changes_nothing():
    me = OneNode("b1")
    me.gossip._prober.stop()
    state = Node(alive_of("b1"), 0).snapshot()._replace(state=State.ALIVE)
    due_ms = me.gossip._push_pull_timer.due_ms  # type: ignore[union-attr]

    me.gossip.push_pull_answered(PushPull((state,), is_join=True), me.now_ms)

    assert me.gossip._push_pull_timer.due_ms == due_ms  # type: ignore[union-attr]
