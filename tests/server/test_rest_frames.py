"""A partition in bulk over HTTP: the bytes gRPC gives, at the pace of who reads, and its ends."""

import asyncio
from typing import Any

import pytest

from tests.server.http_client import RawClient, raw_client, until
from tests.server.http_serving import get
from tests.server.served import Served, running_server
from waterclock.client.consumer.fetch import Fetched
from waterclock.model.views import TopicSettings
from waterclock.server.rest.frames import FRAMES_BYTES_MAX, PIECE_BYTES
from waterclock.storage.rewrite import Wanted, rewrites
from waterclock.v1 import broker_pb2 as pb

FRAMES = "/topics/orders/partitions/0/frames"
ENDS = "/topics/orders/ends"


async def fill(it: Served) -> int:
    """Publish small, large and scheduled messages; return where the partition ends."""
    for number in range(40):
        await it.publish(b"%d" % number)
    await it.publish(b"large" * 500_000)
    late = pb.Message(message_id=b"late", value=b"x", due_ms=4_000_000_000_000)
    await it.broker.Publish(pb.PublishRequest(topic="orders", message=late))
    await it.publish(b"y" * 100_000)
    await it.publish(b"last")
    return it.node.topics.get("orders").partition(0).store.acknowledged_end


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"offset": 7},
        {"offset": 3, "end_offset": 12},
        {"offset": 5, "end_offset": 5},
        {"deliverable_only": True},
        {"bytes_max": 1},
        {"bytes_max": 1_000, "offset": 1},
        {"offset": 40, "bytes_max": 10},
        {"offset": 44},
    ],
)
async def test_the_answer_is_what_fetch_gives(tmp_path, asked):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        assert await fill(it) == 44
        response = await it.broker.Fetch(pb.FetchRequest(topic="orders", **asked))
        names = {"end_offset": "endOffset", "bytes_max": "bytesMax"}
        names["deliverable_only"] = "deliverableOnly"
        query = "&".join(f"{names.get(k, k)}={str(v).lower()}" for k, v in asked.items())
        answer = await client.get(f"{FRAMES}?{query}")

        assert answer.status == 200
        assert answer.body == response.frames
        assert offsets_of(answer.headers) == (
            response.next_offset,
            response.start_offset,
            response.end_offset,
        )
        assert answer.headers["content-type"] == "application/vnd.waterclock.frames"


def offsets_of(headers: dict[str, str]) -> tuple[int, ...]:
    names = ("next", "start", "end")
    return tuple(int(headers[f"waterclock-{name}-offset"]) for name in names)


