"""What several nodes have counted, put together for the console of one."""

from typing import Any

from msgspec import structs

from waterclock.model.ids import Millis
from waterclock.node.problems import DISK_FULL, STORE_AWAY, HealthProblem, problem_named
from waterclock.security.principals import ANYONE
from waterclock.security.rights import Rights
from waterclock.server.console.alarms import Alarms
from waterclock.server.console.counts import merged, part_of, snapshot_of
from waterclock.server.console.merged_history import merged_history
from waterclock.server.console.models import (
    Counts,
    GroupRow,
    HistoryResponse,
    LiveParameters,
    NodeNow,
    TopicRow,
)


def topic(name: str, **given: Any) -> TopicRow:
    zero = {"partitions": 3, "led": 0, "in_rate": 0.0, "out_rate": 0.0, "messages": 0}
    more = {"size_bytes": 0, "pending": 0, "groups": 0, "lag": 0, "problems": 0}
    return TopicRow(topic=name, **{**zero, **more, **given})


def group(name: str, *, members: int) -> GroupRow:
    zero = dict.fromkeys(("partitions", "lag", "unacked", "waiting"), 0)
    return GroupRow(topic="t", group=name, members=members, out_rate=0.0, acked_rate=0.0, **zero)


def node(name: str, *topics: TopicRow, **given: Any) -> Counts:
    rates = ("in_rate", "out_rate", "acked_rate", "fired_rate", "dead_lettered_rate")
    zero: dict[str, Any] = dict.fromkeys((*rates, "stream_in_rate", "stream_out_rate"), 0.0)
    zero |= dict.fromkeys(("pending", "lag", "unacked", "topics", "groups", "streams"), 0)
    zero |= {"waiting": 0, "size_bytes": 0, "lateness_p99_ms": None, "is_ready": True}
    zero |= {"disk_bytes": 100, "disk_free_bytes": 50, "problems": [], "members": 2}
    groups, dead = given.pop("groups", []), given.pop("dead_letters", None)
    now = NodeNow(**{**zero, **given})
    return Counts(name=name, node=now, topics=list(topics), groups=groups, dead_letters=dead)


def test_what_nodes_lead_of_a_topic_is_added_up_and_the_furthest_behind_counts():
    a = node("a", topic("t", led=1, messages=10, in_rate=1.0, lag=5, groups=1), in_rate=1.0)
    b = node("b", topic("t", led=2, messages=20, in_rate=2.5, lag=3, groups=2), in_rate=2.5)

    whole = merged(a, [b], ["c"])

    [row] = whole.topics
    assert (row.led, row.messages, row.in_rate, row.lag, row.groups) == (3, 30, 3.5, 5, 3)
    assert (whole.node.in_rate, whole.node.topics) == (3.5, 1)
    said = [(each.name, each.is_heard, each.leads) for each in whole.node.nodes]
    assert said == [("a", True, 1), ("b", True, 2), ("c", False, None)]
    assert (a.topics[0].led, b.topics[0].led) == (1, 2)


def test_of_nodes_the_latest_and_the_fullest_disk_are_shown():
    a = node("a", lateness_p99_ms=None, disk_bytes=100, disk_free_bytes=50)
    b = node("b", lateness_p99_ms=75.0, disk_bytes=1_000, disk_free_bytes=100)

    whole = merged(a, [b], []).node

    assert whole.lateness_p99_ms == 75.0
    assert (whole.disk_bytes, whole.disk_free_bytes) == (1_000, 100)


def problem(name: str) -> HealthProblem:
    return problem_named(name, "no room", Millis(5))


def test_each_node_tells_what_is_wrong_with_it_and_when_that_began():
    a, b = node("a", problems=[problem(DISK_FULL)]), node("b", problems=[problem(STORE_AWAY)])

    whole = merged(a, [b], []).node

    assert [each.name for each in whole.problems] == [DISK_FULL]
    [own, other] = whole.nodes
    assert [(each.name, each.since_ms) for each in own.problems] == [(DISK_FULL, 5)]
    assert [(each.name, each.since_ms) for each in other.problems] == [(STORE_AWAY, 5)]
    assert all(each.advice for each in (*own.problems, *other.problems))


