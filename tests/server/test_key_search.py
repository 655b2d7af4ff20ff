"""Messages of a key, looked for in a partition: as they are found, and how far that went."""

import json
from base64 import b64encode
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from grpc import StatusCode
from grpc.aio import EOF, AioRpcError
from hypothesis import given
from hypothesis import strategies as st
from numpy import arange, int64

from tests.server.grpc_secure import secure_server
from tests.server.http_client import RawClient, raw_client
from tests.server.served import Served, failure, running_server
from waterclock.client.consumer.rows import decoded, offsets_of
from waterclock.log.schema import from_messages
from waterclock.model.message import Message
from waterclock.node.replay import key_search
from waterclock.node.replay.key_search import KeySearch
from waterclock.node.replay.replays import ReplayBatch
from waterclock.node.replay.snapshot_files import SnapshotBatch
from waterclock.v1 import broker_pb2 as pb

PATH = "/topics/orders/partitions/0/messages"


async def found(client: RawClient, query: str) -> tuple[list[Any], dict[str, Any]]:
    """Return the offsets of the messages, and the last line."""
    answer = await client.get(f"{PATH}?{query}")
    assert answer.status == 200, answer
    *messages, last = [json.loads(line) for line in answer.body.splitlines()]
    return [one["offset"] for one in messages], last