async def test_a_whole_partition_is_read_step_by_step(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        end = await fill(it)
        raw, at = b"", 0
        while at < end:
            path = f"{FRAMES}?offset={at}&bytesMax=2000&deliverableOnly=true"
            answer = await client.get(path)
            at = offsets_of(answer.headers)[0]
            raw += answer.body
        found = Fetched(raw, at, 0, end).table().column("offset").to_pylist()
        assert found == [*range(41), 42, 43]


async def test_who_is_early_waits_for_the_first_frame(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        await it.publish(b"a")
        client.send(get(f"{FRAMES}?offset=1&waitMs=30000"))
        await until(lambda: it.home.calls._waits)
        await it.publish(b"b")
        answer = await client.answer()
        assert offsets_of(answer.headers) == (2, 0, 2)
        assert Fetched(answer.body, 2, 0, 2).table().column("value").to_pylist() == [b"b"]

        nothing = await client.get(f"{FRAMES}?offset=2&waitMs=1")
        assert (nothing.status, nothing.body) == (200, b"")
        assert offsets_of(nothing.headers) == (2, 0, 2)


async def test_offsets_outside_the_log_are_told_with_its_bounds(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        await it.publish(b"a", allow_duplicate=True)
        store = it.node.topics.get("orders").partition(0).store
        now_ms = it.node.clock.now_ms()
        store.roll(now_ms)
        await it.publish(b"b", allow_duplicate=True)
        far_ms = now_ms + 100 * 86_400_000  # its id need not be remembered any more
        wanted = Wanted(keep_from=store.segments[-1].base_offset)
        for job in rewrites(store, wanted, now_ms=far_ms):
            job.run()
            job.finish()
        for offset in (0, 3):
            answer = await client.get(f"{FRAMES}?offset={offset}")
            response = answer.json()
            assert (answer.status, response["error"]) == (404, "OffsetOutOfRange")
            assert (response["offset"], response["start"], response["end"]) == (offset, 1, 2)


@pytest.mark.parametrize(
    ("path", "status", "field"),
    [
        (f"{FRAMES}?offset=-1", 400, "offset"),
        (f"{FRAMES}?bytesMax=0", 400, "bytesMax"),
        (f"{FRAMES}?bytesMax={FRAMES_BYTES_MAX + 1}", 400, "bytesMax"),
        (f"{FRAMES}?waitMs=60001", 400, "waitMs"),
        (f"{FRAMES}?bytes_max=1", 400, "bytes_max"),
        ("/topics/orders/partitions/9/frames", 404, None),
        ("/topics/none/partitions/0/frames", 404, None),
        (f"{ENDS}?beyond=0", 400, "beyond"),
        (f"{ENDS}?beyond=0:1;1:2", 400, "beyond"),
        (f"{ENDS}?beyond=0:-1", 400, "beyond"),
        ("/topics/none/ends", 404, None),
    ],
)
async def test_what_is_wrong_is_named(tmp_path, path, status, field):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        await it.publish(b"a")
        answer = await client.get(path)
        assert (answer.status, answer.json().get("field")) == (status, field)


async def test_head_tells_the_length_and_no_more(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        await it.publish(b"a")
        body = (await client.get(FRAMES)).body
        client.send(f"HEAD {FRAMES} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        head = await client.answer(to_head=True)
        assert int(head.headers["content-length"]) == len(body)
        assert (await client.get(FRAMES)).body == body


async def test_old_clients_are_told_the_length_too(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        await it.publish(b"a")
        client.send(get(FRAMES, version="1.0"))
        answer = await client.answer()
        assert len(answer.body) == int(answer.headers["content-length"])
        assert await client.is_closed()


async def stalled(it: Served, client: RawClient) -> Any:
    """Ask for more than sockets hold, twice, and read nothing; return the connection, stuck."""
    for number in range(3):
        await it.publish(b"%d" % number * 9_000_000)
    client.pause_reading()
    client.send(get(f"{FRAMES}?bytesMax={FRAMES_BYTES_MAX}") * 2)
    (connection,) = it.server._http.connections
    await until(lambda: connection._is_blocked)
    return connection


async def test_who_reads_nothing_holds_one_piece_at_most(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        connection = await stalled(it, client)
        assert connection._transport.get_write_buffer_size() <= PIECE_BYTES
        client.resume_reading()
        first, second = await client.answer(), await client.answer()
        assert first.body == second.body
        assert len(first.body) > 27_000_000


async def test_an_answer_whose_length_was_told_is_whole_though_the_node_stops(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        await stalled(it, client)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(it.server.stop())
            await until(lambda: it.server._http.is_stopping)
            client.resume_reading()
            assert len((await client.answer()).body) > 27_000_000


def ends(answer: Any) -> list[tuple[int, int, int]]:
    assert answer.status == 200, answer
    response = answer.json()["partitions"]
    return [(each["partition"], each["startOffset"], each["endOffset"]) for each in response]


async def test_ends_are_told_at_once_if_anything_is_new(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        await it.node.topics.create("orders", TopicSettings(partitions=2))
        await it.publish(b"a", b"b", partition=1)
        known = [(0, 0, 0), (1, 0, 2)]
        for query in ("", "?waitMs=60000", "?beyond=0:0,1:1&waitMs=60000"):
            assert ends(await client.get(ENDS + query)) == known
        assert ends(await client.get(f"{ENDS}?beyond=1:2&waitMs=60000")) == known
        assert ends(await client.get(f"{ENDS}?beyond=0:0,1:2,7:1&waitMs=1")) == known


async def test_ends_wait_until_one_has_moved(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        await it.node.topics.create("orders", TopicSettings(partitions=2))
        hosts = it.node.topics.get("orders").partitions
        client.send(get(f"{ENDS}?beyond=0:0,1:1&waitMs=60000"))
        await until(lambda: it.home.calls._waits)
        await it.publish(b"known already", partition=1)
        await it.publish(b"news", partition=0)
        assert (0, 0, 1) in ends(await client.answer())
        assert [host._parts()[1]._listeners for host in hosts] == [[], []]


async def test_ends_tell_of_a_new_partition_and_of_a_topic_that_is_gone(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        await it.node.topics.create("orders", TopicSettings(partitions=1))
        client.send(get(f"{ENDS}?beyond=0:0&waitMs=60000"))
        await until(lambda: it.home.calls._waits)
        await it.node.topics.update("orders", TopicSettings(partitions=2))
        assert ends(await client.answer()) == [(0, 0, 0), (1, 0, 0)]

        client.send(get(f"{ENDS}?beyond=0:0,1:0&waitMs=60000"))
        await until(lambda: it.home.calls._waits)
        await it.node.topics.delete("orders")
        assert (await client.answer()).status == 404


async def test_who_waits_is_told_that_the_node_stops(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        await it.publish(b"a")
        async with raw_client(it.server.http_port) as other:
            client.send(get(f"{ENDS}?beyond=0:1&waitMs=60000"))
            other.send(get(f"{FRAMES}?offset=1&waitMs=60000"))
            await until(lambda: len(it.home.calls._waits) == 2)
            await it.server.stop()
            for waiting in (client, other):
                answer = await waiting.answer()
                assert (answer.status, answer.json()["error"]) == (503, "Stopping")


async def test_a_partition_that_cannot_be_opened_has_its_problem(tmp_path):
    async with running_server(tmp_path) as it:
        await it.publish(b"a")
    log = next((tmp_path / "topics").glob("orders-*/0/log"))
    log.rename(log.with_name("elsewhere"))
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        (response,) = (await client.get(ENDS)).json()["partitions"]
        assert (response["startOffset"], response["endOffset"]) == (-1, -1)
        assert "missing" in response["problem"]
        assert (await client.get(FRAMES)).status == 409
