"""iPubSub's API as it is published, asked by a client that is as strict as generated ones are."""

import asyncio
import json
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from tests.kit.clock import ManualClock
from tests.server import test_streams_api
from tests.server.http_client import until
from tests.server.published_client import (
    RECEIVE,
    SEND,
    Failed,
    PublishedClient,
    Undescribed,
    response_of,
)
from waterclock.model.clock import time_of
from waterclock.model.sections import StreamsConfig
from waterclock.model.units import DAY_MS, SECOND_MS

streaming = test_streams_api.streaming
OURS_SEND, OURS_RECEIVE = "/streams/send", "/streams/receive"
UUID = "00000000-0000-4000-8000-000000000000"
OF_EVERY_KIND = (
    {"type": "welcome", "tags": ["a", None, {}], "userId": 123},
    ["item", 1, True, None, []],
    "Hello, iPubSub! é\u2028\x00",
    "",
    42,
    -0.5,
    True,
    False,
    None,
)


@asynccontextmanager
async def published(folder, **sections):
    async with streaming(folder, **sections) as it:
        yield it, PublishedClient(it)


async def waiting(it, call):
    """Begin a call; return it once it waits in the node that owns its stream."""
    before = it.host.table.waiting
    begun = asyncio.ensure_future(call)
    await until(lambda: it.host.table.waiting > before)
    return begun


async def test_every_kind_of_json_comes_back_as_it_was_sent(tmp_path):
    async with published(tmp_path) as (_, client):
        sent = [await client.send("types", value) for value in OF_EVERY_KIND]
        got = [await client.receive("types") for _ in OF_EVERY_KIND]

        assert [each.message for each in got] == list(OF_EVERY_KIND)
        assert [each.message_uuid for each in got] == sent


async def test_a_null_is_a_message_also_where_it_is_said(tmp_path):
    async with published(tmp_path) as (it, client):
        for stored in (False, True):
            body = {"streamId": "s", "messageUuid": UUID, "message": None, "writeToDB": stored}
            assert (await it.post(SEND, **body)).status == 200
            assert (await client.receive("s")).message is None
        assert (await client.receive("s", is_stored=True)).message is None


async def test_an_answer_has_the_published_fields_and_no_others(tmp_path):
    clock = ManualClock()
    async with published(tmp_path, clock=clock) as (it, client):
        await client.send("s", 1, uuid=UUID)
        live = json.loads((await it.get(f"{RECEIVE}?streamId=s")).body)
        await client.send("s", 2, uuid=UUID, is_stored=True)
        stored = json.loads((await it.get(f"{RECEIVE}?streamId=s")).body)

        sent_at = "2023-11-14T22:13:20.000Z"
        assert live == {"messageUuid": UUID, "message": 1, "timestamp": sent_at}
        token = stored.pop("dbResumeToken")
        assert stored == {"messageUuid": UUID, "message": 2, "timestamp": sent_at}
        assert len(token) == 60


async def test_a_send_for_which_a_poll_waits_answers_each_in_its_own_words(tmp_path):
    async with published(tmp_path, clock=ManualClock()) as (it, client):
        await client.send("s", 0)  # so that there is a ring, and the short way to it
        await client.receive("s")
        body = {"streamId": "s", "messageUuid": UUID, "message": 1}
        fields = []
        for poll, send in ((RECEIVE, SEND), (RECEIVE, OURS_SEND), (OURS_RECEIVE, SEND)):
            waits = await waiting(it, it.get(f"{poll}?streamId=s"))
            sent, got = await it.post(send, **body), await waits
            fields.append([sorted(json.loads(answer.body)) for answer in (sent, got)])

        theirs = ["message", "messageUuid", "timestamp"]
        assert fields == [
            [["messageUuid"], theirs],
            [["delivered", "messageUuid", "position", "streamId"], theirs],
            [
                ["messageUuid"],
                ["message", "messageUuid", "position", "resumeToken", "sentMs", "streamId"],
            ],
        ]


async def test_a_time_is_of_the_sending_however_late_it_is_received(tmp_path):
    clock = ManualClock(now_ms=1_700_000_000_007)
    async with published(tmp_path, clock=clock) as (_, client):
        sent_at = time_of(clock.now_ms())
        await client.send("s", 1)
        await client.send("s", 2, is_stored=True)
        clock.advance(90 * SECOND_MS)

        times = [(await client.receive("s")).timestamp for _ in range(2)]
        times.append((await client.receive("s", is_stored=True)).timestamp)
        assert times == [sent_at] * 3


