"""Messages for later, and again and again, over HTTP."""

from tests.kit.clock import ManualClock
from tests.server.http_client import RawClient, raw_client
from tests.server.served import running_server

PATH = "/topics/reminders"


async def schedule(client: RawClient, *ids: str, **fields: object) -> None:
    fields = fields if "at" in fields else {"delay": "1h", **fields}
    for message_id in ids:
        sent = {"value": "v", "messageId": message_id, **fields}
        assert (await client.post(f"{PATH}/messages", sent)).status == 201


async def listed(client: RawClient, query: str = "") -> list[str]:
    answer = await client.get(f"{PATH}/scheduled?{query}")
    assert answer.status == 200, answer
    return [one["messageId"] for one in answer.json()["scheduled"]]


async def test_messages_for_later_are_listed_by_due_time_page_by_page(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        await schedule(client, "c", delay="3h")
        await schedule(client, "a", delay="1h", key="ada")
        await schedule(client, "b", at="2099-01-01T00:00:00Z", key="adam")

        assert await listed(client) == ["a", "c", "b"]
        page = (await client.get(f"{PATH}/scheduled?limit=2&values=true")).json()
        assert [one["value"] for one in page["scheduled"]] == ["v", "v"]
        assert page["scheduled"][0]["timerId"] == "a-1"
        assert await listed(client, f"page={page['nextPage']}") == ["b"]
        assert await listed(client, "keyPrefix=ada") == ["a", "b"]
        assert await listed(client, "key=adam") == ["b"]
        due_ms = page["scheduled"][1]["dueMs"]
        assert await listed(client, f"fromMs={due_ms}&toMs={due_ms + 1}") == ["c"]
        assert await listed(client, f"fromMs={due_ms}&toMs={due_ms}") == []


async def test_times_are_read_as_people_write_them(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        await schedule(client, "date", at="2099-12-24")
        await schedule(client, "zoned", at="2099-12-24 18:00 Europe/Berlin")
        await schedule(client, "day", at="tomorrow 9:00")
        await schedule(client, "words", delay="5 minutes")
        page = (await client.get(f"{PATH}/scheduled")).json()["scheduled"]
        due = {one["messageId"]: one["dueMs"] for one in page}

        assert list(due) == ["words", "day", "date", "zoned"]
        assert due["date"] == 4_101_753_600_000
        assert due["zoned"] - due["date"] == 17 * 3_600_000
        moved = {"messages": [{"messageId": "day"}], "at": "2099-12-24T18:00Z"}
        assert (await client.post(f"{PATH}/reschedule", moved)).status == 200
        refused = await client.post(f"{PATH}/messages", {"value": "v", "at": "soon"})
        assert "'in 5 minutes'" in refused.json()["detail"]
        assert (await client.get(f"{PATH}/replay?since=1h&until=%2B1h")).status == 200


async def test_messages_for_later_are_counted(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        await schedule(client, "a", "b")
        counts = (await client.get(f"{PATH}/scheduled/count")).json()

        assert (counts["total"], counts["counts"]) == (2, [])
        assert sum(one["count"] for one in counts["horizons"]) == 2
        steps = f"fromMs={it.node.clock.now_ms()}&stepMs=86400000&steps=400"
        by_step = (await client.get(f"{PATH}/scheduled/count?{steps}")).json()["counts"]
        assert (len(by_step), sum(by_step)) == (400, 2)
        refused = await client.get(f"{PATH}/scheduled/count?stepMs=1&steps=1")
        assert refused.status == 400


async def test_the_next_times_of_a_rule_are_told_without_making_anything(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        asked = "/recurrence-times?rule=0%209%20*%20*%20MON&zone=Europe%2FBerlin&startMs=1&count=2"
        times = (await client.get(asked)).json()["timesMs"]
        neither = await client.get("/recurrence-times")
        wrong = await client.get("/recurrence-times?rule=often")
        often = (await client.get("/recurrence-times?rule=90s&startMs=1000&count=2")).json()

        assert times == [4 * 86_400_000 + 8 * 3_600_000, 11 * 86_400_000 + 8 * 3_600_000]
        assert [ms - 1_000 for ms in often["timesMs"]] == [90_000, 180_000]
        assert (neither.status, wrong.status) == (400, 400)
        assert (await client.get("/recurrences")).json() == {"recurrences": []}


async def test_messages_are_cancelled_by_id_key_or_position(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        await schedule(client, "a", "b", "c", "d", key="k")
        named = [
            {"messageId": "a"},
            {"partition": 0, "offset": 1},
            {"messageId": "c", "key": "other"},
            {"messageId": "d", "key": "k"},
        ]
        response = await client.post(f"{PATH}/cancel", {"messages": named})

        outcomes = ["done", "done", "unknown", "done"]
        assert response.json() == {"outcomes": outcomes, "reached": [1, 1, 0, 1]}
        assert await listed(client) == ["c"]


async def test_what_is_pending_no_more_is_told_what_became_of_it(tmp_path):
    clock = ManualClock()
    async with (
        running_server(tmp_path, clock=clock) as it,
        raw_client(it.server.http_port) as client,
    ):
        await schedule(client, "cancelled", "fired", delay="1s")
        await schedule(client, "expired", delay="1s", expiresIn="1s")
        await schedule(client, "past", at="2001-01-01T00:00:00Z")
        await client.post(f"{PATH}/messages", {"value": "v", "messageId": "now"})
        await client.post(f"{PATH}/cancel", {"messages": [{"messageId": "cancelled"}]})
        clock.advance(3_000)
        while it.node.topics.get("reminders").partitions[0].scheduler.firing.fire_slice():
            pass
        names = ["cancelled", "fired", "expired", "past", "now", "never"]
        messages = [{"messageId": name} for name in names]
        cancelled = await client.post(f"{PATH}/cancel", {"messages": messages})
        moved = await client.post(f"{PATH}/reschedule", {"messages": messages, "delay": "1h"})

        fired = "alreadyFired"
        response = ["cancelled", fired, "expired", fired, fired, "unknown"]
        assert cancelled.json() == moved.json() == {"outcomes": response, "reached": [0] * 6}


async def test_messages_are_moved(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        await schedule(client, "a", "b")
        moved = await client.post(
            f"{PATH}/reschedule", {"messages": [{"messageId": "a"}], "delay": "2h"}
        )
        assert moved.json() == {"outcomes": ["done"], "reached": [1]}
        assert await listed(client) == ["b", "a"]

        now = await client.post(
            f"{PATH}/reschedule", {"messages": [{"messageId": "a"}], "dueMs": 0}
        )
        assert now.json() == {"outcomes": ["done"], "reached": [1]}
        answer = await client.get(f"{PATH}/messages?group=g")
        assert [m["messageId"] for m in answer.json()["messages"]] == ["a"]


async def test_all_that_match_are_cancelled_and_an_empty_filter_must_be_meant(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        await schedule(client, "a", "b", key="k", headers={"kind": "mail"})
        await schedule(client, "c")
        path = f"{PATH}/cancel-where"
        wanted = {"filter": {"headers": {"kind": "mail"}}}
        tried = await client.post(path, {**wanted, "dryRun": True})
        done = await client.post(path, wanted)
        never = await client.post(path, {"filter": {"fromMs": 2, "toMs": 1}})
        refused = await client.post(path, {})
        rest = await client.post(path, {"all": True})

        assert tried.json() == {"matched": 2, "cancelled": 0}
        assert done.json() == {"matched": 2, "cancelled": 2}
        assert never.json() == {"matched": 0, "cancelled": 0}
        assert (refused.status, refused.json()["field"]) == (400, "filter")
        assert rest.json() == {"matched": 1, "cancelled": 1}


async def test_what_is_wrong_is_told_by_field(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        await schedule(client, "x")
        for path, body, field in WRONG:
            whole = f"{PATH}/{path}"
            answer = await (client.get(whole) if body is None else client.post(whole, body))

            assert (answer.status, answer.json()["field"]) == (400, field), (path, body)


WRONG: list[tuple[str, object, str]] = [
    ("cancel", {"messages": [{}]}, "messages[0]"),
    ("cancel", {"messages": [{"partition": 0}]}, "messages[0]"),
    ("cancel", {"messages": [{"messageId": "a", "partition": 0, "offset": 0}]}, "messages[0]"),
    ("cancel", {"messages": []}, "messages"),
    ("reschedule", {"messages": [{"messageId": "a"}]}, "at"),
    ("reschedule", {"messages": [{"messageId": "a"}], "at": "1h", "delay": "1h"}, "delay"),
    ("scheduled?limit=1001", None, "limit"),
    ("scheduled?page=x", None, "page"),
]


async def test_a_recurrence_is_put_shown_listed_and_ended(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        rule = {"topic": "reports", "cron": "0 9 * * MON-FRI", "zone": "Europe/Berlin"}
        put = await client.post(
            "/recurrences/weekly", {**rule, "value": "go", "expiresAfter": "1h"}, "PUT"
        )
        assert put.status == 200
        response = put.json()
        assert response.pop("madePartitions") == 1
        assert {name: response[name] for name in ("topic", "cron", "zone")} == rule
        assert (response["message"], response["expiresAfterMs"]) == ({"value": "go"}, 3_600_000)
        assert response["nextMs"] > 0

        every = {"topic": "ticks", "every": "90s", "jitter": "1s", "lasts": "1d"}
        ticks = (await client.post("/recurrences/ticks", every, "PUT")).json()
        assert ticks.pop("madePartitions") == 1
        assert (ticks["everyMs"], ticks["jitterMs"]) == (90_000, 1_000)
        assert ticks["endMs"] > ticks["nextMs"]
        assert (await client.get("/recurrences/weekly")).json() == response
        names = [r["name"] for r in (await client.get("/recurrences")).json()["recurrences"]]
        assert names == ["ticks", "weekly"]
        of_topic = (await client.get("/recurrences?topic=ticks")).json()["recurrences"]
        assert of_topic == [ticks]

        paused = await client.post("/recurrences/weekly/pause", {})
        assert (paused.status, paused.json()) == (200, {**response, "nextMs": 0, "isPaused": True})
        assert (await client.get("/recurrences/weekly")).json() == paused.json()
        resumed = await client.post("/recurrences/weekly/resume", {})
        assert (resumed.status, resumed.json()) == (200, response)
        assert (await client.post("/recurrences/none/pause", {})).status == 404

        assert (await client.delete("/recurrences/weekly")).status == 204
        assert (await client.delete("/recurrences/weekly")).status == 404
        assert (await client.get("/recurrences/weekly")).status == 404


async def test_a_rule_that_is_none_is_refused(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        for rule, field in NO_RULES:
            answer = await client.post("/recurrences/r", {"topic": "t", **rule}, "PUT")

            assert (answer.status, answer.json()["field"]) == (400, field), rule


NO_RULES: list[tuple[dict[str, object], str]] = [
    ({}, "cron"),
    ({"cron": "@daily", "every": "1h"}, "every"),
    ({"cron": "61 * * * *"}, "cron"),
    ({"every": "0s"}, "every"),
    ({"every": "1h", "jitter": "2d"}, "jitter"),
    ({"every": "1h", "zone": "Europe/Atlantis"}, "zone"),
]
