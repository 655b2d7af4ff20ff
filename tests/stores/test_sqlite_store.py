"""What only SQLite has: a file that others lock, that gets full, that is of another version."""

import asyncio
import sqlite3
import threading

import pytest

from tests.stores.backend import opened
from tests.stores.streams import NOW_MS, ids_of, numbered_records
from waterclock.model.errors import (
    BadConfig,
    Closed,
    StorageFailed,
    StorageFull,
    StoreUnavailable,
)
from waterclock.stores import sqlite
from waterclock.stores.base import Record, Stored
from waterclock.stores.sqlite import SqliteStore


@pytest.fixture
def path(tmp_path):
    return tmp_path / "streams.sqlite"


@pytest.fixture
def url(path):
    return f"sqlite://{path}"


async def test_a_file_that_another_process_keeps_locked_is_unavailable(path, url, monkeypatch):
    monkeypatch.setattr(sqlite, "BUSY_MS_MAX", 50)

    async with opened(url) as store:
        await store.store("s", numbered_records(1), now_ms=NOW_MS)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        calls = [store.store("s", [Record(f"x{n}", b"")], now_ms=NOW_MS) for n in range(3)]
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(error) for error in found} == {StoreUnavailable}
        # Who reads need not wait for who writes.
        assert await ids_of(store, "s") == ["0"]
        other.close()

        assert await store.store("s", [Record("y", b"")], now_ms=NOW_MS) == [Stored(2, True)]


async def test_a_full_disk_refuses_and_leaves_no_hole(url):
    async with opened(url) as store:
        assert isinstance(store, SqliteStore)
        await store.store("s", numbered_records(1), now_ms=NOW_MS)
        await store._run(lambda: store._opened.execute("PRAGMA max_page_count = 20"))
        with pytest.raises(StorageFull):
            await store.store("s", [Record("x", bytes(1_000_000))], now_ms=NOW_MS)
        assert await ids_of(store, "s") == ["0"]
        await store._run(lambda: store._opened.execute("PRAGMA max_page_count = 2000000"))

        assert await store.store("s", [Record("y", b"")], now_ms=NOW_MS) == [Stored(2, True)]


def test_a_file_of_a_later_version_and_one_that_is_no_database_are_left_alone(path, url):
    async def opening():
        async with opened(url):
            pass

    path.write_bytes(b"not a database, and long enough to be none" * 100)
    with pytest.raises(StorageFailed, match="not a database"):
        asyncio.run(opening())
    path.unlink()
    asyncio.run(opening())
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA user_version = 2")
    other.close()
    with pytest.raises(BadConfig, match="later version"):
        asyncio.run(opening())


async def test_a_folder_that_is_not_there_is_unavailable(tmp_path):
    with pytest.raises(StoreUnavailable, match="unable to open"):
        async with opened(f"sqlite://{tmp_path}/absent/streams.sqlite"):
            pass


async def test_calls_that_meet_the_end_of_a_store_are_all_told_so(url):
    async with opened(url) as store:
        assert isinstance(store, SqliteStore)
        gate = threading.Event()
        store._thread.submit(gate.wait)
        closing = asyncio.ensure_future(store.close())
        await asyncio.sleep(0)
        calls = [store.store(f"s{n}", [Record("a", b"")], now_ms=NOW_MS) for n in range(3)]
        found = asyncio.gather(*calls, return_exceptions=True)
        await asyncio.sleep(0)
        gate.set()

        assert [type(each) for each in await found] == [Closed] * 3
        await closing
        for call in (
            store.store("s", [Record("a", b"")], now_ms=NOW_MS),
            store.read("s", after=0, limit=1, now_ms=NOW_MS),
        ):
            with pytest.raises(Closed):
                await call


async def test_who_reads_does_not_wait_for_who_waits_to_write(path, url):
    async with opened(url) as store:
        await store.store("s", numbered_records(1), now_ms=NOW_MS)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        writing = asyncio.ensure_future(store.store("s", [Record("x", b"")], now_ms=NOW_MS))
        await asyncio.sleep(0)

        assert await ids_of(store, "s") == ["0"]
        assert not writing.done()
        other.close()
        assert await writing == [Stored(2, True)]
        assert await ids_of(store, "s") == ["0", "x"]