async def test_a_full_ring_overwrites_its_oldest_message(tmp_path):
    async with published(tmp_path) as (_, client):
        for n in range(5):
            await client.send("ring", n, size=3)

        assert [(await client.receive("ring")).message for _ in range(3)] == [2, 3, 4]
        with pytest.raises(Failed) as failed:
            await client.receive("ring", timeout_s=0)
        assert failed.value.status == 424


async def test_without_a_size_a_stream_holds_a_hundred(tmp_path):
    async with published(tmp_path) as (_, client):
        for n in range(101):
            await client.send("s", n)

        assert (await client.receive("s")).message == 1


async def test_a_blocking_sender_waits_for_room_and_fails_in_its_time(tmp_path):
    clock = ManualClock()
    async with published(tmp_path, clock=clock) as (it, client):
        await client.send("full", 1, size=1, blocking_s=30)
        late = await waiting(it, client.send("full", "late", blocking_s=2))
        taken = await waiting(it, client.send("full", "taken", blocking_s=9))
        clock.advance(3 * SECOND_MS)
        with pytest.raises(Failed) as failed:
            await late

        assert failed.value.status == 424
        assert (await client.receive("full")).message == 1
        await taken
        assert (await client.receive("full")).message == "taken"


async def test_a_stream_of_size_zero_matches_senders_and_receivers(tmp_path):
    async with published(tmp_path) as (it, client):
        sending = await waiting(it, client.send("meet", "first", size=0, blocking_s=60))
        assert (await client.receive("meet")).message == "first"
        uuid = await sending

        receiving = await waiting(it, client.receive("meet", timeout_s=60))
        assert await client.send("meet", "second", size=0) != uuid
        assert (await receiving).message == "second"


async def test_without_a_blocking_timeout_nobody_is_waited_for(tmp_path):
    async with published(tmp_path) as (it, client):
        for blocking_s in (None, 0):
            with pytest.raises(Failed) as failed:
                await client.send("meet", 1, size=0, blocking_s=blocking_s)
            assert failed.value.status == 424
        assert not it.host.table.waiting


async def test_receivers_compete_and_wait_in_turn(tmp_path):
    async with published(tmp_path) as (it, client):
        polls = [await waiting(it, client.receive("s", timeout_s=60)) for _ in range(3)]
        for n in range(3):
            await client.send("s", n)

        assert [(await poll).message for poll in polls] == [0, 1, 2]


async def test_stored_messages_are_read_one_after_the_other_by_their_tokens(tmp_path):
    async with published(tmp_path) as (_, client):
        for n in range(3):
            await client.send("diary", n, is_stored=True)
    async with published(tmp_path) as (_, client):
        token, got = "", []
        for _ in range(3):
            found = await client.receive("diary", is_stored=True, token=token)
            token = found.db_resume_token or ""
            got.append(found.message)

        assert got == [0, 1, 2]
        with pytest.raises(Failed) as failed:
            await client.receive("diary", token=token, timeout_s=0)
        assert (failed.value.status, failed.value.problem["dbResumeToken"]) == (424, token)
        again = await client.receive("diary", is_stored=True)
        assert (again.message, again.message_uuid) == (0, "00000000-0000-4000-8000-000000000001")


async def test_a_reader_of_the_store_waits_for_the_next_stored_message(tmp_path):
    async with published(tmp_path) as (it, client):
        await client.send("s", "in memory")
        first = await waiting(it, client.receive("s", is_stored=True, timeout_s=60))
        await client.send("s", "in memory too")
        await client.send("s", "stored", is_stored=True)
        found = await first
        assert (found.message, bool(found.db_resume_token)) == ("stored", True)

        second = await waiting(it, client.receive("s", token=found.db_resume_token, timeout_s=60))
        await client.send("s", "next", is_stored=True)
        assert (await second).message == "next"


async def test_storing_the_same_id_again_changes_nothing(tmp_path):
    async with published(tmp_path) as (_, client):
        for n in range(2):
            await client.send("s", n, uuid=UUID, is_stored=True)
        found = await client.receive("s", is_stored=True)

        assert found.message == 0
        with pytest.raises(Failed):
            await client.receive("s", token=found.db_resume_token, timeout_s=0)


