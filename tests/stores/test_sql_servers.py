"""What only the stores on SQL servers have: sessions, accounts, versions."""

import asyncio
from urllib.parse import urlsplit

import pytest

from tests.stores.backend import opened
from tests.stores.servers.registry import answers
from tests.stores.streams import NOW_MS, numbered_records, read_all
from waterclock.model.errors import BadConfig, StoreUnavailable
from waterclock.stores import postgres
from waterclock.stores.base import Record, Stored
from waterclock.stores.mysql import connections
from waterclock.stores.mysql.store import MysqlStore
from waterclock.stores.opening import open_store
from waterclock.stores.postgres import PostgresStore

SQL_SERVERS = ["postgres", "mysql"]
HANG_S = 120
"""Far more than a call may take in a test: who waits so long would wait for ever."""


on_sql_servers = pytest.mark.parametrize("backend", SQL_SERVERS, indirect=True)


@on_sql_servers
def test_a_server_that_hangs_is_unavailable_in_time_and_works_again_later(
    backend, url, monkeypatch
):
    def limit(seconds):
        for module in (postgres, connections):
            patched.setattr(module, "CALL_S_MAX", seconds)
            patched.setattr(module, "CONNECT_S_MAX", seconds)

    async def main():
        limit(HANG_S)  # a driver's own timeouts are for whole minutes: they must not be needed
        async with opened(url) as store, asyncio.timeout(HANG_S / 2):
            await store.store("s", numbered_records(3), now_ms=NOW_MS)
            limit(1)
            backend.server.pause()
            try:
                calls = [store.store("s", [Record(f"x{n}", b"")], now_ms=NOW_MS) for n in range(9)]
                reads = [store.read("s", after=0, limit=9, now_ms=NOW_MS) for _ in range(9)]
                found = await asyncio.gather(*calls, *reads, return_exceptions=True)
                assert {type(error) for error in found} == {StoreUnavailable}
            finally:
                backend.server.resume()
            # Nobody knows which of them were stored: whoever asks again is told.
            records = [Record(f"x{n}", b"") for n in range(9)]
            while True:
                try:
                    await store.store("s", records, now_ms=NOW_MS)
                    break
                except StoreUnavailable:
                    continue
            messages = await read_all(store, "s")
            assert sorted(m.message_id for m in messages)[3:] == [f"x{n}" for n in range(9)]
            assert [m.position for m in messages] == list(range(1, 13))

    with monkeypatch.context() as patched:
        asyncio.run(main())


@on_sql_servers
async def test_a_database_of_a_later_version_is_left_alone(url):
    async with opened(url) as store:
        await store.store("s", [Record("a", b"")], now_ms=NOW_MS)
        change = "UPDATE waterclock_schema SET version = version {}"
        await run(store, change.format("+ 1"))
        with pytest.raises(BadConfig, match="later version"):
            async with opened(url):
                pass
        await run(store, change.format("- 1"))
    async with opened(url) as store:
        assert await store.store("s", [Record("a", b"")], now_ms=NOW_MS) == [Stored(1, False)]


@pytest.mark.parametrize("backend", ["postgres"], indirect=True)
async def test_a_database_of_an_earlier_version_gets_the_function_of_this_one(url):
    earlier = """
        UPDATE waterclock_schema SET version = 1;
        CREATE OR REPLACE FUNCTION waterclock_store(
            the_name bytea, the_ids bytea[], the_expiries bigint[], the_bodies bytea[],
            now_ms bigint, OUT the_last bigint, OUT known bigint[]
        ) LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'of version 1'; END $$;
    """

    async with opened(url) as store:
        await store.store("s", [Record("a", b"", NOW_MS + 1)], now_ms=NOW_MS)
        await run(store, earlier)
    async with opened(url) as store:
        stored = await store.store("s", [Record("a", b"")], now_ms=NOW_MS + 1)
        assert stored == [Stored(2, True)]


async def run(store, statement):
    """Run a statement behind a store's back."""
    if isinstance(store, PostgresStore):
        async with store._connection() as connection:
            await connection.execute(statement)
    else:
        assert isinstance(store, MysqlStore)
        async with store._connections.one() as connection:
            await connection.change(statement)


@on_sql_servers
async def test_a_database_that_does_not_exist_is_a_mistake_in_the_configuration(url):
    absent = urlsplit(url)._replace(path="/absent", query="").geturl()

    with pytest.raises(BadConfig, match=r"streams\.store"):
        await open_store(absent).open()


@on_sql_servers
async def test_an_account_that_may_not_do_what_it_must_is_a_mistake_in_the_configuration(
    backend, url
):
    async with opened(url) as store:
        parts = urlsplit(url)
        if backend.name == "mysql":
            weak = "'weak'@'127.0.0.1'"
            grants = [f"GRANT SELECT ON {parts.path[1:]}.* TO {weak}"]
        else:
            weak = f"weak_{parts.query.partition('=')[2]}"
            grants = [f"GRANT USAGE ON SCHEMA {parts.query.partition('=')[2]} TO {weak}"]
        await run(store, f"CREATE USER {weak}")
        name = weak.partition("@")[0].strip("'")
        its = parts._replace(netloc=f"{name}@{parts.hostname}:{parts.port}").geturl()
        for grant in ("", *grants):
            if grant:
                await run(store, grant)
            with pytest.raises(BadConfig, match=r"streams\.store.*(denied|no schema)"):
                async with opened(its) as other:
                    await other.store("s", numbered_records(1), now_ms=NOW_MS)


def test_registries_answer_or_do_not():
    assert not answers("http://127.0.0.1:1/")