def test_nodes_that_are_away_and_partitions_without_leader_or_replica_are_alarms():
    few = [topic(f"t{number}", led=3 - number % 2) for number in range(9)]
    a = node("a", topic("x", led=1), topic("__own", led=1), *few, under_replicated=2)
    alarms = Alarms()

    alarms_now = alarms.of(
        merged(a, [node("b", under_replicated=1)], ["c"]), Millis(10), failed=["d", "c"]
    )

    assert [(each.name, each.detail) for each in alarms_now] == [
        ("nodeAway", "c does not answer"),
        ("nodeAway", "d does not answer"),
        (
            "leaderless",
            "6 partitions without a leader that answers: x (2), t1 (1), t3 (1) and 2 more topics",
        ),
        ("underReplicated", "3 partitions with a replica that cannot be reached"),
    ]
    assert all(each.advice and not each.is_blocking for each in alarms_now)
    # What goes on is told since it began, and what came again since it did.
    later = alarms.of(merged(node("a", under_replicated=1), [], []), Millis(20))
    assert [(each.detail[:11], each.since_ms) for each in later] == [("1 partition", 10)]
    assert alarms.of(merged(node("a"), [], []), Millis(30)) == []
    again = alarms.of(merged(node("a", under_replicated=1), [], []), Millis(40))
    assert [each.since_ms for each in again] == [40]


def test_a_group_that_moves_is_shown_once_as_where_its_members_are():
    a, b = node("a", groups=[group("g", members=0)]), node("b", groups=[group("g", members=2)])

    assert [each.members for each in merged(a, [b], []).groups] == [2]
    assert [each.members for each in merged(b, [a], []).groups] == [2]


def test_other_nodes_are_sent_what_this_one_has_to_say_and_nothing_of_its_own_topics():
    counts = node("a", topic("led", led=1), topic("other"), topic("__groups", led=1))

    assert [each.topic for each in part_of(counts).topics] == ["led"]


def test_dead_letters_are_counted_over_all_nodes_and_sorted():
    whole = merged(node("a", dead_letters={"x": 1}), [node("b", dead_letters={"x": 2, "y": 9})], [])

    asked = LiveParameters(view="deadLetters", sort="count", descending=True)
    shown = snapshot_of(0, whole, asked, ANYONE.rights)

    assert [(each.topic, each.count) for each in shown.dead_letters or ()] == [("y", 9), ("x", 3)]
    assert snapshot_of(0, whole, asked, Rights()).dead_letters == []


def test_groups_stand_by_name_as_the_head_of_their_list_says_and_then_by_topic():
    places = (("b", "t1"), ("a", "t2"), ("a", "t1"))
    groups = [structs.replace(group(name, members=1), topic=of) for name, of in places]

    asked = LiveParameters(view="groups")
    shown = snapshot_of(0, merged(node("a", groups=groups), [], []), asked, ANYONE.rights)

    found = [(each.group, each.topic) for each in shown.groups or ()]
    assert found == [("a", "t1"), ("a", "t2"), ("b", "t1")]


def test_the_past_of_nodes_is_added_slot_by_slot_and_one_that_is_behind_is_shifted():
    series: dict[str, list[float | None]] = {"in": [1.0, 2.0, None], "latenessP99Ms": [5.0, 5.0, 1]}
    a = HistoryResponse(step_ms=10, end_ms=30, series=series)
    b = HistoryResponse(step_ms=10, end_ms=40, series={"in": [1, 1, 1], "latenessP99Ms": [9, 1, 2]})

    whole = merged_history([a, b], ["c"])

    assert whole.end_ms == 40
    assert whole.series == {"in": [3.0, 1, 1], "latenessP99Ms": [9, 1, 2]}
    assert whole.unreachable == ["c"]
