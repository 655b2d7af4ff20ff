"""Bringing frames to a task: lost connections, busy nodes, gaps, and who stops in the middle."""

import json
import threading
from typing import Any

import pytest

from tests.spark.fake_http import HANG_UP, SILENCE, answer, faking, frames
from waterclock.model.errors import NodeFailed, OffsetOutOfRange, UnknownTopic, Unreachable
from waterclock.spark.read.fetcher import Fetcher
from waterclock.spark.read.http_node import HttpNode
from waterclock.spark.read.ranges import Range


def fetching(address: str, *, end: int = 30, patience_s: float = 20.0, **options: Any) -> Fetcher:
    settings = {
        "fetch_bytes": 100,
        "with_scheduled": False,
        "retained": 0,
        "fail_on_data_loss": True,
        **options,
    }
    return Fetcher(address, "a b", Range(2, 0, end), patience_s=patience_s, **settings)


def taken(address: str, **options: Any) -> list[bytes]:
    with fetching(address, **options) as replies:
        return [bytes(reply) for reply in replies]


def problem(status: str, **facts: Any) -> bytes:
    return answer(json.dumps(facts).encode(), status=status)


def test_replies_are_asked_for_one_after_the_other():
    with faking(frames(b"one", 10), frames(b"", 20), frames(b"three", 30)) as node:
        assert taken(node.address) == [b"one", b"three"]

    path = "/topics/a%20b/partitions/2/frames"
    rest = "endOffset=30&bytesMax=100&deliverableOnly=true"
    assert node.asked == [f"{path}?offset={offset}&{rest}" for offset in (0, 10, 20)]


def test_a_reply_that_breaks_off_is_asked_for_again():
    broken = frames(b"tw", 20, length=3)
    busy = problem("503 Service Unavailable", error="Stopping", detail="going down")
    with faking(frames(b"one", 10), broken, HANG_UP, busy, frames(b"two", 30)) as node:
        assert taken(node.address) == [b"one", b"two"]

    offsets = [path.partition("offset=")[2].partition("&")[0] for path in node.asked]
    assert offsets == ["0", "10", "10", "10", "10"]


def test_a_node_that_stays_away_is_named():
    with faking() as node:
        pass

    with pytest.raises(Unreachable, match=rf"answers at {node.address} .*refused.*Start it"):
        taken(node.address, patience_s=0.1)


def test_the_problem_of_a_node_is_told():
    unknown = problem("404 Not Found", error="UnknownTopic", detail="there is no topic 'a b'")
    with (
        faking(unknown) as node,
        pytest.raises(UnknownTopic, match=r"'a b' at .*: create it first"),
    ):
        taken(node.address)
    with faking(answer(b"?", status="500 Oh")) as node, pytest.raises(NodeFailed, match="500"):
        taken(node.address)


def test_a_gap_is_an_error_or_stepped_over():
    gone = problem("404 Not Found", error="OffsetOutOfRange", offset=0, start=20, end=40)
    with faking(gone) as node, pytest.raises(OffsetOutOfRange, match="partition 2 is gone"):
        taken(node.address)
    with faking(gone, frames(b"rest", 30)) as node:
        assert taken(node.address, fail_on_data_loss=False) == [b"rest"]

    assert "offset=20&" in node.asked[1]


def test_a_stretch_that_retention_emptied_is_a_gap_though_the_log_spans_it():
    emptied = frames(b"", 30, retained=20)
    with faking(emptied) as node, pytest.raises(OffsetOutOfRange, match=r"is gone.*below 20"):
        taken(node.address)
    with faking(emptied) as node:
        assert taken(node.address, fail_on_data_loss=False) == []

    # It was so when this was planned: the earliest there was has been asked for.
    with faking(emptied) as node:
        assert taken(node.address, retained=20) == []


def test_a_log_that_ends_before_the_range_does_not_spin():
    with (
        faking(frames(b"", 0, end=0)) as node,
        pytest.raises(OffsetOutOfRange, match="beyond the log's end 0"),
    ):
        taken(node.address)


def test_who_stops_in_the_middle_leaves_no_thread():
    before = threading.active_count()
    with faking(frames(b"one", 10), SILENCE) as node:
        with fetching(node.address) as replies:
            assert bytes(next(iter(replies))) == b"one"
        assert threading.active_count() == before + 1  # the fake's own

    many = [frames(b"x", n) for n in range(1, 30)]
    with faking(*many) as node, fetching(node.address) as replies:
        next(iter(replies))
    assert len(node.asked) <= 5
    assert threading.active_count() == before


def test_ends_and_problems_of_partitions_are_told():
    said = {"partition": 0, "startOffset": 2, "retainedOffset": 3, "endOffset": 5}
    broken = {"partition": 1, "startOffset": -1, "endOffset": -1, "problem": "is damaged"}
    one = answer(json.dumps({"partitions": [said]}).encode())
    two = answer(json.dumps({"partitions": [said, broken]}).encode())
    with faking(one, one, two, two) as fake:
        node = HttpNode(fake.address)
        assert node.ends("orders", {0: 5}, wait_ms=7) == {0: (2, 5, 3)}
        assert node.ends("orders") == {0: (2, 5, 3)}
        assert node.ends("orders", needed=frozenset({0})) == {0: (2, 5, 3), 1: (-1, -1, 0)}
        with pytest.raises(NodeFailed, match="partition 1 of 'orders' cannot be read: is damaged"):
            node.ends("orders")
        node.close()

    assert fake.asked[:2] == [
        f"/topics/orders/ends?{q}" for q in ("waitMs=7&beyond=0:5", "waitMs=0")
    ]


def test_of_several_nodes_the_next_is_asked_where_one_fails():
    busy = problem("503 Service Unavailable", error="NotLeader", detail="not I")
    for _ in range(4):  # each begins with one of them, by chance
        with faking(*[HANG_UP, busy] * 5) as bad, faking(*[frames(b"all", 30)] * 5) as good:
            assert taken(f"{bad.address},{good.address}") == [b"all"]
        assert len(good.asked) == 1
        assert len(bad.asked) <= 1


def test_tasks_spread_over_the_nodes():
    nodes = {HttpNode("http://a:1,http://b:2,http://c:3").address for _ in range(100)}

    assert nodes == {"a:1", "b:2", "c:3"}
