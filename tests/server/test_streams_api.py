"""In-memory streams over HTTP, on real sockets, against a real node."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.server.http_client import Answered, RawClient, raw_client, until
from tests.server.served import Served, running_server
from waterclock.model.sections import MatchingConfig, StreamsConfig
from waterclock.server.streams import api
from waterclock.server.streams.models import SendBody, decode_send


class Streaming:
    """A served node and as many connections as asked for."""

    def __init__(self, served: Served, stack: AsyncExitStack) -> None:
        self.served = served
        self.owner = served
        self.node = served.node
        self.host = served.node.streams
        self._stack = stack

    async def connection(self) -> RawClient:
        return await self._stack.enter_async_context(raw_client(self.served.server.http_port))

    async def post(self, path: str, method: str = "POST", **body: Any) -> Answered:
        client = await self.connection()
        data = json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
        return await client.ask(head.encode() + data)

    async def send(self, stream: str, message: Any, **facts: Any) -> Answered:
        return await self.post("/streams/send", streamId=stream, message=message, **facts)

    async def store(self, stream: str, message: Any, **facts: Any) -> Answered:
        return await self.post("/streams/sendAndStore", streamId=stream, message=message, **facts)

    async def get(self, path: str) -> Answered:
        return await (await self.connection()).get(path)

    async def receive(self, stream: str, query: str = "") -> Answered:
        return await self.get(f"/streams/receive?streamId={stream}&{query}")

    async def polling(self, stream: str, query: str = "") -> "asyncio.Task[Answered]":
        """Ask for a message and return once the node lets the poll wait."""
        before = self.host.table.waiting
        poll = asyncio.ensure_future(self.receive(stream, query))
        await until(lambda: self.host.table.waiting > before)
        return poll


@asynccontextmanager
async def streaming(folder: Path, **sections: Any) -> AsyncIterator[Streaming]:
    async with running_server(folder, **sections) as served, AsyncExitStack() as stack:
        yield Streaming(served, stack)


async def test_what_is_sent_is_received_in_order(tmp_path):
    async with streaming(tmp_path) as it:
        sent = [(await it.send("chat", {"n": n}, messageUuid=f"u{n}")).json() for n in range(2)]
        got = [(await it.receive("chat")).json() for _ in range(2)]

        assert [(each["position"], each["messageUuid"]) for each in sent] == [
            (1, "u0"),
            (2, "u1"),
        ]
        assert [(each["message"], each["messageUuid"]) for each in got] == [
            ({"n": 0}, "u0"), ({"n": 1}, "u1"),
        ]  # fmt: skip


async def test_a_poll_waits_for_a_message_and_the_sender_hears_that(tmp_path):
    async with streaming(tmp_path) as it:
        first, second = [await it.polling("chat") for _ in range(2)]
        one = await it.send("chat", "one")
        two = await it.send("chat", "two")
        three = await it.send("chat", "three")

        assert [each.json()["delivered"] for each in (one, two, three)] == [True, True, False]
        assert (await first).json()["message"] == "one"
        assert (await second).json()["message"] == "two"


async def test_both_vocabularies_are_spoken_and_answered_in_kind(tmp_path):
    async with streaming(tmp_path) as it:
        sent = await it.post(
            "/streams/send", streamId="s", output=[1], outputUuid="u", timeoutSeconds=5
        )
        assert sent.json()["outputUuid"] == "u"
        got = (await it.receive("s", "as=output&timeoutSeconds=5")).json()
        assert (got["output"], got["outputUuid"]) == ([1], "u")


async def test_nobody_in_time_is_424_on_both_sides(tmp_path):
    async with streaming(tmp_path) as it:
        received = await it.receive("s", "timeout=1ms")
        sent = await it.send("meet", 1, inMemoryStreamSize=0, timeout="1ms")
        await it.send("full", 1, inMemoryStreamSize=1)
        blocked = await it.send("full", 2, blockingSendTimeoutSeconds=0.001)

        assert [each.status for each in (received, sent, blocked)] == [424] * 3
        assert received.json()["error"] == "MatchTimeout"


async def test_sender_and_receiver_meet_in_a_stream_of_size_0(tmp_path):
    async with streaming(tmp_path) as it:
        sending = asyncio.ensure_future(it.send("meet", "hello", inMemoryStreamSize=0))
        await until(lambda: it.host.table.waiting)
        seen = (await it.get("/streams/meet")).json()
        got = await it.receive("meet")

        assert (seen["waiting"], seen["waitingSenders"]) == (1, 1)
        assert got.json()["message"] == "hello"
        assert (await sending).json()["delivered"]


@pytest.mark.parametrize("half", [False, True])
async def test_a_receiver_that_goes_away_takes_no_message_along(tmp_path, half):
    async with streaming(tmp_path) as it:
        client = await it.connection()
        client.send(b"GET /streams/receive?streamId=s HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await until(lambda: it.host.table.waiting == 1)
        if half:
            client.writer.write_eof()
        else:
            client.writer.close()
        await until(lambda: it.host.table.waiting == 0)

        assert not (await it.send("s", "kept")).json()["delivered"]
        assert (await it.receive("s")).json()["message"] == "kept"


async def test_named_consumers_see_everything_and_hear_what_they_missed(tmp_path):
    async with streaming(tmp_path) as it:
        for n in range(4):
            await it.send("s", n, inMemoryStreamSize=2)
            if n == 0:
                assert (await it.receive("s", "consumerId=a")).json()["message"] == 0
        late = (await it.receive("s", "consumerId=a&limit=10")).json()
        new = (await it.receive("s", "consumerId=b&limit=10")).json()

        assert ([each["message"] for each in late["messages"]], late["missed"]) == ([2, 3], 1)
        assert ([each["message"] for each in new["messages"]], new["missed"]) == ([2, 3], 0)


async def test_a_token_goes_on_where_it_was_and_says_when_that_is_gone(tmp_path):
    async with streaming(tmp_path) as it:
        for n in range(3):
            await it.send("s", n, inMemoryStreamSize=3)
        first = (await it.receive("s", "consumerId=a")).json()["resumeToken"]
        rest = (await it.receive("s", f"resumeToken={first}&limit=9")).json()
        waiting = await it.polling("s", f"resumeToken={rest['resumeToken']}")
        await it.send("s", 3)
        assert [each["message"] for each in rest["messages"]] == [1, 2]
        assert (await waiting).json()["message"] == 3

        await it.send("s", 4)
        await it.send("s", 5)
        gone = await it.receive("s", f"resumeToken={first}")
        assert (gone.status, gone.json()["missed"]) == (410, 2)
        again = gone.json()["resumeToken"]
        assert (await it.receive("s", f"resumeToken={again}")).json()["message"] == 3


async def test_a_poll_that_found_nothing_says_where_to_ask_again(tmp_path):
    async with streaming(tmp_path) as it:
        await it.send("live", 0)
        await it.store("stored", 0)
        for stream, add in (("live", it.send), ("stored", it.store)):
            empty = await it.receive(stream, "resumeToken=latest&timeout=1ms")
            await add(stream, 1)
            token = empty.json()["resumeToken"]
            found = await it.receive(stream, f"resumeToken={token}")

            assert (empty.status, found.json()["message"]) == (424, 1)


async def test_a_token_of_another_stream_or_life_is_refused(tmp_path):
    async with streaming(tmp_path) as it:
        await it.send("s", 1)
        token = (await it.receive("s")).json()["resumeToken"]
        foreign = await it.receive("t", f"resumeToken={token}")
        forged = await it.receive("s", "resumeToken=00ff")
        assert (await it.post("/streams/s", "DELETE")).status == 204
        await it.send("s", 1)
        stale = await it.receive("s", f"resumeToken={token}")

        assert [each.status for each in (foreign, forged, stale)] == [403, 400, 410]
        assert foreign.json()["field"] == "resumeToken"


async def test_what_is_stored_is_there_after_a_restart(tmp_path):
    async with streaming(tmp_path) as it:
        one = await it.store("s", "one", messageUuid="u1")
        again = await it.store("s", "one", messageUuid="u1")
        await it.send("s", "two", writeToDB=True)
        assert (one.status, one.json()["position"], one.json()["isNew"]) == (201, 1, True)
        assert (again.json()["position"], again.json()["isNew"]) == (1, False)
        live = (await it.receive("s", "limit=9")).json()
        assert [each["message"] for each in live["messages"]] == ["one", "two"]
    async with streaming(tmp_path) as it:
        token = one.json()["resumeToken"]
        rest = (await it.receive("s", f"resumeToken={token}")).json()
        assert rest["message"] == "two"
        everything = (await it.receive("s", "resumeToken=earliest&limit=9")).json()
        assert [each["message"] for each in everything["messages"]] == ["one", "two"]

        waiting = await it.polling("s", f"resumeToken={rest['resumeToken']}")
        await it.store("s", "three")
        assert (await waiting).json()["message"] == "three"


async def test_bad_input_is_named_by_its_field(tmp_path):
    sections = {
        "streams": StreamsConfig(message_bytes_max=10, ring_messages=5, ring_messages_max=5),
    }
    async with streaming(tmp_path, **sections) as it:
        for body, field, status in (
            ({"message": 1}, "streamId", 400),
            ({"streamId": "", "message": 1}, "streamId", 400),
            ({"streamId": "s"}, "message", 400),
            ({"streamId": "s", "message": 1, "output": 1}, "message", 400),
            ({"streamId": "s", "message": 1, "outputUuid": "u"}, "messageUuid", 400),
            ({"streamId": "s", "message": "x" * 20}, "message bytes", 413),
            ({"streamId": "é" * 257, "message": 1}, "streamId", 400),
            (
                {"streamId": "s", "message": 1, "inMemoryStreamSize": 6},
                "inMemoryStreamSize",
                429,
            ),
            ({"streamId": "s", "message": 1, "timeout": "soon"}, "timeout", 400),
            ({"streamId": "s", "message": 1, "colour": 1}, "colour", 400),
        ):
            response = await it.post("/streams/send", **body)
            assert (response.status, response.json().get("field")) == (status, field), response.body
        assert (await it.receive("s", "limit=0")).json()["field"] == "limit"
        assert it.host.table.waiting == len(it.host.table) == 0


async def test_nobody_waits_longer_than_is_allowed(tmp_path):
    async with streaming(tmp_path, matching=MatchingConfig(max_timeout_ms=1)) as it:
        assert (await it.receive("s", "timeout=1h")).status == 424


async def test_a_reader_of_stored_messages_that_finds_no_room_to_wait_is_refused(tmp_path):
    async with streaming(tmp_path, streams=StreamsConfig(waiters_max=1)) as it:
        token = (await it.store("s", 1)).json()["resumeToken"]
        poll = await it.polling("other")
        for query in (f"resumeToken={token}", "resumeToken=latest"):
            assert (await it.receive("s", query)).status == 429
        await it.send("other", 1)
        assert (await poll).status == 200


async def test_a_store_that_is_confused_fails_a_reader_and_not_the_node(tmp_path, monkeypatch):
    async with streaming(tmp_path) as it:
        token = (await it.store("s", 1)).json()["resumeToken"]

        async def confused(*_: object, **__: object) -> None:
            raise RuntimeError("the driver is confused")

        monkeypatch.setattr(it.node.persister, "read", confused)
        assert (await it.receive("s", f"resumeToken={token}")).status == 500
        assert (await it.send("s", 2)).status == 200


async def test_streams_are_listed_looked_at_resized_and_deleted(tmp_path):
    async with streaming(tmp_path) as it:
        for n in range(3):
            await it.send(f"s{n}", n)
        page = (await it.get("/streams?limit=2")).json()
        rest = (await it.get(f"/streams?start={page['next']}")).json()
        assert (page["streams"], rest["streams"], rest["next"]) == (["s0", "s1"], ["s2"], 0)
        facts = (await it.get("/streams/s0")).json()
        assert (facts["messages"], facts["inMemoryStreamSize"]) == (1, 100)
        small = await it.post("/streams/s0", "PATCH", inMemoryStreamSize=0)
        assert small.json()["messages"] == 0
        assert (await it.get("/streams/nowhere")).status == 404
        assert (await it.post("/streams/nowhere", "DELETE")).status == 404
        assert (await it.post("/streams/nowhere", "PATCH", inMemoryStreamSize=1)).status == 404


async def test_whoever_waits_is_answered_when_the_node_stops(tmp_path):
    async with streaming(tmp_path) as it:
        poll = await it.polling("s")
        sending = asyncio.ensure_future(it.send("meet", 1, inMemoryStreamSize=0))
        await until(lambda: it.host.table.waiting == 2)
        await it.served.server.stop()

        assert [(await each).status for each in (poll, sending)] == [503, 503]


async def test_the_short_way_says_what_the_long_way_says(tmp_path):
    async with streaming(tmp_path) as streams:
        await streams.send("s", 0)
        plain = [(await streams.send("s", 1)).json(), (await streams.send("s", "é")).json()]
        special = [(await streams.send("s", n, timeout="1s")).json() for n in (2, "é")]
        short = [(await streams.receive("s")).json() for _ in range(2)]
        long = [(await streams.receive("s", "limit=1")).json() for _ in range(3)]

    sent = [*plain, *special]
    assert [list(each) for each in sent] == [list(plain[0])] * 4
    assert [each["position"] for each in sent] == [2, 3, 4, 5]
    stem = plain[0]["messageUuid"].removesuffix("-2")
    assert [each["messageUuid"] for each in sent] == [f"{stem}-{n}" for n in (2, 3, 4, 5)]
    listed = [each["messages"][0] for each in long]
    assert [list(each)[1:] for each in short] == [list(listed[0])] * 2
    assert [each["message"] for each in (*short, *listed)] == [0, 1, "é", 2, "é"]
    assert {each["resumeToken"][:18] for each in (*short, *listed)} == {f"01{stem}"}


async def test_what_the_short_way_is_not_for_is_not_read_by_it(tmp_path, monkeypatch):
    """Text beyond ASCII is decoded by the long way alone."""
    read: set[bytes] = set()

    def decode(body: bytes) -> SendBody:
        read.add(body)
        return decode_send(body)

    monkeypatch.setattr(api, "decode_send", decode)
    async with streaming(tmp_path) as streams:
        client = await streams.connection()
        for text in ("e", "é"):
            body = json.dumps({"streamId": "s", "message": text}, ensure_ascii=False).encode()
            head = "POST /streams/send HTTP/1.1\r\nHost: localhost\r\n"
            head += f"Content-Length: {len(body)}\r\n\r\n"
            assert (await client.ask(head.encode() + body)).status == 200
        got = [(await streams.receive("s")).json()["message"] for _ in range(2)]

    assert got == ["e", "é"]
    assert read == {b'{"streamId": "s", "message": "e"}'}


async def test_the_short_way_refuses_what_the_long_way_refuses(tmp_path):
    async with streaming(tmp_path, streams=StreamsConfig(message_bytes_max=10)) as streams:
        await streams.send("s", 0)
        too_long = await streams.send("s", "x" * 10)
        unknown = await streams.send("s", 1, colour="red")
        nameless = await streams.send("", 1)
        missing = await streams.post("/streams/send", streamId="s")

    refused = (too_long, unknown, nameless, missing)
    assert [each.status for each in refused] == [413, 400, 400, 400]
    assert [each.json()["field"] for each in refused[1:]] == ["colour", "streamId", "message"]
