"""Compacted replays: the latest of each key from a snapshot, then the log behind it."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.examples import examples
from tests.node.hosts import Hosts, batch_of, opened
from tests.node.snapshot_writing import Row, latest, write_snapshot
from waterclock.model.errors import BadInput, Damaged, Overloaded
from waterclock.model.message import Message
from waterclock.model.views import Position
from waterclock.node.replay import replays as module
from waterclock.node.replay.records import OffsetRange, Request, TimeRange
from waterclock.node.replay.replays import Replay, Replays
from waterclock.node.replay.snapshots import Snapshots
from waterclock.storage.rewrite import Wanted, rewrites

COMPACTED = Request("orders", compacted=True)
PLAIN = Request("orders")


@dataclass
class World:
    """A topic `orders` and what a node needs to replay it."""

    folder: Path
    hosts: Hosts
    snapshots: Snapshots
    replays: Replays

    async def publish(self, rows: Iterable[Row], partition: int = 0) -> None:
        """Publish rows in batches of at most four."""
        left = list(rows)
        host = self.hosts.topics.get("orders").partition(partition)
        for at in range(0, len(left), 4):
            part = left[at : at + 4]
            messages = [Message(r.value, key=r.key, message_id=r.message_id) for r in part]
            appended = await host.publish(batch_of(*messages))
            assert appended.offsets[0] == part[0].offset

    async def register(self, rows: list[Row], end: int, **options: Any) -> Path:
        """Make a snapshot of the rows below an offset, and have it used."""
        left = latest(row for row in rows if row.offset < end)
        folder = write_snapshot(self.folder, {0: (0, end, left)}, **options)
        await self.snapshots.register("orders", str(folder))
        return folder

    def drop_messages(self) -> None:
        """Have retention take every message of the log."""
        host = self.hosts.topics.get("orders").partition(0)
        store, now_ms = host.store, host.clock.now_ms()
        store.roll(now_ms)
        for job in rewrites(store, Wanted(keep_from=store.end), now_ms=now_ms):
            job.run()
            job.finish()


@asynccontextmanager
async def world(folder: Path, partitions: int = 1) -> AsyncIterator[World]:
    async with opened(folder / "data") as hosts:
        snapshots = Snapshots(hosts.topics, hosts.metadata, [folder])
        replays = Replays(hosts.topics, snapshots, hosts.metadata, hosts.clock)
        await snapshots.open()
        await hosts.topic("orders", partitions=partitions)
        yield World(folder, hosts, snapshots, replays)


def rows_of(count: int, keys: int = 3) -> list[Row]:
    return [Row(n, b"id-%d" % n, b"k%d" % (n % keys), b"v%d" % n) for n in range(count)]


async def take(replay: Replay, batches: int = 1_000, *, is_reported: bool = True) -> list[Row]:
    """Return what some batches bring; of the columns, what identifies a message."""
    found = []
    for _ in range(batches):
        batch = await anext(replay, None)
        if batch is None:
            break
        rows = batch.messages.rows()
        offsets = [o for start, end in batch.messages.ranges for o in range(start, end)]
        columns = [rows.column(name).to_pylist() for name in ("message_id", "key", "value")]
        found += [Row(*each) for each in zip(offsets, *columns, strict=True)]
        if is_reported:
            replay.report([(batch.partition, batch.next_offset)])
    return found


async def read(w: World, request: Request = COMPACTED, name: str = "") -> list[Row]:
    replay = await w.replays.begin(request, name=name)
    try:
        return await take(replay)
    finally:
        replay.close()


def state_of(rows: Iterable[Row]) -> dict[bytes | None, bytes | None]:
    """Return what somebody holds who has applied the rows."""
    state: dict[bytes | None, bytes | None] = {}
    for row in rows:
        state[row.key] = row.value
    return {key: value for key, value in state.items() if value is not None}


async def test_the_snapshot_comes_first_then_the_log_behind_it(tmp_path):
    rows = rows_of(10)
    async with world(tmp_path) as w:
        await w.publish(rows)
        await w.register(rows, 8)
        assert await read(w) == [*latest(rows[:8]), *rows[8:]]
        assert await read(w, PLAIN) == rows


async def test_without_a_snapshot_it_is_the_whole_log(tmp_path):
    rows = rows_of(6)
    async with world(tmp_path, partitions=2) as w:
        await w.publish(rows)
        await w.publish(rows[:1], partition=1)
        assert await read(w) == [*rows, rows[0]]
        await w.register(rows, 6)
        assert await read(w) == [*latest(rows), rows[0]]


async def test_it_goes_with_no_other_bounds(tmp_path):
    async with world(tmp_path) as w:
        for bounds in ({"times": TimeRange(0)}, {"offsets": OffsetRange(0)}):
            with pytest.raises(BadInput, match="compacted"):
                await w.replays.begin(Request("orders", compacted=True, **bounds))


async def test_a_named_one_goes_on_in_the_midst_of_a_snapshot(tmp_path):
    rows = rows_of(20, keys=20)
    async with world(tmp_path) as w:
        await w.publish(rows)
        folder = await w.register(rows, 16, file_rows=6, group_rows=2)
        first = await w.replays.begin(COMPACTED, name="r")
        got = await take(first, 4)
        unreported = await take(first, 1, is_reported=False)
        first.close()
        assert [row.offset for row in (*got, *unreported)] == list(range(10))
    # What is wholly behind need not even be there.
    min(folder.glob("*/*.parquet")).unlink()
    async with world(tmp_path) as w:
        (info,) = w.replays.list()
        assert (info.done, info.ends) == ((Position(0, 8),), (Position(0, 20),))
        got += await read(w, Request(""), name="r")
        assert got == rows
        assert w.replays.list()[0].done == (Position(0, 20),)
        assert await read(w, Request(""), name="r") == []


async def test_a_named_one_goes_on_in_the_midst_of_a_row_group(tmp_path):
    rows = rows_of(8, keys=8)
    async with world(tmp_path) as w:
        await w.publish(rows)
        await w.register(rows, 8)
        replay = await w.replays.begin(COMPACTED, name="r")
        assert await take(replay, 1, is_reported=False) == rows
        replay.report([(0, 3)])
        replay.close()
        assert await read(w, Request(""), name="r") == rows[3:]


async def test_one_that_is_through_the_snapshot_needs_it_no_more(tmp_path):
    rows = rows_of(10)
    async with world(tmp_path) as w:
        await w.publish(rows)
        await w.register(rows, 4)
        replay = await w.replays.begin(COMPACTED, name="r")
        assert await take(replay, 1) == latest(rows[:4])
        replay.close()
        await w.snapshots.delete("orders", "s1")
        assert await read(w, Request(""), name="r") == rows[4:]


async def test_a_newer_snapshot_is_not_for_who_has_begun(tmp_path):
    """It would lack the tombstones of keys that were handed out from the older."""

    rows = [*rows_of(4, keys=4), Row(4, b"gone", b"k0", None), Row(5, b"id-5", b"k1", b"new")]
    async with world(tmp_path) as w:
        await w.publish(rows)
        await w.register(rows, 4, snapshot="s1", group_rows=1)
        replay = await w.replays.begin(COMPACTED, name="r")
        got = await take(replay, 2)
        replay.close()
        await w.register(rows, 6, snapshot="s2")
        got += await read(w, Request(""), name="r")
        assert got == rows
        assert state_of(got) == state_of(await read(w))


async def test_a_snapshot_that_is_gone_before_it_begins_is_replaced_by_the_log(tmp_path, caplog):
    rows = rows_of(10)
    async with world(tmp_path) as w:
        await w.publish(rows)
        folder = await w.register(rows, 8)
        next(folder.glob("*/*.parquet")).unlink()
        assert await read(w) == rows
        (folder / "manifest.json").unlink()
        assert await read(w) == rows
    assert caplog.text.count("snapshot_unreadable topic=orders partition=0") == 2


async def test_one_that_breaks_in_the_middle_says_so_and_is_begun_anew(tmp_path):
    """The log cannot stand in for it: retention has taken what is behind, and left no trace."""

    rows = rows_of(12, keys=12)
    async with world(tmp_path) as w:
        await w.publish(rows)
        folder = await w.register(rows, 12, file_rows=4)
        w.drop_messages()
        assert await read(w, PLAIN) == []
        replay = await w.replays.begin(COMPACTED, name="r")
        assert await take(replay, 1) == rows[:4]
        max(folder.glob("*/*.parquet")).unlink()
        with pytest.raises(Damaged, match="begin a new replay"):
            await take(replay)
        replay.close()
        await w.snapshots.delete("orders", "s1")
        with pytest.raises(Damaged, match="not known any more"):
            await read(w, Request(""), name="r")
        await w.replays.delete("r")
        await w.register(rows, 12, snapshot="s2")
        assert await read(w, name="r") == rows


async def test_a_flipped_bit_is_noticed(tmp_path):
    """Of every byte of the values' pages: what comes out is right, from wherever it comes."""

    rows = [row._replace(value=b"v" * 50 + b"%d" % row.offset) for row in rows_of(5, keys=5)]
    async with world(tmp_path) as w:
        await w.publish(rows)
        folder = await w.register(rows, 5)
        (file,) = folder.glob("*/*.parquet")
        whole = file.read_bytes()
        for at in range(0, len(whole), 13):
            file.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
            assert await read(w) == rows, at


