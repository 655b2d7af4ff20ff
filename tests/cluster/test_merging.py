"""What several nodes answer is put together as one that has everything would have answered."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cluster.through import LedBy
from waterclock.model.errors import Fenced, NotLeader, NotSupported
from waterclock.node.schedule.pending_pages import PagePosition, page_position, page_text
from waterclock.node.schedule.scheduler import ALREADY_FIRED, DONE, UNKNOWN
from waterclock.server.cluster.calls.http_merging import HTTP_MERGES, HttpAnswer
from waterclock.server.cluster.calls.merging import (
    MERGES,
    Answer,
    Page,
    by_partition,
    merged_outcomes,
    merged_page,
)
from waterclock.server.cluster.calls.place import LEADERS, LEADERS_ONCE
from waterclock.server.cluster.calls.router import Router
from waterclock.v1 import admin_pb2 as admin
from waterclock.v1 import broker_pb2 as broker
from waterclock.v1 import scheduler_pb2 as scheduler

numbers = st.integers(0, 3)
topics = st.sampled_from(["", "orders", "orders.eu"])
places = st.builds(PagePosition, st.integers(0, 5), topics, numbers, st.integers(0, 20))


def page_of(mine: list[PagePosition], after: PagePosition, limit: int) -> Page:
    """Return what one node says."""
    left = [(place, str(place)) for place in mine if place > after]
    more = len(left) > limit
    return Page(left[:limit], page_text(left[limit - 1][0]) if more else "")


@given(st.sets(places, max_size=40), st.integers(1, 7), st.integers(1, 3))
def test_pages_of_all_nodes_are_the_list_of_one(listed, limit, nodes):
    wanted = sorted(listed)
    shares = [[p for p in wanted if p.partition % nodes == node] for node in range(nodes)]
    found: list[PagePosition] = []
    after, page = PagePosition(-1, "", -1, -1), ""
    while True:
        merged = merged_page([page_of(mine, after, limit) for mine in shares], limit)
        assert len(merged.listed) <= limit
        found += [place for place, _ in merged.listed]
        if not merged.next_page:
            break
        assert merged.next_page != page, "it goes on"
        page = merged.next_page
        after = page_position(page)
    assert found == wanted


def test_a_name_is_done_if_it_was_anywhere_and_else_what_became_of_it():
    said = [([DONE, UNKNOWN, UNKNOWN], [2, 0, 0]), ([UNKNOWN, ALREADY_FIRED, UNKNOWN], [0, 0, 0])]
    assert merged_outcomes(said) == ([DONE, ALREADY_FIRED, UNKNOWN], [2, 0, 0])


def counted(node: str, total: int, *counts: int) -> Answer:
    horizons = [scheduler.CountScheduledResponse.Horizon(within_ms=0, count=total)]
    response = scheduler.CountScheduledResponse(total=total, horizons=horizons, counts=counts)
    return Answer(node, (), response)


def http_counted(node: str, total: int, **counts: list[int]) -> HttpAnswer:
    return HttpAnswer(node, (), {"total": total, "horizons": [], **counts})


def test_counts_of_all_topics_are_of_all_nodes():
    def counted_by_topic(*topics: tuple[str, int, int]) -> HttpAnswer:
        found = [{"topic": t, "count": n, "nextDueMs": due} for t, n, due in topics]
        total = sum(n for _, n, _ in topics)
        by_due = {"horizons": [{"withinMs": 0, "count": total}], "counts": [total, 0]}
        return HttpAnswer("a", (), {"total": total, "nextDueMs": 0, "topics": found, **by_due})

    asked: Any = None
    merged = HTTP_MERGES["countAllScheduled"](
        asked,
        [
            counted_by_topic(("b", 2, 70)),
            counted_by_topic(),
            counted_by_topic(("b", 3, 60), ("a", 1, 80)),
            counted_by_topic(("b", 1, 65)),
        ],
        "a",
    )
    assert merged == {
        "total": 7,
        "nextDueMs": 60,
        "topics": [
            {"topic": "a", "count": 1, "nextDueMs": 80},
            {"topic": "b", "count": 6, "nextDueMs": 60},
        ],
        "horizons": [{"withinMs": 0, "count": 7}],
        "counts": [7, 0],
    }
    nothing = HTTP_MERGES["countAllScheduled"](asked, [counted_by_topic(), counted_by_topic()], "a")
    none = {"horizons": [{"withinMs": 0, "count": 0}], "counts": [0, 0]}
    assert nothing == {"total": 0, "nextDueMs": 0, "topics": [], **none}


def test_counts_of_all_topics_are_of_all_nodes_over_grpc_too():
    def counted_by_topic(*topics: tuple[str, int, int]) -> Answer:
        answer = counted("a", sum(count for _, count, _ in topics))
        for topic, count, next_due_ms in topics:
            answer.response.topics.add(topic=topic, count=count, next_due_ms=next_due_ms)
        return answer

    answers = [
        counted_by_topic(("b", 2, 70)),
        counted_by_topic(),
        counted_by_topic(("a", 1, 80), ("b", 3, 60)),
    ]
    merged = MERGES["Scheduler/CountScheduled"](None, answers, "a")

    assert merged.total == 6
    found = [(each.topic, each.count, each.next_due_ms) for each in merged.topics]
    assert found == [("a", 1, 80), ("b", 5, 60)]


def test_a_list_of_all_topics_is_in_order_of_topics_and_one_of_a_topic_has_none_in_its_page():
    def listed(*topics: str) -> Answer:
        scheduled = [
            scheduler.ScheduledMessage(topic=topic, message=broker.Message(due_ms=5))
            for topic in topics
        ]
        return Answer("a", (), scheduler.ListScheduledResponse(scheduled=scheduled))

    merge = MERGES["Scheduler/ListScheduled"]
    asked = scheduler.ListScheduledRequest(limit=2)
    page = merge(asked, [listed("b"), listed("a", "c")], "a")

    assert [each.topic for each in page.scheduled] == ["a", "b"]
    assert page_position(page.next_page) == PagePosition(5, "b", 0, 0)
    asked = scheduler.ListScheduledRequest(topic="a", limit=1)
    page = merge(asked, [listed("a"), listed("a")], "a")
    assert page_position(page.next_page) == PagePosition(5, "", 0, 0)


def test_counts_by_steps_are_of_all_nodes_or_refused():
    grpc, http = MERGES["Scheduler/CountScheduled"], HTTP_MERGES["countScheduled"]
    asked: Any = None

    found = grpc(asked, [counted("a", 3, 1, 2), counted("b", 4, 0, 4)], "a")
    assert (found.total, found.horizons[0].count, list(found.counts)) == (7, 7, [1, 6])
    both = [http_counted("a", 3, counts=[1, 2]), http_counted("b", 4, counts=[0, 4])]
    assert http(asked, both, "a") == {"total": 7, "horizons": [], "counts": [1, 6]}

    # A node of an older release knows of no steps, and says nothing of them.
    assert grpc(asked, [counted("a", 3), counted("b", 4)], "a").total == 7
    old = [http_counted("a", 3, counts=[]), http_counted("b", 4)]
    assert http(asked, old, "a") == {"total": 7, "horizons": [], "counts": []}
    mixed = [counted("a", 3, 1, 2), counted("b", 4)]
    for answers in (mixed, mixed[::-1]):
        with pytest.raises(NotSupported, match="older release"):
            grpc(asked, answers, "a")
    with pytest.raises(NotSupported, match="older release"):
        http(asked, [http_counted("b", 4), both[0]], "a")


def test_of_a_partition_its_leader_is_believed():
    answers = [((1,), {0: "a0", 1: "a1"}), ((0, 2), {0: "b0", 1: "b1", 2: "b2"})]
    assert by_partition(answers) == ["b0", "a1", "b2"]
    assert by_partition([((), {1: "all", 0: "of it"})]) == ["of it", "all"]


def test_a_node_without_a_copy_hides_no_topic_and_the_nodes_own_are_those_of_this_one():
    def listed(node: str, *partitions: admin.Topic.Partition) -> Answer:
        topics = [
            admin.Topic(topic="orders", partitions=partitions),
            admin.Topic(topic="__audit", partitions=partitions),
        ]
        return Answer(node, (), admin.ListTopicsResponse(topics=topics))

    here = admin.Topic.Partition(partition=0, problem="is not open")
    there = admin.Topic.Partition(partition=0)
    merged = MERGES["Admin/ListTopics"](None, [listed("a", here), listed("b", there)], "a")

    assert [each.topic for each in merged.topics] == ["__audit", "orders"]
    assert merged.topics[1].partitions[0].problem == ""
    assert merged.topics[0].partitions[0].problem == "is not open"


class NoTopics:
    """Knows none: they are asked of whoever makes them."""

    def find(self, name: str) -> None:
        return None


def test_who_led_no_more_while_it_worked_says_so():
    places = LedBy("a", leader="a")
    router = Router(NoTopics(), places)  # type: ignore[arg-type]
    router.check_still(LEADERS, {"topic": "orders"}.__getitem__, (0, 1))
    places.leader = "b"
    with pytest.raises(NotLeader):
        router.check_still(LEADERS, {"topic": "orders"}.__getitem__, (0, 1))
    with pytest.raises(Fenced):
        router.check_still(LEADERS_ONCE, {"topic": "orders"}.__getitem__, (0, 1))