async def test_what_has_expired_is_passed_over(tmp_path):
    clock = ManualClock()
    async with published(tmp_path, clock=clock) as (_, client):
        for n, ttl_s in enumerate((3_600, 1, 2, None, 172_800)):
            await client.send("s", n, is_stored=True, ttl_s=ttl_s)
        first = await client.receive("s", is_stored=True)
        clock.advance(5 * SECOND_MS)
        third = await client.receive("s", token=first.db_resume_token)
        assert (first.message, third.message) == (0, 3)

        clock.advance(DAY_MS)  # which is how long a message is kept unless its sender says
        assert (await client.receive("s", is_stored=True)).message == 4
        clock.advance(2 * DAY_MS)
        with pytest.raises(Failed) as failed:
            await client.receive("s", token=third.db_resume_token, timeout_s=0)
        assert failed.value.status == 424


async def test_a_time_to_live_is_of_the_store_only(tmp_path):
    clock = ManualClock()
    async with published(tmp_path, clock=clock) as (_, client):
        await client.send("s", "kept", ttl_s=1)
        clock.advance(60 * SECOND_MS)

        assert (await client.receive("s")).message == "kept"


async def test_a_token_that_is_none_is_a_bad_request(tmp_path):
    async with published(tmp_path) as (it, client):
        for stream in ("s", "other"):
            await client.send(stream, 1, is_stored=True)
        of_other = (await client.receive("other", is_stored=True)).db_resume_token
        live = (await it.send("live", 1)).json()
        in_memory = (await it.receive("live")).json()["resumeToken"]
        assert live["position"] == 1
        for stream, token in (
            ("s", of_other),
            ("s", "0" * 60),
            ("s", "abc123def456"),
            ("s", "earliest"),
            ("s", "confirmed"),
            ("live", in_memory),
        ):
            with pytest.raises(Failed) as failed:
                await client.receive(stream, token=token, timeout_s=0)
            assert failed.value.status == 400, token
            assert failed.value.problem["field"] == "dbResumeToken"
        with pytest.raises(Failed) as failed:
            await client.receive("s", is_stored=False, token=of_other)
        assert (failed.value.status, failed.value.problem["field"]) == (400, "readFromDB")


_NEEDED = {"streamId": "s", "messageUuid": UUID, "message": 1}


BAD_SENDS: list[tuple[dict[str, Any], str]] = [
    ({}, "messageUuid"),
    ({"streamId": "s", "message": 1}, "messageUuid"),
    ({"messageUuid": UUID, "message": 1}, "streamId"),
    ({**_NEEDED, "streamId": ""}, "streamId"),
    ({**_NEEDED, "streamId": 7}, "streamId"),
    ({**_NEEDED, "messageUuid": ""}, "messageUuid"),
    ({**_NEEDED, "messageUuid": None}, "messageUuid"),
    ({**_NEEDED, "output": 1}, "output"),
    ({**_NEEDED, "ttl": "7d"}, "ttl"),
    ({**_NEEDED, "inMemoryStreamSize": -1}, "inMemoryStreamSize"),
    ({**_NEEDED, "inMemoryStreamSize": 1.5}, "inMemoryStreamSize"),
    ({**_NEEDED, "inMemoryStreamSize": "3"}, "inMemoryStreamSize"),
    ({**_NEEDED, "inMemoryStreamSize": 1 << 31}, "inMemoryStreamSize"),
    ({**_NEEDED, "inMemoryStreamSize": (1 << 31) - 1}, "inMemoryStreamSize"),
    ({**_NEEDED, "blockingSendTimeoutSeconds": -1}, "blockingSendTimeoutSeconds"),
    ({**_NEEDED, "blockingSendTimeoutSeconds": 1 << 31}, "blockingSendTimeoutSeconds"),
    ({**_NEEDED, "writeToDB": "yes"}, "writeToDB"),
    ({**_NEEDED, "writeToDB": True, "dbTTLSeconds": 0}, "dbTTLSeconds"),
    ({**_NEEDED, "dbTTLSeconds": 1e30}, "dbTTLSeconds"),
]


async def test_a_bad_send_is_400_and_names_the_field(tmp_path):
    async with streaming(tmp_path) as it:
        for body, field in BAD_SENDS:
            answer = await it.post(SEND, **body)
            assert (answer.status, answer.json()["field"]) == (400, field), body

        assert (await it.get("/streams")).json()["streams"] == []


BAD_RECEIVES = [
    ("", "streamId"),
    ("streamId=", "streamId"),
    ("streamId=s&streamId=t", "streamId"),
    ("streamId=s&timeoutSeconds=", "timeoutSeconds"),
    ("streamId=s&timeoutSeconds=1.5", "timeoutSeconds"),
    ("streamId=s&timeoutSeconds=-1", "timeoutSeconds"),
    ("streamId=s&timeoutSeconds=2147483648", "timeoutSeconds"),
    ("streamId=s&timeoutSeconds=30s", "timeoutSeconds"),
    ("streamId=s&readFromDB=perhaps", "readFromDB"),
    ("streamId=s&consumerId=me", "consumerId"),
    ("streamId=s&resumeToken=earliest", "resumeToken"),
    ("streamId=%ff", "streamId"),
    ("streamId=s&dbResumeToken=%00", "dbResumeToken"),
]