async def test_only_so_many_read_snapshots_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "COMPACTED_MAX", 1)

    rows = rows_of(4)
    async with world(tmp_path) as w:
        await w.publish(rows)
        await w.register(rows, 4)
        first = await w.replays.begin(COMPACTED)
        with pytest.raises(Overloaded, match="compacted replays"):
            await w.replays.begin(COMPACTED)
        (await w.replays.begin(PLAIN)).close()
        first.close()
        (await w.replays.begin(COMPACTED)).close()


async def test_one_taken_over_while_it_reads_lets_go(tmp_path):
    rows = rows_of(9, keys=9)
    async with world(tmp_path) as w:
        await w.publish(rows)
        await w.register(rows, 9, group_rows=1)
        first = await w.replays.begin(COMPACTED, name="r")
        got = await take(first, 3)
        second = await w.replays.begin(Request(""), name="r")
        got += await take(second)
        second.close()
        assert got == rows
        assert w.replays._compacted == set()


ROWS = st.lists(
    st.tuples(st.one_of(st.none(), st.binary(max_size=1)), st.sampled_from([None, b"", b"x"])),
    min_size=1,
    max_size=24,
)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Row], int, int, int, list[int]]:
    """Return rows, where the snapshot ends, rows of a file and a group, and where it is broken."""
    rows = [
        Row(offset, b"id-%d" % offset, key, value) for offset, (key, value) in enumerate(draw(ROWS))
    ]
    end = draw(st.integers(0, len(rows)))
    return (
        rows,
        end,
        draw(st.integers(1, 6)),
        draw(st.integers(1, 4)),
        draw(st.lists(st.integers(0, 4), max_size=4)),
    )


