"""Publishing and consuming with nothing but HTTP: leases, waits, streams, and who goes away."""

import base64
from typing import Any

import pytest

from tests.kit.clock import ManualClock
from tests.server.http_client import Answered, RawClient, raw_client, until
from tests.server.served import Served, running_server
from waterclock.model.sections import DeliveryConfig, TopicsConfig
from waterclock.model.units import HOUR_MS, KIB, MINUTE_MS
from waterclock.node.dead_letters import writer
from waterclock.server.rest.consumer import HttpConsumer
from waterclock.server.rest.consumers import HttpConsumers

PATH = "/topics/orders/messages"


async def poll(client: RawClient, group: str = "g", **options: object) -> Answered:
    query = "&".join(f"{name}={value}" for name, value in {"group": group, **options}.items())
    return await client.get(f"{PATH}?{query}")


async def taken(client: RawClient, group: str = "g", **options: object) -> list[Any]:
    """Poll, and return the messages."""
    answer = await poll(client, group, **options)
    assert answer.status == 200, answer
    messages: list[Any] = answer.json()["messages"]
    return messages


def values(messages: list[Any]) -> list[str]:
    return [message["value"] for message in messages]


def consumers_of(it: Served) -> HttpConsumers:
    """Return the table of members that speak HTTP."""
    (members,) = [c for c in it.home.calls.streaming_calls if isinstance(c, HttpConsumers)]
    return members


def polled(it: Served) -> list[HttpConsumer]:
    """Return the members that speak HTTP."""
    return list(consumers_of(it)._consumers.values())


async def test_a_message_goes_in_and_comes_out_as_it_was(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        sent = {"value": "hällo\x00", "key": "ada", "headers": {"a": "ü"}, "messageId": "m-1"}
        stored = await client.post(PATH, sent)
        assert (stored.status, stored.json()) == (
            201,
            {
                "partition": 0, "offset": 0, "messageId": "m-1", "isNew": True,
                "madePartitions": 1,
            },
        )  # fmt: skip

        (message,) = await taken(client)
        assert message.pop("deadlineMs") > message.pop("appendedMs") > 0
        assert message == {
            **sent,
            "lease": "0-1-0-1",
            "partition": 0,
            "offset": 0,
            "attempt": 1,
        }


async def test_bytes_that_are_no_text_travel_in_base64(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        raw = base64.b64encode(b"\xff\x00").decode()
        await client.post(PATH, {"valueBase64": raw, "keyBase64": raw})
        await client.post(PATH, {"json": {"a": [1, None]}})
        await client.post(PATH, {})
        await it.publish(b"by gRPC", topic="orders")

        messages = await taken(client)
        assert (messages[0]["valueBase64"], messages[0]["keyBase64"]) == (raw, raw)
        assert messages[1]["value"] == '{"a": [1, null]}'
        assert "value" not in messages[2]
        assert (messages[3]["value"], messages[3]["messageId"]) == ("by gRPC", "id-by gRPC")


async def test_an_id_published_again_tells_where_it_is(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        await client.post(PATH, {"value": "a", "messageId": "m"})
        again = await client.post(PATH, {"value": "b", "messageId": "m"})
        twice = await client.post(PATH, {"value": "c", "messageId": "m", "allowDuplicate": True})

        assert (again.status, again.json()["isNew"], again.json()["offset"]) == (200, False, 0)
        assert (twice.status, twice.json()["offset"]) == (201, 1)


async def test_many_messages_are_published_at_once(tmp_path):
    topics = TopicsConfig(partitions=4)
    async with (
        running_server(tmp_path, topics=topics) as it,
        raw_client(it.server.http_port) as client,
    ):
        batch = {"messages": [{"value": f"v{i}", "key": f"k{i}"} for i in range(50)]}
        response = (await client.post(PATH, batch)).json()["messages"]
        messages = await taken(client, limit=100)
        while len(messages) < 50:
            messages += await taken(client, limit=100)

        where = {(m["partition"], m["offset"]): m["value"] for m in messages}
        assert [where[t["partition"], t["offset"]] for t in response] == [
            f"v{i}" for i in range(50)
        ]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"value": "a", "valueBase64": "YQ=="}, "valueBase64"),
        ({"value": "a", "json": 1}, "json"),
        ({"delay": "5s", "dueMs": 1}, "delay"),
        ({"delay": "5 parsecs"}, "delay"),
        ({"at": "soon"}, "at"),
        ({"at": "1790000000000"}, "at"),
        ({"dueMs": -1}, "dueMs"),
        ({"valueBase64": "a"}, "valueBase64"),
        ({"messageId": ""}, "messageId"),
        ({"nonsense": 1}, "nonsense"),
        ({"messages": []}, "messages"),
        ({"messages": [{"value": 1}]}, "messages[0].value"),
        ({"messages": [{}], "value": "a"}, "value"),
        ({"value": "a", "acks": "some"}, "acks"),
        ({"messages": [{}], "acks": "some"}, "acks"),
    ],
)
async def test_a_message_that_is_wrong_is_400_by_field(tmp_path, body, field):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        answer = await client.post(PATH, body)

        assert answer.status == 400
        assert answer.headers["content-type"] == "application/problem+json"
        assert (answer.json()["error"], answer.json()["field"]) == ("BadInput", field)


