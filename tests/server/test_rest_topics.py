"""Topics, groups, the past and the node over HTTP."""

import json
from typing import Any

from tests.server.http_client import RawClient, raw_client, until
from tests.server.served import running_server
from waterclock.model.sections import DeliveryConfig, RetentionConfig
from waterclock.model.units import HOUR_MS

ORDERS = "/topics/orders"


async def lines(client: RawClient, path: str) -> list[Any]:
    answer = await client.get(path)
    assert answer.status == 200, answer
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.body.splitlines()]


async def test_a_topic_is_made_shown_changed_and_deleted(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        made = await client.post("/topics", {"topic": "orders", "partitions": 2})
        assert made.status == 201
        assert made.json()["settings"] == {"partitions": 2, "isCompacted": False}
        assert [p["partition"] for p in made.json()["partitions"]] == [0, 1]

        nameless = await client.post("/topics", {"topic": ""})
        assert (nameless.status, nameless.json()["field"]) == (400, "topic")
        assert (await client.post("/topics", {"topic": "orders"})).status == 409
        there = await client.post("/topics", {"topic": "orders", "ifAbsent": True})
        assert (there.status, there.json()) == (200, made.json())
        grown = await client.post(ORDERS, {"partitions": 3, "retentionMs": 60_000}, "PATCH")
        assert grown.json()["settings"]["retentionMs"] == 60_000
        assert (await client.post(ORDERS, {"partitions": 1}, "PATCH")).status == 409
        assert (await client.get(ORDERS)).json() == grown.json()
        topics = (await client.get("/topics")).json()["topics"]
        assert [topic["topic"] for topic in topics] == ["orders"]

        assert (await client.delete(ORDERS)).status == 204
        assert (await client.get(ORDERS)).status == 404


async def test_a_topic_says_what_holds_whoever_set_it(tmp_path):
    retention = RetentionConfig(age_ms=HOUR_MS, bytes=1 << 30, wait_for_groups=True)
    delivery = DeliveryConfig(max_retries=7)
    async with (
        running_server(tmp_path, retention=retention, delivery=delivery) as it,
        raw_client(it.server.http_port) as client,
    ):
        made = await client.post("/topics", {"topic": "orders", "partitions": 2})
        as_configured = {
            "partitions": 2,
            "retentionMs": HOUR_MS,
            "retentionBytes": 1 << 30,
            "retentionWaitForGroups": True,
            "isCompacted": False,
            "retriesMax": 7,
            "ackTimeoutMs": 30_000,
            "replicationFactor": 1,
            "acks": "quorum",
        }
        assert made.json()["effective"] == as_configured
        own = {"retentionMs": 0, "retentionBytes": 5_000, "retentionWaitForGroups": False}
        own |= {"isCompacted": True, "retriesMax": 2, "ackTimeoutMs": 100}
        await client.post(ORDERS, {**own, "replicationFactor": 3}, "PATCH")
        # A node that is alone has one copy, whatever it would have among others.
        assert (await client.get(ORDERS)).json()["effective"] == {**as_configured, **own}
        assert "effective" not in (await client.get("/topics")).json()["topics"][0]


async def test_groups_are_shown_moved_and_forgotten(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        await client.post(f"{ORDERS}/messages", {"messages": [{"value": "a"}] * 3})
        await client.get(f"{ORDERS}/messages?group=g&limit=1")
        group = f"{ORDERS}/groups/g"
        assert (await client.get(group)).json()["partitions"][0]["unacked"] == 1
        await client.post(f"{ORDERS}/acks", {"group": "g", "leave": True})
        await until(lambda: not it.node.groups.get("orders", "g").members)

        moved = await client.post(f"{group}/seek", {"start": "latest"})
        assert moved.json()["partitions"][0]["committed"] == 3
        positions = {"positions": [{"partition": 0, "offset": 1}]}
        moved = await client.post(f"{group}/seek", positions)
        assert moved.json()["partitions"][0]["committed"] == 1
        since = await client.post(f"{group}/seek", {"since": "2020-01-01T00:00:00Z"})
        assert since.json()["partitions"][0]["committed"] == 0
        everything = (await client.get("/groups")).json()
        assert everything == (await client.get(f"{ORDERS}/groups")).json()
        assert (await client.delete(group)).status == 204
        assert (await client.get(group)).status == 404
        assert (await client.get("/topics/none/groups")).status == 404


async def test_the_past_is_read_by_time_or_by_offset(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        batch = {"messages": [{"value": str(i)} for i in range(5)]}
        await client.post(f"{ORDERS}/messages", batch)

        everything = await lines(client, f"{ORDERS}/replay")
        assert [one.get("value") for one in everything[:-1]] == ["0", "1", "2", "3", "4"]
        assert everything[-1] == {"finished": True, "messages": 5}
        none = await lines(client, f"{ORDERS}/replay?until=2020-01-01T00:00:00Z")
        assert none == [{"finished": True, "messages": 0}]
        some = await lines(client, f"{ORDERS}/partitions/0/messages?offset=1&count=2")
        assert [(one.get("offset"), one.get("value")) for one in some[:-1]] == [
            (1, "1"),
            (2, "2"),
        ]
        for path in ("partitions/1/messages", "partitions/0/messages?offset=77"):
            assert (await client.get(f"{ORDERS}/{path}")).status == 404
        assert (await client.get("/topics/none/replay")).status == 404
        found = (await client.get(f"{ORDERS}/offsets?timeMs=0")).json()
        assert found == {"positions": [{"partition": 0, "offset": 0}]}


async def test_a_named_replay_goes_on_where_its_reader_was(tmp_path):
    async with (
        running_server(tmp_path) as it,
        raw_client(it.server.http_port) as client,
        raw_client(it.server.http_port) as reader,
    ):
        big = "x" * 700_000
        for i in range(20):
            await client.post(f"{ORDERS}/messages", {"value": f"{i}{big}"})
        reader.pause_reading()
        reader.send(f"GET {ORDERS}/replay?name=audit HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        report = {"positions": [{"partition": 0, "offset": 1}]}
        while (await client.post("/replays/audit/done", report)).status != 204:
            pass
        far = {"positions": [{"partition": 0, "offset": 20}]}
        assert (await client.post("/replays/audit/done", far)).status == 400
        reader.writer.transport.abort()
        done = [{"partition": 0, "offset": 1}]
        while (await client.get("/replays")).json()["replays"][0]["done"] != done:
            pass

        again = await lines(client, f"{ORDERS}/replay?name=audit")
        assert [one["offset"] for one in again[:-1]] == list(range(1, 20))
        assert (await client.post("/replays/audit/done", report)).status == 204
        other = await client.get(f"{ORDERS}/replay?name=audit&since=2020-01-01T00:00:00Z")
        assert other.status == 409
        assert (await client.delete("/replays/audit")).status == 204
        assert (await client.delete("/replays/audit")).status == 404


async def test_the_end_of_a_named_replay_is_reported_after_all_of_it_was_sent(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        batch = {"messages": [{"value": str(i)} for i in range(5)]}
        await client.post(f"{ORDERS}/messages", batch)
        *_, last = await lines(client, f"{ORDERS}/replay?name=audit")
        ends = [{"partition": 0, "offset": 5}]
        assert last == {"finished": True, "messages": 5, "ends": ends}

        far = {"positions": [{"partition": 0, "offset": 6}]}
        refused = await client.post("/replays/audit/done", far)
        assert (refused.status, "report 5 at most" in refused.body.decode()) == (400, True)
        for _ in range(2):
            answer = await client.post("/replays/audit/done", {"positions": last["ends"]})
            assert answer.status == 204
        (replay,) = (await client.get("/replays")).json()["replays"]
        assert replay["done"] == replay["ends"] == ends
        (finished,) = await lines(client, f"{ORDERS}/replay?name=audit")
        assert finished["messages"] == 0
        assert (await client.post("/replays/none/done", far)).status == 404


async def test_the_node_tells_who_it_is(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        response = (await client.get("/api/v1/node")).json()

        assert (response["name"], response["limits"]["messageBytesMax"]) == ("test", 10 << 20)