async def test_a_bad_receive_is_400_and_names_the_field(tmp_path):
    async with published(tmp_path) as (it, client):
        await client.send("s", "only")
        for query, field in BAD_RECEIVES:
            answer = await it.get(f"{RECEIVE}?{query}")
            assert (answer.status, answer.json()["field"]) == (400, field), query

        assert (await client.receive("s", timeout_s=0)).message == "only"


NO_SUCH_JSON = [
    b"",
    b"null",
    b"[]",
    b'"streamId"',
    b'{"streamId":"s","messageUuid":"u","message":nan}',
    b'{"streamId":"s","messageUuid":"u","message":"\xff"}',
    b'{"streamId":"s","messageUuid":"u","message":[1,]}',
    b'{"streamId":"\\ud800","messageUuid":"u","message":1}',
    b'{"streamId":"s","messageUuid":"u","message":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"streamId":"s","messageUuid":"u","message":1}{"streamId":"t"}',
    b'{"streamId":"s","messageUuid":"u","message":1',
]


async def test_what_is_no_such_json_is_400_and_makes_no_stream(tmp_path):
    async with streaming(tmp_path) as it:
        client = await it.connection()
        head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
        for body in NO_SUCH_JSON:
            answer = await client.ask(head % (SEND.encode(), len(body)) + body)
            assert (answer.status, answer.json()["error"]) == (400, "BadInput"), body[:100]

        assert (await it.get("/streams")).json()["streams"] == []


async def test_a_message_that_is_too_large_is_413(tmp_path):
    streams = StreamsConfig(message_bytes_max=1_000)
    async with published(tmp_path, streams=streams) as (_, client):
        with pytest.raises(Failed) as failed:
            await client.send("s", "x" * 1_000)
        assert failed.value.status == 413
        await client.send("s", "x" * 998)


async def test_it_is_the_same_stream_at_both_places(tmp_path):
    async with published(tmp_path) as (it, client):
        uuid = await client.send("s", "from there", is_stored=True)
        rich = (await it.receive("s")).json()
        assert (rich["message"], rich["messageUuid"]) == ("from there", uuid)
        assert {"streamId", "position", "sentMs", "resumeToken"} < rich.keys()
        found = await client.receive("s", is_stored=True)
        assert found.db_resume_token == rich["resumeToken"]
        assert found.timestamp == time_of(rich["sentMs"])

        await it.send("s", "from here")
        found = await client.receive("s")
        assert (found.message, found.db_resume_token) == ("from here", None)
        assert found.message_uuid, "one is made if its sender has none"
        assert found.timestamp.utcoffset() == timedelta(0)


async def test_the_rest_of_streams_is_the_same_below_the_prefix(tmp_path):
    async with published(tmp_path) as (it, client):
        await client.send("s", 1)

        assert (await it.get("/api/v1/streams/s")).json()["messages"] == 1
        body = {"streamId": "s", "message": 1}
        assert (await it.post("/api/v1/streams/sendAndStore", **body)).status == 201


@pytest.mark.parametrize(
    "answer",
    [
        b'{"message":1,"messageUuid":"u"}',
        b'{"timestamp":"2024-01-01T10:00:00Z"}',
        b'{"message":1,"timestamp":"2024-01-01T10:00:00Z","streamId":"s"}',
        b'{"message":1,"timestamp":1704103200000}',
        b'{"message":1,"timestamp":"2024-01-01 10:00:00"}',
        b'{"message":1,"timestamp":"2024-01-01T10:00:00Z","dbResumeToken":null}',
        b'{"message":1,"message":2,"timestamp":"2024-01-01T10:00:00Z"}',
        b"[]",
    ],
)
def test_the_client_of_these_tests_is_strict(answer):
    with pytest.raises(Undescribed):
        response_of(answer)


async def test_the_root_tells_what_answers_and_health_whether_it_does(tmp_path):
    async with streaming(tmp_path) as it:
        hello, health = await it.get("/"), await it.get("/health")

        assert hello.status == 200
        assert "iPubSub" in hello.json()["hello"]
        for path in hello.json()["links"].values():
            assert (await it.get(path)).status == 200, path
        assert (health.status, health.json()) == (200, {"status": "ok"})
