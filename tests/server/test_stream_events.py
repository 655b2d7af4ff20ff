"""Streams as server-sent events: every message once, resumed by its id, told of what is lost."""

import json
from typing import Any, NamedTuple

from tests.server.http_client import RawClient, until
from tests.server.test_streams_api import Streaming, streaming


class Event(NamedTuple):
    id: str
    name: str
    data: Any


class Listener:
    """Reads events from one connection."""

    def __init__(self, client: RawClient) -> None:
        self._client = client
        self._text = ""

    async def events(self, count: int) -> list[Event]:
        found: list[Event] = []
        while len(found) < count:
            while "\n\n" not in self._text:
                self._text += (await self._chunk()).decode()
            block, _, self._text = self._text.partition("\n\n")
            fields = dict(line.split(": ", 1) for line in block.split("\n") if line[0] != ":")
            if "data" in fields:
                data = json.loads(fields["data"])
                found.append(Event(fields.get("id", ""), fields.get("event", "message"), data))
        return found

    async def messages(self, count: int) -> list[Any]:
        return [event.data["message"] for event in await self.events(count)]

    async def _chunk(self) -> bytes:
        size = int(await self._client.reader.readline(), 16)
        data = await self._client.reader.readexactly(size + 2)
        return data[:-2]

    async def is_ended(self) -> bool:
        return await self._chunk() == b""


async def listening(it: Streaming, query: str, *, last_id: str = "") -> Listener:
    client = await it.connection()
    header = f"Last-Event-ID: {last_id}\r\n" if last_id else ""
    client.send(f"GET /streams/events?{query} HTTP/1.1\r\nHost: localhost\r\n{header}\r\n".encode())
    head = (await client.reader.readuntil(b"\r\n\r\n")).decode()
    assert head.startswith("HTTP/1.1 200")
    assert "Content-Type: text/event-stream" in head
    return Listener(client)


async def test_every_listener_gets_every_message(tmp_path):
    async with streaming(tmp_path) as it:
        await it.send("s", 0)
        one, other = [await listening(it, "streamId=s") for _ in range(2)]
        assert await one.messages(1) == [0]
        await it.send("s", 1)
        await it.send("s", 2)

        assert await one.messages(2) == [1, 2]
        assert await other.messages(3) == [0, 1, 2]


async def test_a_listener_goes_on_where_it_was(tmp_path):
    async with streaming(tmp_path) as it:
        for n in range(4):
            await it.send("s", {"n": n})
        first, second, *_ = await (await listening(it, "streamId=s")).events(4)
        again = await listening(it, "streamId=s", last_id=second.id)
        by_token = await listening(it, f"streamId=s&resumeToken={first.id}")

        assert await again.messages(2) == [{"n": 2}, {"n": 3}]
        assert await by_token.messages(3) == [{"n": 1}, {"n": 2}, {"n": 3}]


async def test_what_is_lost_is_told_and_the_rest_follows(tmp_path):
    async with streaming(tmp_path) as it:
        await it.send("s", 0, inMemoryStreamSize=2)
        [first] = await (await listening(it, "streamId=s")).events(1)
        for n in range(1, 5):
            await it.send("s", n)
        gone, *rest = await (await listening(it, "streamId=s", last_id=first.id)).events(3)

        assert (gone.name, gone.data) == ("gone", {"missed": 2})
        assert [event.data["message"] for event in rest] == [3, 4]


async def test_stored_messages_are_replayed_and_then_followed(tmp_path):
    async with streaming(tmp_path) as it:
        for n in range(3):
            await it.store("s", n)
    async with streaming(tmp_path) as it:
        listener = await listening(it, "streamId=s")
        [first, *_] = await listener.events(3)
        await until(lambda: it.host.table.waiting)
        await it.store("s", 3)
        again = await listening(it, "streamId=s", last_id=first.id)

        assert await listener.messages(1) == [3]
        assert await again.messages(3) == [1, 2, 3]


async def test_a_named_consumer_keeps_its_place_between_connections(tmp_path):
    async with streaming(tmp_path) as it:
        for n in range(2):
            await it.send("s", n)
        listener = await listening(it, "streamId=s&consumerId=me")
        assert await listener.messages(2) == [0, 1]
        listener._client.writer.close()
        await until(lambda: it.host.table.waiting == 0)
        await it.send("s", 2)

        assert await (await listening(it, "streamId=s&consumerId=me")).messages(1) == [2]


async def test_a_named_consumer_that_brings_a_position_goes_on_from_there(tmp_path):
    async with streaming(tmp_path) as it:
        for n in range(3):
            await it.send("s", n)
        [first, *_] = await (await listening(it, "streamId=s&consumerId=me")).events(3)
        again = await listening(it, "streamId=s&consumerId=me", last_id=first.id)
        assert await again.messages(2) == [1, 2]
        await it.send("s", 3)
        assert await again.messages(1) == [3]


async def test_latest_begins_with_what_comes(tmp_path):
    async with streaming(tmp_path) as it:
        await it.send("s", "old")
        listener = await listening(it, "streamId=s&resumeToken=latest")
        await until(lambda: it.host.table.waiting)
        await it.send("s", "new")

        assert await listener.messages(1) == ["new"]


async def test_a_message_over_several_lines_is_one_event(tmp_path):
    async with streaming(tmp_path) as it:
        client = await it.connection()
        body = b'{"streamId": "s", "message": {\n"a": "x\\ny",\n\n"b": [1,\r\n 2]}}'
        head = b"POST /streams/send HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
        await client.ask(head % len(body) + body)
        listener = await listening(it, "streamId=s")

        assert await listener.messages(1) == [{"a": "x\ny", "b": [1, 2]}]


async def test_bad_tokens_are_refused_before_anything_is_streamed(tmp_path):
    async with streaming(tmp_path) as it:
        assert (await it.get("/streams/events?streamId=s&resumeToken=xyz")).status == 400
        await it.send("s", 1)
        [event] = await (await listening(it, "streamId=s")).events(1)
        await it.post("/streams/s", "DELETE")
        gone = await it.get(f"/streams/events?streamId=s&resumeToken={event.id}")
        assert gone.status == 410


async def test_listeners_end_cleanly_when_the_node_stops(tmp_path):
    async with streaming(tmp_path) as it:
        listener = await listening(it, "streamId=s")
        await until(lambda: it.host.table.waiting)
        await it.served.server.stop()

        assert (await listener._chunk()).endswith(b": ping\n\n")
        assert await listener.is_ended()
