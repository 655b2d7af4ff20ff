"""Messages of a key, looked for in a partition: as they are found, and how far that went."""

import json
from base64 import b64encode
from typing import Any
from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st
from numpy import arange, int64

from tests.server.http_client import RawClient, raw_client
from tests.server.served import running_server
from waterclock.log.schema import from_messages
from waterclock.model.message import Message
from waterclock.node.replay import key_search
from waterclock.node.replay.key_search import KeySearch
from waterclock.node.replay.replays import ReplayBatch
from waterclock.node.replay.snapshot_files import SnapshotBatch

PATH = "/topics/orders/partitions/0/messages"


async def found(client: RawClient, query: str) -> tuple[list[Any], dict[str, Any]]:
    """Return the offsets of the messages, and the last line."""
    answer = await client.get(f"{PATH}?{query}")
    assert answer.status == 200, answer
    *messages, last = [json.loads(line) for line in answer.body.splitlines()]
    return [one["offset"] for one in messages], last


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
