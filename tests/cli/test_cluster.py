"""`cluster` shows members, the ring and events; a node without others is a cluster of one."""

import io

from rich.console import Console

from tests.cluster.replicated import partition
from waterclock.cli.commands.cluster.cluster import news, tell_members, tell_replication, tell_ring
from waterclock.cli.commands.cluster.placement import tell_placement
from waterclock.model.cluster_views import (
    DrainView,
    EventView,
    MemberView,
    MoveView,
    PlacementView,
    RingShare,
    RingView,
)


def event(number: int) -> EventView:
    return EventView(number, "joined", f"node-{number}", "")


def said(tell, view) -> list[list[str]]:
    file = io.StringIO()
    tell(Console(file=file, width=200), view)
    return [line.split() for line in file.getvalue().splitlines()]


def test_a_node_without_others_is_a_cluster_of_one(node, call, ask):
    (member,) = ask("cluster", "members")["members"]

    assert member == {
        "name": node.shown["name"],
        "address": None,
        "state": "alive",
        "http": node.shown["http_address"],
        "peer": None,
        "zone": None,
        "level": 1,
        "is_self": True,
        "is_linked": False,
    }
    head, row = call("cluster").stdout.splitlines()
    assert head.split() == ["name", "state", "HTTP", "gossip", "peer", "link", "zone", "level"]
    assert row.split()[:3] == [node.shown["name"], "alive", node.shown["http_address"]]


def test_a_node_without_others_owns_all_streams(node, call, ask, topic):
    call("send", topic, 1)

    found = ask("cluster", "ring")

    (own,) = found["nodes"]
    assert (found["version"], own["name"], own["share"]) == (0, node.shown["name"], 1.0)
    assert own["streams"] >= 1
    assert call("cluster", "ring").stdout.splitlines()[-1].split()[:2] == [
        node.shown["name"],
        "100.0%",
    ]


def test_a_node_that_replicates_nothing_says_so(call, ask):
    assert ask("cluster", "status") == {"partitions": []}
    assert call("cluster", "status").stdout.startswith("No topic is replicated")


def test_partitions_are_shown_with_their_leader_and_replicas_that_are_away_stand_out():
    _, *rows, end = said(
        lambda out, found: tell_replication(out, found, 1_000),
        [
            partition("orders", 0, leader="a", lag=1_234),
            partition("orders", 1, leader="a", away="c"),
            partition("orders", 2, leader="", lag=-1),
            partition("orders", 3, leader="a", factor=5),
            partition("orders", 4, leader="a", learner="c"),
        ],
    )

    assert [" ".join(row) for row in rows] == [
        "orders 0 a 3 leading 100 a, b, c 1,234",
        "orders 1 a 3 leading 100 a, b, c (away) 0",
        "orders 2 nobody 3 candidate 100 a, b, c 0",
        "orders 3 a 3 leading 100 a, b, c (3 of 5) 0",
        "orders 4 a 3 leading 100 a, b, c (learns) (2 of 3) 0",
    ]
    assert " ".join(end) == "1,000 partitions, 4 under-replicated"


def test_where_nothing_happened_that_is_said(call):
    assert call("cluster", "events").stdout.startswith("Nothing has happened")
    assert call("cluster", "events", "--json").stdout == ""


def test_members_are_shown_with_their_state_and_whether_they_can_be_asked():
    here = MemberView("a", "10.0.0.1:7946", "alive", "http://a", "a:7947", "", 1, True, False)
    there = MemberView(
        "b", "10.0.0.2:7946", "suspect", "http://b", "b:7947", "east", 1, False, False
    )
    serf = MemberView("serf", "10.0.0.3:7946", "alive", "", "", "", 0, False, False)

    _, *rows = said(tell_members, [here, there, serf])

    assert rows[0] == ["a", "alive", "http://a", "10.0.0.1:7946", "a:7947", "-", "1"]
    assert " ".join(rows[1][1:]) == "suspect http://b 10.0.0.2:7946 b:7947 (no link) east 1"
    assert rows[2] == ["serf", "alive", "-", "10.0.0.3:7946", "-", "-", "-"]


def test_a_node_that_does_not_say_how_many_streams_it_has_is_shown_all_the_same():
    head, _, *rows = said(
        tell_ring, RingView(0xABC, [RingShare("a", 0.25, 12_345), RingShare("b", 0.75, -1)])
    )

    assert head == ["ring", "0000000abc", "of", "2", "nodes"]
    assert rows == [["a", "25.0%", "12,345"], ["b", "75.0%", "unknown"]]


def test_following_shows_each_event_once_also_when_the_oldest_are_forgotten():
    old = [event(1), event(2), event(3)]

    assert news([], old) == old
    assert news(old, old) == []
    assert news(old, [*old, event(4)]) == [event(4)]
    assert news(old, [event(3), event(4), event(5)]) == [event(4), event(5)]


def test_following_shows_all_events_of_a_node_that_was_started_again():
    assert news([event(1), event(2)], [event(7)]) == [event(7)]
    assert news([event(1), event(2)], []) == []


def test_a_node_that_replicates_nothing_has_nothing_to_move(call, ask):
    assert ask("cluster", "placement") == {"drains": [], "moves": []}
    assert call("cluster", "placement").stdout == "Nothing is drained, replaced or moved.\n"
    refused = call("cluster", "drain", "a")
    assert (refused.exit_code, "set cluster.etcd" in refused.output) == (2, True)


def test_what_people_want_moved_is_shown_with_what_is_left_of_it():
    drains = (DrainView("c", 7, "", True, 3, 12, 1), DrainView("d", 7, "e", False, 0, 5, 0))
    moves = (MoveView("orders", 0, "b", "", True), MoveView("orders", 1, "b", "c", False))

    shown = said(tell_placement, PlacementView(drains, moves))

    assert [" ".join(row) for row in shown] == [
        "node replaced by alive leaders replicas stuck",
        "c - yes 3 12 1",
        "d e no 0 5 0",
        "topic partition what to from",
        "orders 0 leader b -",
        "orders 1 replica b c",
    ]
