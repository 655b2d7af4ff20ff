"""Listeners to streams: they come back after anything, lose nothing, and are no polls."""

import asyncio
import json

import yaml

from tests.server.http_client import until
from tests.server.test_metrics import scrape, value
from tests.server.test_stream_events import listening
from tests.server.test_stream_metrics import ALERTS
from tests.server.test_streams_api import Streaming, streaming
from waterclock.server.streams import events as stream_events


async def live_token(it: Streaming, message: str) -> str:
    await it.send("s", message)
    token: str = (await it.receive("s", "consumerId=c")).json()["resumeToken"]
    return token


async def test_a_browser_comes_back_after_a_restart(tmp_path):
    async with streaming(tmp_path) as it:
        token = await live_token(it, "old")
    async with streaming(tmp_path) as it:
        await it.send("s", "new")
        listener = await listening(it, "streamId=s", last_id=token)
        gone, new = await listener.events(2)

        assert (gone.name, gone.data) == ("gone", {"missed": 0})
        assert new.data["message"] == "new"
        # Who brings a token by hand is told, and decides.
        assert (await it.get(f"/streams/events?streamId=s&resumeToken={token}")).status == 410


async def test_a_browser_comes_back_to_a_stream_that_was_forgotten(tmp_path):
    async with streaming(tmp_path) as it:
        token = await live_token(it, "old")
        await it.post("/streams/s", "DELETE")
        for query in ("streamId=s", "streamId=s&consumerId=c"):
            client = await it.connection()
            head = f"GET /streams/events?{query} HTTP/1.1\r\n"
            head += f"Host: localhost\r\nLast-Event-ID: {token}"
            client.send(head.encode() + b"\r\n\r\n")
            status, _ = await client.head()
            assert status == 200
            response = await client.chunk() + await client.chunk()
            # An empty id: the browser forgets the one it had.
            assert b"id:\nevent: gone\n" in response
            await it.send("s", "again")
            while b"again" not in response:
                response += await client.chunk()
            await it.post("/streams/s", "DELETE")


async def test_a_carriage_return_does_not_end_a_line_of_an_event(tmp_path):
    async with streaming(tmp_path) as it:
        client = await it.connection()
        body = b'{"streamId": "s", "message": [1,\r\r2,\r"a\\rb"]}'
        head = b"POST /streams/send HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
        assert (await client.ask(head % len(body) + body)).status == 200
        listener = await listening(it, "streamId=s")
        text = ""
        while "data: " not in text:
            text += (await listener._chunk()).decode()

        assert "\r" not in text
        assert json.loads(text.split("data: ")[1])["message"] == [1, 2, "a\rb"]


async def test_every_listener_gets_what_is_handed_over(tmp_path):
    async with streaming(tmp_path) as it:
        await it.send("s", 0, inMemoryStreamSize=0, timeout="1ms")
        listeners = [await listening(it, "streamId=s") for _ in range(2)]
        for n in range(3):
            await until(lambda: it.host.table.waiting == 2)
            assert (await it.send("s", n)).status == 200

        assert [await each.messages(3) for each in listeners] == [[0, 1, 2]] * 2


async def test_what_came_for_a_listener_that_goes_is_not_lost(tmp_path):
    async with streaming(tmp_path) as it:
        listener = await listening(it, "streamId=s&consumerId=c")
        await until(lambda: it.host.table.waiting)
        (connection,) = [c for c in it.served.server._http.connections if c._work is not None]
        # It is told in one turn of the loop, and cancelled before it has said so.
        send = asyncio.ensure_future(it.send("s", "kept"))
        await until(lambda: not it.host.table.waiting)
        connection._transport.abort()
        connection.connection_lost(None)
        await send

        assert (await it.receive("s", "consumerId=c&timeout=1s")).json()["message"] == "kept"
        del listener


async def test_listeners_are_no_polls(tmp_path, monkeypatch):
    monkeypatch.setattr(stream_events, "KEEP_ALIVE_MS", 1)
    async with streaming(tmp_path) as it:
        listener = await listening(it, "streamId=s")
        for _ in range(3):
            assert await listener._chunk()
        await it.send("s", 1)
        await listener.messages(1)
        samples = await scrape(it.owner)

        assert value(samples, "stream_poll_timeouts_total") == 0
        assert value(samples, "stream_polls_answered_total") == 0
        assert value(samples, "stream_received_messages_total") == 1


async def test_polls_answered_from_the_store_count(tmp_path):
    async with streaming(tmp_path) as it:
        for n in range(3):
            await it.store("s", n)
        for _ in range(2):
            await it.receive("s", "resumeToken=earliest&limit=3")
        token = (await it.receive("s", "resumeToken=earliest")).json()["resumeToken"]
        await it.receive("s", f"resumeToken={token}")
        samples = await scrape(it.owner)

        assert value(samples, "stream_polls_answered_total") == 4
        assert value(samples, "stream_received_messages_total") == 8


def test_alarms_about_how_many_need_messages_to_speak_of():
    rules = [r for group in yaml.safe_load(ALERTS.read_text())["groups"] for r in group["rules"]]
    ratios = [rule for rule in rules if "ratio" in rule["expr"] and "alert" in rule]

    assert len(ratios) == 2
    for rule in ratios:
        assert "rate(waterclock_stream_sent_messages_total[5m]) >" in rule["expr"]


async def test_a_poll_is_answered_in_its_time_however_slow_the_store_is(tmp_path, monkeypatch):
    async with streaming(tmp_path) as it:
        token = (await it.store("s", 1)).json()["resumeToken"]
        began = asyncio.Event()

        async def hangs(*_: object, **__: object) -> None:
            began.set()
            await asyncio.sleep(3_600)

        monkeypatch.setattr(it.node.persister, "read", hangs)
        for query in (f"resumeToken={token}", "resumeToken=earliest"):
            async with asyncio.timeout(5):
                late = await it.receive("s", f"{query}&timeout=20ms")
            assert (late.status, late.json()["error"]) == (503, "StoreUnavailable")
            assert began.is_set()