@settings(max_examples=examples(40))
@given(histories())
async def test_it_is_the_latest_of_each_key_at_the_snapshot_then_the_tail(history):
    rows, end, file_rows, group_rows, breaks = history

    async def main(folder: Path) -> None:
        async with world(folder) as w:
            await w.publish(rows)
            await w.register(rows, end, file_rows=file_rows, group_rows=group_rows)
            got = []
            for batches in breaks:
                replay = await w.replays.begin(COMPACTED, name="r")
                got += await take(replay, batches)
                replay.close()
            got += await read(w, COMPACTED, name="r")

            assert got == [*latest(rows[:end]), *rows[end:]]
            keyed = [row for row in rows if row.key is not None]
            assert state_of(r for r in got if r.key is not None) == state_of(keyed)

    with TemporaryDirectory() as folder:
        await main(Path(folder))


@settings(max_examples=examples(40))
@given(histories(), st.integers(0, 100), st.sampled_from(["gone", "short", "garbage"]))
async def test_whatever_breaks_the_last_word_about_each_key_is_heard_or_it_says_so(
    history, which, harm
):
    rows, end, file_rows, group_rows, breaks = history
    rows = [row for row in rows if row.key is not None]
    rows = [row._replace(offset=at) for at, row in enumerate(rows)]
    end = min(end, len(rows))

    async def main(folder: Path) -> None:
        async with world(folder) as w:
            await w.publish(rows)
            snapshot = await w.register(rows, end, file_rows=file_rows, group_rows=group_rows)
            replay = await w.replays.begin(COMPACTED)
            got = await take(replay, sum(breaks))
            files = sorted(snapshot.glob("*/*.parquet"))
            if files:
                file = files[which % len(files)]
                data = b"" if harm == "short" else b"?" * file.stat().st_size
                file.unlink()  # one that is being read stays as it is
                if harm != "gone":
                    file.write_bytes(data)
            try:
                got += await take(replay)
            except Damaged:
                assert replay.messages, "nothing was handed out: the log could have been read"
                return
            finally:
                replay.close()
            assert state_of(got) == state_of(rows)
            offsets = [row.offset for row in got]
            assert offsets == sorted(set(offsets))

    with TemporaryDirectory() as folder:
        await main(Path(folder))