MORNING_MS = 1_794_806_820_000  # 2026-11-16T05:27:00Z, a Monday


@pytest.mark.parametrize(
    "said", [{"at": "2199-01-01"}, {"delay": "36600d"}, {"dueMs": 7_226_582_400_000}]
)
async def test_a_time_too_far_ahead_is_told_with_its_field_and_the_latest(tmp_path, said):
    clock = ManualClock(MORNING_MS)
    async with (
        running_server(tmp_path, clock=clock) as it,
        raw_client(it.server.http_port) as client,
    ):
        (field,) = said
        one = await client.post(PATH, {"value": "x", **said})
        many = await client.post(PATH, {"messages": [{"value": "x", **said}]})
        named = {"messages": [{"messageId": "a"}], **said}
        moved = await client.post("/topics/orders/reschedule", named)
        for answer, name in ((one, field), (many, f"messages[0].{field}"), (moved, field)):
            response = answer.json()
            found = answer.status, response["error"], response["field"]
            assert found == (400, "LimitExceeded", name)
            latest = "2126-11-17T05:27:00Z, which is limits.due_horizon_ms_max from now"
            assert response["detail"].startswith(f"{name} exceeds its limit of ")
            assert response["detail"].endswith(latest)


async def test_times_are_those_of_today(tmp_path):
    clock = ManualClock(MORNING_MS)
    async with (
        running_server(tmp_path, clock=clock) as it,
        raw_client(it.server.http_port) as client,
    ):
        evening_ms = MORNING_MS + 12 * HOUR_MS + 33 * MINUTE_MS
        for time in ("today 18:00", "18:00", "2026-11-16 18:00"):
            stored = await client.post(PATH, {"value": time, "at": time})
            assert stored.status == 201, stored
        sent = {"value": "x", "at": "06:00", "expiresAt": "today 18:00"}
        assert (await client.post(PATH, sent)).status == 201
        listed = (await client.get("/topics/orders/scheduled")).json()["scheduled"]
        assert [one["dueMs"] for one in listed][1:] == [evening_ms] * 3
        since = await client.get(f"{PATH}?group=g&wait=1ms&since=today%2005:00")
        assert since.status == 200, since


