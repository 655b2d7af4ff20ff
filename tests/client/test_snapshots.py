"""Snapshots and compacted replays through the client, and to those who ask for single messages."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from grpc.aio import EOF

from tests.node.snapshot_writing import Row, latest, write_snapshot
from tests.server.served import Served, running_server
from waterclock.client.client import Client, connect
from waterclock.model.errors import BadInput, Damaged, UnknownTopic
from waterclock.model.message import Message
from waterclock.node.replay.snapshots import FOLDER
from waterclock.v1 import broker_pb2 as pb

ROWS = [
    Row(n, b"id-%d" % n, b"k%d" % (n % 40), b"v%d" % n, [("h", b"%d" % n)], None, 1_000 + n)
    for n in range(100)
]
END = 90


@asynccontextmanager
async def compacted(folder: Path) -> AsyncIterator[tuple[Served, Client, Path]]:
    """Serve a topic with a snapshot that is in use."""
    async with running_server(folder / "data") as it, connect(it.server.addresses.grpc) as client:
        await client.topics.create("orders", partitions=1)
        messages = [
            Message(row.value, key=row.key, message_id=row.message_id, headers=dict(row.headers))
            for row in ROWS
        ]
        await client.publish_many("orders", messages)
        rows = latest(ROWS[:END])
        snapshot = write_snapshot(
            folder / "data" / FOLDER, {0: (0, END, rows)}, file_rows=15, group_rows=4
        )
        await client.snapshots.register("orders", snapshot)
        yield it, client, snapshot


EXPECTED = [*latest(ROWS[:END]), *ROWS[END:]]


async def test_a_compacted_replay_has_all_a_message_has(tmp_path):
    async with compacted(tmp_path) as (_, client, _):
        got = [message async for message in client.replay("orders", compacted=True)]
        assert [(m.offset, m.id, m.key, m.value) for m in got] == [row[:4] for row in EXPECTED]
        assert [m.headers for m in got] == [dict(row.headers) for row in EXPECTED]
        old = [m for m in got if m.offset < END]
        assert [m.appended for m in old] == [
            datetime.fromtimestamp(row.append_ms / 1_000, UTC) for row in latest(ROWS[:END])
        ]
        plain = [message.offset async for message in client.replay("orders")]
        assert plain == list(range(100))


async def test_a_named_one_goes_on_where_it_was_left(tmp_path):
    async with compacted(tmp_path) as (_, client, _):
        seen: list[int] = []
        for batches in (3, 2, 1_000):
            count = 0
            replay = client.replay("orders", compacted=True, name="r")
            # Who takes the next batch is done with the last.
            async for batch in replay.batches():
                if count == batches:
                    break
                seen += batch.offsets
                count += 1
        # Of the last report before a break nobody knows whether it was heard.
        assert list(dict.fromkeys(seen)) == [row.offset for row in EXPECTED]
        assert len(seen) < len(EXPECTED) + 2 * 8


async def test_single_messages_come_with_their_offsets_too(tmp_path):
    async with compacted(tmp_path) as (it, _, _):
        stream = it.broker.Replay()
        begin = pb.ReplayRequest.Begin(topic="orders", compacted=True)
        begin.format = pb.FORMAT_MESSAGES
        await stream.write(pb.ReplayRequest(begin=begin))
        await stream.done_writing()
        found = []
        while (response := await stream.read()) is not EOF:
            bounds = response.batch.bounds
            spans = zip(bounds[::2], bounds[1::2], strict=True)
            offsets = [offset for start, end in spans for offset in range(start, end)]
            rows = response.batch.messages.rows
            found += [(o, m.value) for o, m in zip(offsets, rows, strict=True)]
        assert found == [(row.offset, row.value) for row in EXPECTED]


async def test_snapshots_are_listed_and_deleted(tmp_path):
    async with compacted(tmp_path) as (_, client, folder):
        (info,) = await client.snapshots.list("orders")
        assert (info.topic, info.name, info.folder) == ("orders", "s1", str(folder))
        assert info.rows == 40
        part = info.partitions[0]
        assert (part.partition, part.start_offset, part.end_offset, part.files) == (
            0,
            0,
            END,
            3,
        )
        assert part.size_bytes == sum(f.stat().st_size for f in folder.glob("*/*"))
        assert await client.snapshots.delete("orders", "s1")
        assert not await client.snapshots.delete("orders", "s1")
        assert len([m async for m in client.replay("orders", compacted=True)]) == 100


async def test_problems_come_as_what_they_are(tmp_path):
    async with compacted(tmp_path) as (_, client, folder):
        with pytest.raises(UnknownTopic):
            await client.snapshots.list("none")
        with pytest.raises(BadInput, match="absolute"):
            await client.snapshots.register("orders", "here")
        with pytest.raises(Damaged, match="no such file"):
            await client.snapshots.register("orders", tmp_path / "data" / FOLDER / "gone")
        with pytest.raises(BadInput, match=r"node\.snapshot_folders"):
            await client.snapshots.register("orders", tmp_path / "gone")
        with pytest.raises(BadInput, match="compacted"):
            async for _ in client.replay("orders", compacted=True, offset=3):
                pass
        max(folder.glob("*/*.parquet")).unlink()
        with pytest.raises(Damaged, match="begin a new replay"):
            async for _ in client.replay("orders", compacted=True).batches():
                pass
