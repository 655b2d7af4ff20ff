"""What only Cassandra can do to us: a batch decided and not written out, and writes that come late.

A node that dies between the two leaves the batch in the stream's head. Nobody may notice.
"""

from contextlib import asynccontextmanager

import pytest
from cassandra.cluster import NoHostAvailable, Session

from tests.stores.streams import NOW_MS, ids_of, numbered_records, read_all
from waterclock.model.errors import StoreUnavailable
from waterclock.model.units import HOUR_MS, KIB
from waterclock.stores.base import Record, Stored
from waterclock.stores.cassandra.store import CassandraStore
from waterclock.stores.cassandra.tables import BUCKET

pytestmark = [
    pytest.mark.parametrize("backend", ["cassandra"], indirect=True),
]


@asynccontextmanager
async def opened(url):
    """Open a store whose inner parts a test may touch."""
    store = CassandraStore(url)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def fails(stream, head, batch):
    raise StoreUnavailable("the node died before the batch was written out")


async def leave_in_head(store, stream, *records):
    """Store a batch as a node does that dies as soon as it is decided."""
    key = stream.encode()
    store._heads._written_out[key] = await store._heads.written_out(key)
    store._heads.write_out = fails
    with pytest.raises(StoreUnavailable):
        await store.store(stream, records, now_ms=NOW_MS)


async def test_a_batch_not_written_out_is_read_and_the_next_writer_finishes_it(url):
    async with opened(url) as dead, opened(url) as store:
        await store.store("s", numbered_records(3), now_ms=NOW_MS)
        await leave_in_head(dead, "s", Record("x", b"1"), Record("y", b"2", NOW_MS + 9))

        page = await store.read("s", after=2, limit=9, now_ms=NOW_MS)
        assert [(m.position, m.message_id) for m in page.messages] == [
            (3, "2"),
            (4, "x"),
            (5, "y"),
        ]
        stored = await store.store("s", [Record("y", b""), Record("z", b"")], now_ms=NOW_MS)
        assert stored == [Stored(5, False), Stored(6, True)]
        assert await ids_of(store, "s") == ["0", "1", "2", "x", "y", "z"]
        assert await store.purge(now_ms=NOW_MS + 9) == 1


async def test_the_first_batch_of_a_stream_may_be_the_one_not_written_out(url):
    async with opened(url) as dead, opened(url) as store:
        await leave_in_head(dead, "s", Record("x", b"1"))

        assert await ids_of(store, "s") == ["x"]
        assert await store.store("s", [Record("x", b"")], now_ms=NOW_MS) == [Stored(1, False)]


@pytest.mark.parametrize("older_than_ms", [None, NOW_MS + 1])
async def test_a_batch_not_written_out_can_be_deleted(url, older_than_ms):
    async with opened(url) as dead, opened(url) as store:
        await leave_in_head(dead, "s", Record("x", b"1"), Record("y", b"2"))

        assert await store.delete("s", older_than_ms=older_than_ms) == 2
        assert await read_all(store, "s") == []
        assert await store.store("s", [Record("x", b"")], now_ms=NOW_MS) == [Stored(3, True)]


async def test_a_batch_written_out_again_long_after_its_messages_were_removed_stays_removed(url):
    async with opened(url) as store:
        records = [Record("a", b"1"), Record("b", b"2", NOW_MS + 9)]
        await store.store("s", records, now_ms=NOW_MS)
        head, batch = await store._heads.whole(b"s")
        assert await store.delete("s") == 2
        again = await store.store("s", [Record("b", b"3")], now_ms=NOW_MS)
        assert again == [Stored(3, True)]

        await store._heads.write_out(b"s", head, batch)

        assert await ids_of(store, "s") == ["b"]
        repeats = await store.store("s", [Record("b", b""), Record("a", b"")], now_ms=NOW_MS)
        assert repeats == [Stored(3, False), Stored(4, True)]


async def test_pages_go_on_across_partitions_and_over_those_that_are_empty(url):
    async with opened(url) as store:
        count = 2 * BUCKET + 5
        await store.store("s", numbered_records(count), now_ms=NOW_MS)
        messages = await read_all(store, "s")
        assert [message.position for message in messages] == list(range(1, count + 1))

        assert await store.delete("s", older_than_ms=NOW_MS + 1) == count
        await store.store("s", [Record("x", b"")], now_ms=NOW_MS)
        page = await store.read("s", after=0, limit=9, now_ms=NOW_MS)
        assert [message.position for message in page.messages] == [count + 1]
        # It is known where the first one is: readers do not search from the beginning.
        assert (await store._heads.read(b"s")).floor == count


@pytest.mark.parametrize("kept", [[], ["x", "y"]])
async def test_who_searches_long_for_the_first_message_raises_the_floor_below_it(
    url, monkeypatch, kept
):
    monkeypatch.setattr("waterclock.stores.cassandra.store.EMPTY_MAX", 10)

    async with opened(url) as store:
        gone = numbered_records(BUCKET + 5, expires_ms=NOW_MS + 9)
        await store.store("s", [*gone, *(Record(id_, b"") for id_ in kept)], now_ms=NOW_MS)

        assert len(await read_all(store, "s", now_ms=NOW_MS + 9)) == len(kept)
        # Expired is not removed: by an earlier clock it is read.
        assert (await store._heads.read(b"s")).floor == 0
        assert len(await read_all(store, "s")) == BUCKET + 5 + len(kept)
        assert await store.purge(now_ms=NOW_MS + 9, limit=2 * BUCKET) == BUCKET + 5
        assert await ids_of(store, "s") == kept
        # By whole partitions, or to the end of the stream.
        floor = BUCKET - 1 if kept else BUCKET + 5
        assert (await store._heads.read(b"s")).floor == floor
        assert await ids_of(store, "s") == kept
        again = await store.store("s", [Record("0", b"")], now_ms=NOW_MS)
        assert again == [Stored(BUCKET + 6 + len(kept), True)]


async def test_parts_are_swept_if_their_batch_never_came_and_kept_if_it_did(url):
    async with opened(url) as store:
        body = b"x" * (100 * KIB)
        await store.store("s", [Record("kept", body)], now_ms=NOW_MS)
        store._heads.append = fails
        with pytest.raises(StoreUnavailable):
            await store.store("s", [Record("lost", body)], now_ms=NOW_MS)
        del store._heads.append

        assert len(await parts(store)) == 2
        assert await store.purge(now_ms=NOW_MS + 2 * HOUR_MS) == 0
        assert len(await parts(store)) == 1
        assert [message.body for message in await read_all(store, "s")] == [body]
        assert await store.delete("s") == 1
        assert await parts(store) == []


async def parts(store):
    keyspace = store._keyspace
    await store._session.prepare({"all": f"SELECT ref FROM {keyspace}.parts"}, serial=())
    return await store._session.run("all")


async def test_a_store_opens_while_another_node_creates_the_tables(url, monkeypatch):
    prepare, answers = Session.prepare, iter(["Unknown CF 9edb0110", "Unknown CF 9edb0110"])

    def prepare_later(session, text):
        """Answer as a server does that has heard of a table and cannot serve it yet."""
        if problem := next(answers, None):
            raise NoHostAvailable("no host could do it", {"127.0.0.1": problem})
        return prepare(session, text)

    monkeypatch.setattr(Session, "prepare", prepare_later)

    async with opened(url) as store:
        assert await store.store("s", [Record("a", b"")], now_ms=NOW_MS) == [Stored(1, True)]