@pytest.mark.parametrize(
    ("said", "field", "text"),
    [
        ({"at": "today 5:00"}, "at", "at: 'today 5:00': it has passed in UTC"),
        ({"at": "soon"}, "at", "at: 'soon' is not a time that is read here. Write +5m, "),
        ({"expiresAt": "soon"}, "expiresAt", "expiresAt: 'soon' is not a time that is read"),
        ({"expiresIn": "1 parsec"}, "expiresIn", "expiresIn: '1 parsec' is not a time such as 90s"),
        ({"delay": ""}, "delay", "delay: '' is not a time such as 90s"),
        ({"delay": "1y"}, "delay", "delay: '1y': a month or a year has no fixed length; write"),
        ({"delay": "3h Europe/Berlin"}, "delay", "delay: '3h Europe/Berlin' is not a time"),
        ({"delay": "3h " * 999}, "delay", "delay: exceeds its limit of "),
    ],
)
async def test_a_time_that_is_not_read_is_told_with_its_field(tmp_path, said, field, text):
    clock = ManualClock(MORNING_MS)
    async with (
        running_server(tmp_path, clock=clock) as it,
        raw_client(it.server.http_port) as client,
    ):
        one = await client.post(PATH, {"value": "x", **said})
        assert (one.status, one.json()["field"]) == (400, field)
        assert one.json()["detail"].startswith(text)
        many = await client.post(PATH, {"messages": [{"value": "x"}, {"value": "y", **said}]})
        assert (many.status, many.json()["field"]) == (400, f"messages[1].{field}")
        assert many.json()["detail"].startswith(f"messages[1].{text}")


@pytest.mark.parametrize(
    "said",
    [
        {"headers": {f"h{number}": "" for number in range(65)}},
        {"at": "2199-01-01"},
        {"key": "k" * (64 * KIB + 1)},
        {"partition": 7},
        {"acks": "some"},
    ],
)
async def test_a_publish_that_is_refused_makes_no_topic(tmp_path, said):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        message = {"value": "x", **said}
        where = {"partition": message.pop("partition")} if "partition" in said else {}
        for body in ({**message, **where}, {"messages": [message], **where}):
            assert (await client.post(PATH, body)).status in (400, 404, 413)
            assert (await client.get("/topics/orders")).status == 404


