"""What only the log has: rows of its own format, a folder for one process, rewriting."""

import asyncio

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.stores.backend import opened
from tests.stores.streams import NOW_MS, ids_of, numbered_records, read_all
from waterclock.model.errors import (
    FolderInUse,
    ForeignFile,
    FrameDamaged,
    StorageFailed,
    StorageFull,
)
from waterclock.storage.fsyncs import Sync
from waterclock.storage.partition_store import PartitionStore
from waterclock.stores.base import Page, Record, Stored
from waterclock.stores.log import store as log_store
from waterclock.stores.log.rows import (
    MESSAGE,
    Head,
    Row,
    decode_heads,
    decode_ranges,
    encode_ranges,
    encode_rows,
    full_id,
    split_id,
)

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
ROWS = st.lists(
    st.builds(
        Row,
        st.binary(min_size=1, max_size=512),
        st.binary(max_size=256),
        st.builds(Head, st.integers(0, 255), INT64, INT64, INT64),
        st.binary(),
    ),
    min_size=1,
    max_size=9,
)


@given(ROWS)
def test_rows_are_read_as_they_were_written(rows):
    batch = encode_rows(rows).rows

    assert list(zip(*decode_heads(batch), strict=True)) == [row.head for row in rows]
    ids = [split_id(full) for full in batch.column("message_id").to_pylist()]
    assert ids == [(row.name, row.message_id) for row in rows]
    assert batch.column("value").to_pylist() == [row.body for row in rows]
    part = batch.slice(len(rows) // 2)
    assert list(zip(*decode_heads(part), strict=True)) == [
        row.head for row in rows[len(rows) // 2 :]
    ]


@given(st.lists(st.tuples(INT64, INT64)))
def test_ranges_are_read_as_they_were_written(ranges):
    assert decode_ranges(encode_ranges(ranges)) == ranges


def test_the_bytes_of_version_1_stay_what_they_are():
    row = Row(b"name", b"id", Head(MESSAGE, 7, 1_800_000_000_000, -1), b"body")
    [batch] = [encode_rows([row]).rows]

    assert full_id(b"name", b"id").hex() == "0400" + b"nameid".hex()
    assert batch.column("key")[0].as_py().hex() == (
        "0101000000000000" + "0700000000000000" + "00505c18a3010000" + "ff" * 8
    )  # fmt: skip
    assert encode_ranges([(1, 3)]).hex() == "01" + "00" * 7 + "03" + "00" * 7


def test_rows_that_are_not_ours_are_refused():
    batch = encode_rows([Row(b"s", b"a", Head(MESSAGE, 1, 0, -1), b"")]).rows

    def with_key(key):
        columns = [pa.array([key], pa.binary()) if n == 1 else c for n, c in enumerate(batch)]
        return pa.record_batch(columns, schema=batch.schema)

    with pytest.raises(FrameDamaged, match="no head"):
        decode_heads(with_key(b"short"))
    with pytest.raises(FrameDamaged, match="no head"):
        decode_heads(with_key(None))
    with pytest.raises(ForeignFile, match="version"):
        decode_heads(with_key(b"\x02" + bytes(31)))


async def test_a_folder_serves_one_store(tmp_path):
    async with opened(f"log://{tmp_path}/streams") as store:
        with pytest.raises(FolderInUse):
            async with opened(f"log://{tmp_path}/streams"):
                pass
        assert await store.store("s", [Record("a", b"")], now_ms=NOW_MS) == [Stored(1, True)]


async def test_the_log_is_rewritten_without_what_is_of_no_use(tmp_path, monkeypatch):
    monkeypatch.setattr(log_store, "REWRITE_BYTES_MIN", 0)
    folder = tmp_path / "streams"

    def size():
        # Of the segments with messages: the active one is preallocated.
        return sum(file.stat().st_blocks * 512 for file in folder.glob("*.seg"))

    body = np.random.default_rng(4).bytes(2_000)
    async with opened(f"log://{folder}") as store:
        for start in range(0, 6_000, 500):
            for stream in ("gone", "old", "kept"):
                expires_ms = NOW_MS + 1 if stream == "old" and start % 1_000 else None
                records = [Record(str(n), body, expires_ms) for n in range(start, start + 500)]
                await store.store(stream, records, now_ms=NOW_MS + start)
        before = size()
        kept = await read_all(store, "kept")
        old = [message for message in await read_all(store, "old") if not message.expires_ms]
        await store.delete("gone")
        await store.delete("kept", older_than_ms=NOW_MS + 4_000)
        assert await store.purge(now_ms=NOW_MS + 1, limit=9_999) == 3_000
        assert size() < before * 0.6

    known = [Record("5999", b""), Record("1", b"")]
    for _ in range(2):  # again from what is on the disk
        async with opened(f"log://{folder}") as store:
            assert await read_all(store, "kept") == kept[4_000:]
            assert await read_all(store, "old") == old
            page = await store.read("gone", after=0, limit=1, now_ms=NOW_MS)
            assert page == Page([], last=6_000)
            stored = await store.store("kept", known[:1], now_ms=NOW_MS)
            assert stored == [Stored(6_000, False)]
            assert await store.store("old", known[1:], now_ms=NOW_MS) == [Stored(2, False)]
    async with opened(f"log://{folder}") as store:
        assert await store.store("gone", known[1:], now_ms=NOW_MS) == [Stored(6_001, True)]
        assert await store.store("kept", known[1:], now_ms=NOW_MS) == [Stored(6_001, True)]


async def test_messages_are_stored_and_read_while_the_log_is_rewritten(tmp_path, monkeypatch):
    monkeypatch.setattr(log_store, "REWRITE_BYTES_MIN", 0)

    async with opened(f"log://{tmp_path}/streams") as store:
        await store.store("gone", numbered_records(5_000), now_ms=NOW_MS)
        await store.store("kept", numbered_records(10), now_ms=NOW_MS)
        await store.delete("gone")

        async def write():
            for number in range(10, 60):
                await store.store("kept", numbered_records(1, start=number), now_ms=NOW_MS)
                await read_all(store, "kept")

        await asyncio.gather(write(), *(store.purge(now_ms=NOW_MS) for _ in range(3)))
        assert await ids_of(store, "kept") == [str(number) for number in range(60)]
        again = await store.store("kept", numbered_records(60), now_ms=NOW_MS)
        assert again == [Stored(position, False) for position in range(1, 61)]
    async with opened(f"log://{tmp_path}/streams") as store:
        assert await ids_of(store, "kept") == [str(number) for number in range(60)]


async def test_closing_waits_for_the_rewriting_and_leaves_all_that_is_of_use(tmp_path, monkeypatch):
    monkeypatch.setattr(log_store, "REWRITE_BYTES_MIN", 0)

    for turns in range(0, 12, 3):
        url = f"log://{tmp_path}/streams-{turns}"
        async with opened(url) as store:
            await store.store("gone", numbered_records(5_000), now_ms=NOW_MS)
            await store.store("kept", numbered_records(10), now_ms=NOW_MS)
            await store.delete("gone")
            purging = asyncio.ensure_future(store.purge(now_ms=NOW_MS))
            for _ in range(turns):
                await asyncio.sleep(0)
            if turns % 2:
                purging.cancel()
        await asyncio.wait([purging])
        async with opened(url) as store:
            assert await ids_of(store, "kept") == [str(number) for number in range(10)]
            page = await store.read("gone", after=0, limit=1, now_ms=NOW_MS)
            assert page == Page([], last=5_000)


async def test_a_full_disk_refuses_and_leaves_no_hole(tmp_path, monkeypatch):
    async with opened(f"log://{tmp_path}/streams") as store:
        await store.store("s", numbered_records(2), now_ms=NOW_MS)
        with monkeypatch.context() as patched:
            patched.setattr(PartitionStore, "append", raising(StorageFull("no space left")))
            calls = [store.store("s", [Record(f"x{n}", b"")], now_ms=NOW_MS) for n in range(3)]
            found = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(error) for error in found] == [StorageFull] * 3
            assert await ids_of(store, "s") == ["0", "1"]

        stored = await store.store("s", numbered_records(3), now_ms=NOW_MS)
        assert stored == [Stored(1, False), Stored(2, False), Stored(3, True)]


async def test_a_disk_that_fails_is_told_to_all_who_wait_and_all_who_come_later(
    tmp_path, monkeypatch
):
    async with opened(f"log://{tmp_path}/streams") as store:
        await store.store("s", numbered_records(2), now_ms=NOW_MS)
        monkeypatch.setattr(Sync, "run", raising(StorageFailed("the disk is broken")))

        calls = [store.store("s", [Record(f"x{n}", b"")], now_ms=NOW_MS) for n in range(3)]
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(error) for error in found} == {StorageFailed}
        with pytest.raises(StorageFailed):
            await store.store("s", [Record("y", b"")], now_ms=NOW_MS)
        # What nobody was told is durable is shown to nobody.
        assert await ids_of(store, "s") == ["0", "1"]


def raising(error):
    def fail(*_args, **_kwargs):
        raise error

    return fail