async def found_over_grpc(it: Served, **asked: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return the same of gRPC, whatever the format."""
    both = []
    for format_ in (pb.FORMAT_ARROW, pb.FORMAT_MESSAGES):
        request = pb.FindMessagesRequest(topic="orders", format=format_, **asked)
        call, answers = it.broker.FindMessages(request), []
        while (answer := await call.read()) is not EOF:
            answers.append(answer)
        *events, last = answers
        offsets: list[int] = []
        for batch in (event.batch for event in events):
            offsets += batch.offsets or offsets_of(batch.bounds)
            if format_ == pb.FORMAT_MESSAGES:
                assert {row.key for row in batch.messages.rows} == {asked["key"]}
            else:
                assert {*decoded(batch.messages.arrow).column("key").to_pylist()} == {asked["key"]}
        end = last.finished
        counts = ended(end.messages, end.looked_at, end.next_offset, is_at_end=end.is_at_end)
        both.append((offsets, counts))
    assert both[0] == both[1]
    return both[0]


async def publish(client: RawClient, *keys: str | None) -> None:
    for key in keys:
        sent = {"value": "v"} if key is None else {"value": "v", "key": key}
        assert (await client.post("/topics/orders/messages", sent)).status == 201


def ended(messages: int, looked_at: int, next_offset: int, *, is_at_end: bool) -> dict[str, Any]:
    counts = {"messages": messages, "lookedAt": looked_at, "nextOffset": next_offset}
    return {"finished": True, **counts, "isAtEnd": is_at_end}


async def test_messages_of_a_key_are_found_with_how_far_it_was_looked(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        await publish(client, "ada", "bob", None, "ada", "ä", "bob")

        assert await found(client, "key=ada") == ([0, 3], ended(2, 6, 6, is_at_end=True))
        assert await found(client, "key=ada&offset=1") == ([3], ended(1, 5, 6, is_at_end=True))
        assert await found(client, "key=" + quote("ä")) == ([4], ended(1, 6, 6, is_at_end=True))
        in_base64 = "keyBase64=" + quote(b64encode("ä".encode()).decode())
        assert await found(client, in_base64) == ([4], ended(1, 6, 6, is_at_end=True))
        assert await found(client, "key=eve") == ([], ended(0, 6, 6, is_at_end=True))
        assert await found(client, "key=") == ([], ended(0, 6, 6, is_at_end=True))
        # It stops behind the last one it was to find.
        assert await found(client, "key=ada&count=1") == ([0], ended(1, 1, 1, is_at_end=False))
        rest = await found(client, "key=ada&count=1&offset=1")
        assert rest == ([3], ended(1, 3, 4, is_at_end=False))
        # It does not look behind the offset at which it is to end.
        assert await found(client, "key=ada&end=3") == ([0], ended(1, 6, 3, is_at_end=False))
        assert await found(client, "key=ada&end=4&offset=3") == (
            [3],
            ended(1, 3, 4, is_at_end=False),
        )
        assert await found(client, "key=ada&end=9") == ([0, 3], ended(2, 6, 6, is_at_end=True))
        assert await found(client, "key=ada&offset=6") == ([], ended(0, 0, 6, is_at_end=True))


async def test_over_grpc_the_same_is_found(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        await publish(client, "ada", "bob", None, "ada", "ä", "bob")

        asked: list[tuple[str, dict[str, Any]]] = [
            ("key=ada", {"key": b"ada"}),
            ("key=ada&offset=1", {"key": b"ada", "offset": 1}),
            ("key=" + quote("ä"), {"key": "ä".encode()}),
            ("key=eve", {"key": b"eve"}),
            ("key=", {"key": b""}),
            ("key=ada&count=1", {"key": b"ada", "count": 1}),
            ("key=ada&count=1&offset=1", {"key": b"ada", "count": 1, "offset": 1}),
            ("key=ada&end=3", {"key": b"ada", "end_offset": 3}),
            ("key=ada&end=4&offset=3", {"key": b"ada", "end_offset": 4, "offset": 3}),
            ("key=ada&end=9", {"key": b"ada", "end_offset": 9}),
            ("key=ada&offset=6", {"key": b"ada", "offset": 6}),
        ]
        for query, fields in asked:
            assert await found_over_grpc(it, **fields) == await found(client, query), query


async def test_one_request_looks_at_so_many_and_another_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(key_search, "ROWS_MAX", 1)
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        # Too large to go out together, so each is a batch of its own.
        for key in ("bob", "ada", "bob", "ada"):
            sent = {"value": "v" * 700_000, "key": key}
            await client.post("/topics/orders/messages", sent)
        pages, at, is_at_end = [], 0, False
        while not is_at_end:
            offsets, last = await found(client, f"key=ada&offset={at}")
            assert await found_over_grpc(it, key=b"ada", offset=at) == (offsets, last)
            assert last["nextOffset"] > at, "it goes on"
            at, is_at_end = last["nextOffset"], last["isAtEnd"]
            pages.append(offsets)

    assert pages == [[], [1], [], [3]]


async def test_what_is_wrong_with_a_search_is_named(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        await publish(client, "ada")
        refused = await client.get(f"{PATH}?key=ada&count=-1")
        no_base64 = await client.get(f"{PATH}?keyBase64=x")
        before = await found(client, "key=ada&offset=1&end=1")
        beyond = await client.get(f"{PATH}?key=ada&offset=7")

    assert (refused.status, refused.json()["field"]) == (400, "count")
    assert (no_base64.status, no_base64.json()["field"]) == (400, "keyBase64")
    assert before == ([], ended(0, 0, 1, is_at_end=True))
    assert (beyond.status, beyond.json()["error"]) == (404, "OffsetOutOfRange")


async def refusal(it: Served, **asked: Any) -> tuple[StatusCode, str]:
    request = pb.FindMessagesRequest(**({"topic": "orders", "key": b"ada"} | asked))
    code, details, _ = await failure(it.broker.FindMessages(request).read())
    return code, details


async def test_what_is_wrong_with_a_search_is_named_over_grpc(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        await publish(client, "ada")

        wrong = StatusCode.INVALID_ARGUMENT
        request = pb.FindMessagesRequest(topic="orders")
        code, details, _ = await failure(it.broker.FindMessages(request).read())
        assert (code, details) == (wrong, "key: is missing")
        for field in ("count", "end_offset", "offset", "partition"):
            code, details = await refusal(it, **{field: -1})
            assert code is wrong
            assert details.startswith(f"{field} must not be negative")
        assert (await refusal(it, format=7))[0] is wrong
        assert (await refusal(it, offset=7))[0] is StatusCode.OUT_OF_RANGE
        assert (await refusal(it, topic="nobody"))[0] is StatusCode.NOT_FOUND
        assert (await refusal(it, partition=9))[0] is StatusCode.NOT_FOUND


async def test_who_may_not_read_a_topic_finds_nothing_in_it(tmp_path):
    path = "/waterclock.v1.Broker/FindMessages"
    async with secure_server(tmp_path) as it:
        message = pb.Message(value=b"v", key=b"ada")
        sent = pb.PublishRequest(topic="orders", message=message)
        await it.unary("/waterclock.v1.Broker/Publish", sent, it.admin)
        request = pb.FindMessagesRequest(topic="orders", key=b"ada").SerializeToString()

        async def asked(who: Any) -> StatusCode:
            call = it.stream(path, who)
            await call.write(request)
            await call.done_writing()
            with suppress(AioRpcError):
                while await call.read() is not EOF:
                    pass
            code: StatusCode = await call.code()
            return code

        assert await asked(await it.add("reader", read="orders")) is StatusCode.OK
        writer = await it.add("writer", publish="orders", consume="orders")
        assert await asked(writer) is StatusCode.PERMISSION_DENIED


keys = st.sampled_from([None, b"", b"a", b"b"])


@given(st.lists(st.lists(keys, min_size=1, max_size=5), max_size=5), st.integers(0, 4))
def test_pages_of_a_search_are_all_messages_of_the_key(parts, count):
    batches, first = [], 0
    for part in parts:
        rows = from_messages([Message(b"v", key=key) for key in part])
        offsets = arange(first, first + len(part), dtype=int64)
        first += len(part)
        batches.append(ReplayBatch(0, SnapshotBatch(offsets, offsets, rows), first))
    everything = [key for part in parts for key in part]
    wanted = [offset for offset, key in enumerate(everything) if key == b"a"]

    search = KeySearch(b"a", start=0, count=count)
    picked: list[int] = []
    for batch in batches:
        one = search.pick(batch)
        picked += [] if one is None else [o for span in one.messages.ranges for o in range(*span)]
        if search.is_over:
            break

    assert picked == wanted[: count or None]
    assert search.found == len(picked)
    is_enough = bool(count) and len(wanted) >= count
    assert search.next_offset == (picked[-1] + 1 if is_enough else first)
    assert search.rows == search.next_offset