async def test_who_makes_a_topic_is_told_and_nobody_else(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        first = await client.post("/topics/odrers/messages", {"value": "a"})
        second = await client.post("/topics/odrers/messages", {"value": "a"})
        many = await client.post("/topics/bills/messages", {"messages": [{"value": "a"}]})
        polled = await client.get("/topics/nope/messages?group=g&wait=1ms")
        again = await client.get("/topics/nope/messages?group=g&wait=1ms")
        published = await client.post("/topics/nope/messages", {"value": "a"})
        every = {"topic": "tides", "every": "1h", "value": "x"}
        put = await client.post("/recurrences/tidy", every, "PUT")
        put_again = await client.post("/recurrences/tidy", every, "PUT")
        got = await client.get("/recurrences/tidy")
        after = await client.post("/topics/tides/messages", {"value": "a"})

        assert first.json()["madePartitions"] == 1
        assert "madePartitions" not in second.json()
        assert many.json()["madePartitions"] == 1
        assert polled.json() == {"messages": [], "madePartitions": 1}
        assert put.json()["madePartitions"] == 1
        for other in (again, published, put_again, got, after):
            assert other.status < 300, other
            assert "madePartitions" not in other.json()


async def test_what_is_too_large_or_nowhere_is_told_with_limit_and_name(tmp_path):
    topics = TopicsConfig(auto_create=False)
    async with (
        running_server(tmp_path, topics=topics) as it,
        raw_client(it.server.http_port) as client,
    ):
        lost = await client.post(PATH, {"value": "a"})
        assert (lost.status, lost.json()["name"]) == (404, "orders")
        await client.post("/topics", {"topic": "orders"})
        large = await client.post(PATH, {"value": "a", "messageId": "ü" * 200})
        nowhere = await client.post(PATH, {"value": "a", "partition": 7})

        assert (large.status, large.json()["limit"]) == (413, 255)
        assert nowhere.status == 404


async def test_a_poll_waits_for_the_first_message(tmp_path):
    async with (
        running_server(tmp_path) as it,
        raw_client(it.server.http_port) as consumer,
        raw_client(it.server.http_port) as producer,
    ):
        consumer.send(f"GET {PATH}?group=g HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        await until(lambda: any(m._waiters for m in polled(it)))
        await producer.post(PATH, {"value": "now"})

        assert values((await consumer.answer()).json()["messages"]) == ["now"]


async def test_a_poll_for_which_nothing_comes_is_answered_empty(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        assert await taken(client, wait="0s") == []
        await client.post(PATH, {"value": "later", "delay": "1h"})
        assert await taken(client, wait="150ms") == []


async def test_polls_share_what_comes_and_none_gets_more_than_it_asked(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        await client.post(PATH, {"messages": [{"value": str(i)} for i in range(10)]})
        seen = [await taken(client, limit=3) for _ in range(4)]

        assert [values(s) for s in seen] == [
            ["0", "1", "2"],
            ["3", "4", "5"],
            ["6", "7", "8"],
            ["9"],
        ]
        assert await taken(client, wait="0s") == []


async def test_acked_messages_are_done_and_others_come_again(tmp_path):
    delivery = DeliveryConfig(retry_delay_ms=100)
    async with (
        running_server(tmp_path, delivery=delivery) as it,
        raw_client(it.server.http_port) as client,
    ):
        await client.post(PATH, {"messages": [{"value": str(i)} for i in range(4)]})
        leases = [message["lease"] for message in await taken(client)]
        response = await client.post(
            "/topics/orders/acks",
            {"group": "g", "ack": leases[:2], "nack": [leases[2]], "giveBack": [leases[3]]},
        )
        assert response.json() == {"accepted": 4, "refused": []}

        again = await taken(client, limit=1)
        again += await taken(client, limit=1)
        assert sorted((m["value"], m["attempt"]) for m in again) == [("2", 2), ("3", 1)]
        group = (await client.get("/topics/orders/groups/g")).json()
        assert group["partitions"][0]["committed"] == 2


async def test_a_lease_that_is_over_is_refused(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        await client.post(PATH, {"messages": [{"value": "a"}, {"value": "b"}]})
        first, second = [message["lease"] for message in await taken(client)]
        path = "/topics/orders/acks"
        some = await client.post(path, {"group": "g", "ack": [first, "0-1-99-1", "5-1-0-1"]})
        none = await client.post(path, {"group": "g", "ack": [first]})
        stranger = await client.post(path, {"group": "other", "ack": [second]})
        late = await client.post(path, {"group": "g", "ack": [second[:-1] + "7"]})

        assert some.json() == {"accepted": 1, "refused": ["0-1-99-1", "5-1-0-1"]}
        assert [a.status for a in (none, stranger, late)] == [409, 409, 409]
        assert (await client.post(path, {"group": "g", "ack": [second]})).status == 200
        assert (await client.post("/topics/none/acks", {"group": "g"})).status == 404


async def test_an_answer_of_an_attempt_that_timed_out_does_not_speak_for_the_next(tmp_path):
    delivery = DeliveryConfig(ack_timeout_ms=100, retry_delay_ms=100)
    async with (
        running_server(tmp_path, delivery=delivery) as it,
        raw_client(it.server.http_port) as client,
    ):
        await client.post(PATH, {"value": "a"})
        (first,) = await taken(client)
        (second,) = await taken(client)  # comes when the first has timed out
        assert (first["attempt"], second["attempt"]) == (1, 2)
        path = "/topics/orders/acks"

        assert (await client.post(path, {"group": "g", "nack": [first["lease"]]})).status == 409
        extended = await client.post(
            path, {"group": "g", "extend": [second["lease"]], "extendBy": "1h"}
        )
        assert extended.status == 200
        assert (await client.post(path, {"group": "g", "ack": [second["lease"]]})).status == 200


async def test_rejected_messages_are_dead_letters_that_can_be_redriven(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        await client.post(PATH, {"value": "bad"})
        (message,) = await taken(client)
        said = {"group": "g", "reject": [message["lease"]], "leave": True}
        await client.post("/topics/orders/acks", said)
        path = "/topics/orders/dead-letters"
        page = (await client.get(path)).json()
        (letter,) = page["deadLetters"]
        assert (letter["value"], letter["group"], letter["attempts"]) == ("bad", "g", 1)

        assert (await client.post(path + "/redrive", {})).json() == {"count": 1}
        assert values(await taken(client)) == ["bad"]
        assert (await client.get(path)).json()["total"] == 0
        assert (await client.post(path + "/purge", {})).json() == {"count": 0}


async def test_a_dead_letter_is_edited_as_it_is_redriven(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        await client.post(PATH, {"value": "bad", "key": "k", "headers": {"a": "1"}})
        (message,) = await taken(client)
        said = {"group": "g", "reject": [message["lease"]], "leave": True}
        await client.post("/topics/orders/acks", said)
        path = "/topics/orders/dead-letters/redrive"
        edit = {"positions": [{"partition": message["partition"], "offset": 0}], "value": "good"}

        assert (await client.post(path, {"value": "good"})).status == 400
        assert (await client.post(path, {**edit, "valueBase64": "AA=="})).status == 400
        assert (await client.post(path, {**edit, "headers": {"a": "2"}})).json() == {"count": 1}
        assert (await client.post(path, edit)).json() == {"count": 0}
        (came,) = await taken(client)
        assert (came["value"], came["key"]) == ("good", "k")
        assert came["headers"] == {"a": "2", "wc-redriven": "1"}


async def test_whoever_leaves_is_told_of_its_dead_letters_that_cannot_be_written(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(writer, "WRITTEN_S", 0.0)

    full = TopicsConfig(topics_max=1)
    async with (
        running_server(tmp_path, topics=full) as it,
        raw_client(it.server.http_port) as client,
    ):
        await client.post(PATH, {"value": "bad"})
        (message,) = await taken(client)
        said = {"group": "g", "reject": [message["lease"]], "leave": True}
        answer = await client.post("/topics/orders/acks", said)

        assert answer.json() == {"accepted": 1, "refused": [], "unwritten": 1}


async def test_whoever_leaves_waits_for_no_dead_letters_of_others(tmp_path):
    full = TopicsConfig(topics_max=1)
    async with (
        running_server(tmp_path, topics=full) as it,
        raw_client(it.server.http_port) as client,
    ):
        await client.post(PATH, {"value": "bad"})
        (message,) = await taken(client)
        path, said = "/topics/orders/acks", {"group": "g", "reject": [message["lease"]]}
        assert (await client.post(path, said)).status == 200
        await client.get(f"{PATH}?group=g&consumer=other&wait=100ms")

        answer = await client.post(path, {"group": "g", "consumer": "other", "leave": True})

        assert answer.json() == {"accepted": 0, "refused": []}


async def test_who_goes_while_polling_takes_nothing_along(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        async with raw_client(it.server.http_port) as gone:
            gone.send(f"GET {PATH}?group=g HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            await until(lambda: any(m._waiters for m in polled(it)))
        await until(lambda: not any(m._waiters for m in polled(it)))
        await client.post(PATH, {"value": "kept"})

        assert values(await taken(client, limit=1)) == ["kept"]


async def test_a_flood_of_polls_that_go_leaves_nothing_behind(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as first:
        first.send(f"GET {PATH}?group=g HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        await until(lambda: any(m._waiters for m in polled(it)))
        (member,) = polled(it)
        for _ in range(200):
            async with raw_client(it.server.http_port) as gone:
                gone.send(f"GET {PATH}?group=g HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                await until(lambda: len(it.server._http.connections) > 1)
                gone.writer.transport.abort()
            await until(lambda: len(it.server._http.connections) == 1)

        assert len(member._waiters) < 150
