"""Stored streams in replicated partitions: what is shown, and what a change of leader does."""

import asyncio
from pathlib import Path

import pytest

from tests.stores.backend import opened
from tests.stores.servers.replicated import ThreeNodes
from tests.stores.streams import NOW_MS, numbered_records, read_all
from waterclock.model.errors import BadInput, Fenced
from waterclock.node.streams.origin import StreamsOrigin
from waterclock.node.streams.partitions import partition_of_stream
from waterclock.node.streams.requests import StoreRecords, decode_request, encode
from waterclock.node.topics import STREAMS_TOPIC
from waterclock.stores.base import Page, Record, Stored
from waterclock.stores.log.rows import Row

STREAM = next(name for name in map(str, range(99)) if partition_of_stream(name.encode(), 3) == 0)
"""Of the partition that `a` leads at first."""


def three(store: object) -> ThreeNodes:
    assert isinstance(store, ThreeNodes)
    return store


def log_of(store: ThreeNodes) -> bytes:
    return bytes.fromhex(store.cluster.topics["a"].get(STREAMS_TOPIC).log_id(0))


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_readers_at_all_nodes_see_what_is_committed_and_nothing_else(tmp_path):
    async with opened(f"replicated://{tmp_path}") as store:
        nodes = three(store)
        await store.store(STREAM, numbered_records(2), now_ms=NOW_MS)
        nodes.cluster.is_stuck = True
        writing = asyncio.ensure_future(
            nodes.stores["b"].store(STREAM, [Record("x", b"")], now_ms=NOW_MS)
        )
        await turns()

        for each in nodes.stores.values():
            page = await each.read(STREAM, after=0, limit=9, now_ms=NOW_MS)
            assert [message.position for message in page.messages] == [1, 2]
            assert page.last == 2
        assert not writing.done()

        nodes.cluster.go_on()
        assert await writing == [Stored(3, True)]
        page = await nodes.stores["c"].read(STREAM, after=2, limit=9, now_ms=NOW_MS)
        assert [message.message_id for message in page.messages] == ["x"]


async def test_another_leader_goes_on_with_positions_ids_and_times(tmp_path):
    async with opened(f"replicated://{tmp_path}") as store:
        nodes = three(store)
        await store.store(STREAM, numbered_records(3, expires_ms=NOW_MS + 9), now_ms=NOW_MS)
        await store.store(STREAM, [Record("kept", b"k")], now_ms=NOW_MS)
        before = await read_all(store, STREAM)

        nodes.cluster.lead(log_of(nodes), "b")
        await nodes.cluster.settled()

        assert await read_all(store, STREAM) == before
        repeat = await store.store(STREAM, [Record("1", b""), Record("new", b"")], now_ms=NOW_MS)
        assert repeat == [Stored(2, False), Stored(5, True)]
        assert await nodes.stores["b"].purge(now_ms=NOW_MS + 9) == 3
        assert [message.message_id for message in await read_all(store, STREAM)] == ["kept", "new"]


async def test_what_a_deposed_leader_wrote_and_nobody_committed_is_stored_by_the_next(tmp_path):
    async with opened(f"replicated://{tmp_path}") as store:
        nodes = three(store)
        await store.store(STREAM, numbered_records(2), now_ms=NOW_MS)
        nodes.cluster.is_stuck = True
        writing = asyncio.ensure_future(
            nodes.stores["a"].store(STREAM, [Record("x", b"")], now_ms=NOW_MS)
        )
        await turns()
        # Under its old epoch the deposed node has a log that would be cut: it is away from now on.
        log = nodes.cluster.logs[log_of(nodes)]
        nodes.cluster.lead(log_of(nodes), "b")
        del log.replicas["a"]
        nodes.cluster.go_on()

        # Another comes first, and gets the position that the first one had on the old leader.
        other = nodes.stores["b"].store(STREAM, [Record("y", b"")], now_ms=NOW_MS)
        assert await other == [Stored(3, True)]
        assert await writing == [Stored(4, True)], "in doubt, so it counts as new"
        page = await nodes.stores["c"].read(STREAM, after=2, limit=9, now_ms=NOW_MS)
        assert [message.message_id for message in page.messages] == ["y", "x"]


async def test_a_lead_that_was_lost_and_won_again_acknowledges_nothing_of_before(tmp_path):
    async with opened(f"replicated://{tmp_path}") as store:
        nodes = three(store)
        await store.store(STREAM, numbered_records(2), now_ms=NOW_MS)
        cluster, log_id = nodes.cluster, log_of(nodes)
        cluster.is_stuck = True
        partition = nodes.stores["a"].partitions
        writing = asyncio.ensure_future(
            partition.perform(StoreRecords(0, STREAM, [Record("x", b"")], NOW_MS))
        )
        host = cluster.logs[log_id].replicas["a"]
        await turns(2)  # it is written, and the caller does not wait for the flush yet
        host.step_down("another leads")
        cluster.lead(log_id, "a")
        cluster.go_on()

        with pytest.raises(Fenced, match="lost the lead of these streams"):
            await writing


async def test_rows_of_a_node_that_was_alone_come_once_with_their_positions(tmp_path):
    alone = tmp_path / "alone"
    async with opened(f"log://{alone}") as old:
        for stream in ("s", "gone"):
            await old.store(stream, numbered_records(5), now_ms=NOW_MS)
        await old.delete("gone")
        await old.delete("s", older_than_ms=NOW_MS)
        kept = await read_all(old, "s")

    async with opened(f"replicated://{tmp_path}/nodes") as store:
        nodes = three(store)
        batches = await rows_in(nodes, alone)
        again = batches[:1] * 2 + batches  # as if it had stopped half-way, twice
        for rows in again:
            await nodes.stores["b"].take_over(rows)

        assert await read_all(store, "s") == kept
        assert await store.read("gone", after=0, limit=9, now_ms=NOW_MS) == Page([], 5)
        assert await store.store("s", [Record("3", b""), Record("x", b"")], now_ms=NOW_MS) == [
            Stored(4, False),
            Stored(6, True),
        ]
    assert not alone.exists()


async def rows_in(nodes: ThreeNodes, folder: Path) -> list[list[Row]]:
    origin = StreamsOrigin(nodes.stores["a"].origin.metadata, "a", folder)
    return [rows async for rows in origin.batches()]


def test_requests_of_other_nodes_are_read_as_they_were_written():
    request = StoreRecords(3, "s", [Record("a", b"\x00\xff", None), Record("b", b"", 7)], NOW_MS)

    assert decode_request(encode(request)) == request
    assert encode(request).hex() == (
        "95" + "a5" + b"store".hex() + "03" + "a1" + b"s".hex()
        + "92" + "93" + "a161" + "c40200ff" + "c0" + "93" + "a162" + "c400" + "07"
        + "cf000001a3185c5000"
    )  # fmt: skip
    with pytest.raises(BadInput, match="Nodes/Streams"):
        decode_request(b"\x91\xa5other")
