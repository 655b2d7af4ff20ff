"""Scheduled messages of all topics over HTTP and gRPC, in one list and counted by topic."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from grpc import StatusCode

from tests.kit.clock import ManualClock
from tests.server.grpc_secure import secure_server
from tests.server.http_client import RawClient, raw_client
from tests.server.secure_serving import secure_node
from tests.server.served import Served, failure, running_server
from waterclock.security.quotas import UNBOUNDED
from waterclock.v1 import broker_pb2 as broker
from waterclock.v1 import scheduler_pb2 as pb

HOUR_MS = 3_600_000


async def schedule(client: RawClient, topic: str, *ids: str, **fields: object) -> None:
    for message_id in ids:
        sent = {"value": "v", "messageId": message_id, **fields}
        assert (await client.post(f"/topics/{topic}/messages", sent)).status == 201


async def ids_by_page(client: RawClient, query: str) -> list[list[str]]:
    """Return the ids of each page until there is no next one."""
    pages, page = [], ""
    while True:
        answer = await client.get(f"/scheduled?{query}&page={quote(page)}")
        assert answer.status == 200, answer
        body = answer.json()
        pages.append([one["messageId"] for one in body["scheduled"]])
        page = body["nextPage"]
        if not page:
            return pages


async def over_both(
    it: Served, client: RawClient, query: str = "", **asked: Any
) -> list[list[str]]:
    """Return the ids of each page over HTTP, which over gRPC are the same."""
    pages, request = [], pb.ListScheduledRequest(**asked)
    while True:
        answer = await it.scheduler.ListScheduled(request)
        pages.append([one.message.message_id.decode() for one in answer.scheduled])
        body = (await client.get(f"/scheduled?{query}&page={quote(request.page)}")).json()
        assert body["nextPage"] == answer.next_page
        request.page = answer.next_page
        if not request.page:
            break
    assert await ids_by_page(client, query) == pages
    return pages


async def test_messages_of_all_topics_are_one_list_by_due_time(tmp_path):
    async with (
        running_server(tmp_path, clock=ManualClock()) as it,
        raw_client(it.server.http_port) as client,
    ):
        await client.post("/topics", {"topic": "b", "partitions": 3})
        await schedule(client, "c", "c1", "c2", delay="1h", key="ada")
        await schedule(client, "b", "b1", delay="2h", key="ada")
        await schedule(client, "b", "b2", delay="1h", key="bob")
        await schedule(client, "a", "a1", delay="3h", key="adam")
        await schedule(client, "a", "a2", "a3", delay="1h")
        await client.post("/topics/a/messages", {"value": "now"})

        # Of the same time, by topic: each of them has some that are due in an hour.
        assert await over_both(it, client, "limit=3", limit=3) == [
            ["a2", "a3", "b2"],
            ["c1", "c2", "b1"],
            ["a1"],
        ]
        one_by_one = [["a2"], ["a3"], ["b2"], ["c1"], ["c2"], ["b1"], ["a1"]]
        # That nothing follows is known once it was looked for.
        assert await over_both(it, client, "limit=1", limit=1) == [*one_by_one, []]
        of_ada = pb.Filter(key=b"ada")
        assert await over_both(it, client, "key=ada", filter=of_ada) == [["c1", "c2", "b1"]]
        two, begins = "keyPrefix=ada&limit=2", pb.Filter(key_prefix=b"ada")
        found = await over_both(it, client, two, limit=2, filter=begins)
        assert found == [["c1", "c2"], ["b1", "a1"]]
        due_ms = it.node.clock.now_ms() + 2 * HOUR_MS
        start = pb.Filter(start_ms=due_ms)
        assert await over_both(it, client, f"fromMs={due_ms}", filter=start) == [["b1", "a1"]]
        span = pb.Filter(start_ms=due_ms, end_ms=due_ms + 1)
        found = await over_both(it, client, f"fromMs={due_ms}&toMs={due_ms + 1}", filter=span)
        assert found == [["b1"]]
        assert await ids_by_page(client, f"fromMs={due_ms}&toMs={due_ms}") == [[]]
        first = (await client.get("/scheduled?limit=1&values=true")).json()["scheduled"][0]
        assert (first["topic"], first["partition"], first["value"]) == ("a", 0, "v")
        asked = pb.ListScheduledRequest(limit=1, with_values=True)
        (same,) = (await it.scheduler.ListScheduled(asked)).scheduled
        assert (same.topic, same.partition, same.message.value) == ("a", 0, b"v")
        assert (same.offset, same.timer_id) == (first["offset"], first["timerId"])


async def test_a_damaged_message_hides_no_other_from_the_list_of_all_topics(tmp_path):
    async with (
        running_server(tmp_path, clock=ManualClock()) as it,
        raw_client(it.server.http_port) as client,
    ):
        await schedule(client, "a", "a1", delay="1h", key="ada")
        await schedule(client, "a", "a2", delay="2h", key="bob")
        await schedule(client, "b", "b1", delay="3h", key="ada")
        damage(tmp_path, b"ada", of="a")

        assert await over_both(it, client) == [["a2", "b1"]]
        of_ada = pb.Filter(key=b"ada")
        assert await over_both(it, client, "key=ada", filter=of_ada) == [["b1"]]
        assert (await client.get("/topics/a/scheduled")).json()["error"] == "FrameDamaged"
        (partition,) = (await client.get("/topics/a")).json()["partitions"]
        assert "checksum" in partition["problem"]


def damage(folder: Path, key: bytes, *, of: str) -> None:
    """Change one letter of a message of a key in the segment of a topic."""
    (segment,) = folder.rglob(f"{of}-*/0/log/*.seg")
    at = segment.read_bytes().index(key)
    with segment.open("r+b") as file:
        file.seek(at)
        file.write(key[:1].upper())


def horizons(**counts: int) -> list[dict[str, int]]:
    """Return what is counted by how soon it is due, by hours."""
    known = {0: 0, 60_000: 0, HOUR_MS: 0, 24 * HOUR_MS: 0, 720 * HOUR_MS: 0, -1: 0}
    known |= {int(hours[1:]) * HOUR_MS: count for hours, count in counts.items()}
    return [{"withinMs": within, "count": count} for within, count in known.items()]


async def test_messages_of_all_topics_are_counted_by_topic(tmp_path):
    async with (
        running_server(tmp_path, clock=ManualClock()) as it,
        raw_client(it.server.http_port) as client,
    ):
        nothing = (await client.get("/scheduled/count")).json()
        now_ms = it.node.clock.now_ms()
        await client.post("/topics", {"topic": "b", "partitions": 3})
        for number in range(6):
            await schedule(client, "b", str(number), delay=f"{6 - number}h", key=str(number))
        await schedule(client, "a", "a", delay="2h")
        await client.post("/topics/none/messages", {"value": "now"})

        none = {"total": 0, "nextDueMs": 0, "topics": []}
        assert nothing == none | {"horizons": horizons(), "counts": []}
        assert (await client.get("/scheduled/count")).json() == {
            "total": 7,
            "nextDueMs": now_ms + HOUR_MS,
            "topics": [
                {"topic": "a", "count": 1, "nextDueMs": now_ms + 2 * HOUR_MS},
                {"topic": "b", "count": 6, "nextDueMs": now_ms + HOUR_MS},
            ],
            "horizons": horizons(h1=1, h24=6),
            "counts": [],
        }
        # By the step they are due in: those before and behind the steps are in none.
        steps = f"fromMs={now_ms + 2 * HOUR_MS}&stepMs={HOUR_MS}&steps=4"
        by_step = (await client.get(f"/scheduled/count?{steps}")).json()
        assert (by_step["total"], by_step["counts"]) == (7, [2, 1, 1, 1])
        asked = pb.CountScheduledRequest(start_ms=now_ms + 2 * HOUR_MS, step_ms=HOUR_MS, steps=4)
        assert in_json(await it.scheduler.CountScheduled(asked)) == by_step
        refused = await client.get("/scheduled/count?stepMs=1&steps=1")
        assert (refused.status, refused.json()["field"]) == (400, "stepMs")
        beyond = await client.get("/scheduled/count?steps=1001")
        assert (beyond.status, beyond.json()["field"]) == (400, "steps")


def in_json(counts: pb.CountScheduledResponse) -> dict[str, Any]:
    """Return counts over gRPC as they are over HTTP."""
    topics = [
        {"topic": each.topic, "count": each.count, "nextDueMs": each.next_due_ms}
        for each in counts.topics
    ]
    return {
        "total": counts.total,
        "nextDueMs": min((each.next_due_ms for each in counts.topics), default=0),
        "topics": topics,
        "horizons": [{"withinMs": e.within_ms, "count": e.count} for e in counts.horizons],
        "counts": list(counts.counts),
    }


@pytest.mark.parametrize(
    ("query", "field", "detail"),
    [
        ("limit=0", "limit", "expected `int` >= 1"),
        ("limit=1001", "limit", "expected `int` <= 1000"),
        ("page=x", "page", "is not of the form it has in an answer"),
        ("fromMs=-1", "fromMs", "expected `int` >= 0"),
        ("topic=a", "topic", "topic"),
    ],
)
async def test_parameters_that_are_wrong_are_named_with_their_limit(tmp_path, query, field, detail):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        refused = await client.get(f"/scheduled?{query}")

    assert refused.status == 400
    assert (refused.json()["field"], refused.json()["error"]) == (field, "BadInput")
    assert detail in refused.json()["detail"]


async def test_a_page_of_all_topics_is_none_of_one(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        await schedule(client, "a", "1", "2", delay="1h")
        page = (await client.get("/scheduled?limit=1")).json()["nextPage"]
        refused = await client.get(f"/topics/a/scheduled?page={quote(page)}")

    assert (refused.status, refused.json()["field"]) == (400, "page")


async def test_partitions_are_of_one_topic(tmp_path):
    async with running_server(tmp_path) as it:
        asked = pb.ListScheduledRequest(filter=pb.Filter(partitions=[0]))
        code, details, _ = await failure(it.scheduler.ListScheduled(asked))

    assert code is StatusCode.INVALID_ARGUMENT
    assert details == "filter.partitions: are of a topic: name it"


def test_what_one_may_not_read_is_neither_listed_nor_counted(tmp_path):
    with secure_node(tmp_path) as node:
        for topic in ("mine", "others"):
            body = {"value": topic, "delay": "1h"}
            path = f"/topics/{topic}/messages"
            assert node.ask("POST", path, node.admin, body).status == 201
        reader = node.add("reader", UNBOUNDED, read="mine")
        writer = node.add("writer", UNBOUNDED, publish="mine", schedule="mine")

        def seen(bearer: str | None) -> tuple[list[str], int]:
            listed = node.ask("GET", "/scheduled", bearer).json()["scheduled"]
            counted = node.ask("GET", "/scheduled/count", bearer).json()["total"]
            return [one["topic"] for one in listed], counted

        assert seen(node.admin) == (["mine", "others"], 2)
        assert seen(reader) == (["mine"], 1)
        # To see that there is a topic is not to read what is in it.
        assert seen(writer) == ([], 0)
        assert node.ask("GET", "/scheduled", None).status == 401


async def test_what_one_may_not_read_is_neither_listed_nor_counted_over_grpc(tmp_path):
    service = "/waterclock.v1.Scheduler"
    async with secure_server(tmp_path) as it:
        due_ms = it.server.node.clock.now_ms() + HOUR_MS
        for topic in ("mine", "others"):
            message = broker.Message(value=b"x", due_ms=due_ms)
            sent = broker.PublishRequest(topic=topic, message=message)
            await it.unary("/waterclock.v1.Broker/Publish", sent, it.admin)
        reader = await it.add("reader", read="mine")
        writer = await it.add("writer", publish="mine", schedule="mine")

        async def seen(who: Any) -> tuple[list[str], list[str], int]:
            data = await it.unary(f"{service}/ListScheduled", pb.ListScheduledRequest(), who)
            listed = pb.ListScheduledResponse.FromString(data)
            data = await it.unary(f"{service}/CountScheduled", pb.CountScheduledRequest(), who)
            counted = pb.CountScheduledResponse.FromString(data)
            topics = [each.topic for each in counted.topics]
            return [each.topic for each in listed.scheduled], topics, counted.total

        assert await seen(it.admin) == (["mine", "others"], ["mine", "others"], 2)
        assert await seen(reader) == (["mine"], ["mine"], 1)
        # To see that there is a topic is not to read what is in it.
        assert await seen(writer) == ([], [], 0)
        of_others = pb.CountScheduledRequest(topic="others")
        code, _, _ = await failure(it.unary(f"{service}/CountScheduled", of_others, reader))
        assert code is StatusCode.PERMISSION_DENIED
