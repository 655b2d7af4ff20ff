"""Requests about streams that are odd, and must not cost anybody a message."""

import asyncio
import json
import re
from urllib.parse import quote

import pytest

from tests.server.http_client import raw_client, until
from tests.server.served import running_server
from tests.server.test_streams_api import streaming


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("HEAD", "/streams/receive?streamId=s"),
        ("HEAD", "/api/v1/streams/receive?streamId=s"),
        ("HEAD", "/topics/orders/messages?group=g"),
        ("HEAD", "/topics/orders/events?group=g"),
    ],
)
async def test_what_takes_messages_cannot_be_asked_for_its_head(tmp_path, method, path):
    async with streaming(tmp_path) as it:
        await it.send("s", "only")
        await it.served.publish(b"only")
        client = await it.connection()
        client.send(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        answer = await client.answer(to_head=True)

        assert answer.status == 405
        assert "HEAD" not in answer.headers["allow"].split(", ")
        assert "GET" in answer.headers["allow"].split(", ")
        assert (await it.receive("s", "timeout=1ms")).json()["message"] == "only"


async def test_what_only_looks_can_be_asked_for_its_head(tmp_path):
    async with streaming(tmp_path) as it:
        client = await it.connection()
        for path in ("/streams", "/topics", "/node", "/streams/events?streamId=s"):
            client.send(f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert (await client.answer(to_head=True)).status == 200


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/streams/receive?streamId=s&as=message%0A", "as"),
        ("/topics/orders/messages?group=g%0A&wait=100ms", "group"),
        ("/topics/orders%0A/messages?group=g&wait=100ms", "topic"),
    ],
)
async def test_a_newline_at_the_end_is_no_part_of_a_word(tmp_path, path, field):
    async with streaming(tmp_path) as it:
        await it.send("s", "only")
        answer = await it.get(path)

        assert (answer.status, answer.json()["field"]) == (400, field)
        assert (await it.receive("s", "timeout=1ms")).json()["message"] == "only"


async def test_no_pattern_we_publish_lets_a_newline_pass_at_the_end(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        described = (await client.get("/openapi.json")).body.decode()
        patterns = set(map(json.loads, re.findall(r'"pattern":("(?:[^"\\]|\\.)*")', described)))

        assert len(patterns) > 5
        assert {one for one in patterns if not one.endswith(r"$(?!\n)")} == set()


async def test_a_list_of_streams_begins_anywhere(tmp_path):
    async with streaming(tmp_path) as it:
        await it.send("s", 1)
        far = await it.get(f"/streams?start={1 << 52}")
        too_far = await it.get(f"/streams?start={10**30}")

        assert (far.status, far.json()) == (200, {"streams": [], "next": 0})
        assert too_far.status == 400


@pytest.mark.parametrize("name", ["send", "receive", "events", "sendAndStore", "a/b", "a b", "é"])
async def test_a_stream_of_any_name_can_be_looked_at_and_deleted(tmp_path, name):
    async with streaming(tmp_path) as it:
        await it.send(name, 1)
        path = f"/streams/{quote(name, safe='')}"
        if name.isascii() and name.isalpha():
            path = f"/streams/%{ord(name[0]):02x}{name[1:]}"
        facts = await it.get(path)
        small = await it.post(path, "PATCH", inMemoryStreamSize=7)
        gone = await it.post(path, "DELETE")

        assert (facts.status, facts.json()["streamId"]) == (200, name)
        assert (small.status, gone.status) == (200, 204)


async def test_whoever_waited_in_vain_is_told_so_by_name(tmp_path):
    async with streaming(tmp_path) as it:
        received = await it.receive("s", "timeout=1ms")
        by_token = await it.receive("s", "resumeToken=latest&timeout=1ms")
        sent = await it.send("meet", 1, inMemoryStreamSize=0, timeout="1ms")

        for answer in (received, by_token, sent):
            assert (answer.status, answer.json()["error"]) == (424, "MatchTimeout")


async def test_a_curl_that_would_upgrade_sends_and_goes_away(tmp_path):
    async with streaming(tmp_path) as it:
        upgrade = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"
        client = await it.connection()
        body = b'{"streamId":"s","message":1}'
        head = "POST /streams/send HTTP/1.1\r\nHost: localhost\r\n"
        head += f"{upgrade}Content-Length: {len(body)}"
        assert (await client.ask(head.encode() + b"\r\n\r\n" + body)).status == 200
        assert (await it.receive("s")).json()["message"] == 1
        path = "/streams/receive?streamId=s&timeout=20s"
        client.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{upgrade}\r\n".encode())
        await until(lambda: it.host.table.waiting)
        client.writer.close()
        async with asyncio.timeout(5):
            await until(lambda: not it.host.table.waiting)
