"""A long stream, read page by page from its beginning to its end, by position.

`make stores-big` does it with a million messages on every store; the usual run with as many as a
store takes within seconds.
"""

import asyncio
import os
import time

from tests.stores.backend import opened
from tests.stores.streams import NOW_MS, numbered_records
from waterclock.stores.base import Record, Stored

BIG = int(os.environ.get("WATERCLOCK_STORES_BIG", "0"))
PAGE = 5_000
DELETED = 25_000


async def test_a_long_stream_is_read_page_by_page(backend, url):
    count = BIG or backend.paged

    async with opened(url) as store:
        begun = time.perf_counter()
        for start in range(0, count, backend.batch):
            records = numbered_records(min(backend.batch, count - start), start=start)
            stored = await store.store("s", records, now_ms=NOW_MS)
            assert stored[-1] == Stored(start + len(records), True)
        written = time.perf_counter()

    async with opened(url) as store:
        again = time.perf_counter()
        after = 0
        while after < count:
            page = await store.read("s", after=after, limit=PAGE, now_ms=NOW_MS)
            expected = range(after + 1, min(after + PAGE, count) + 1)
            assert [message.position for message in page.messages] == list(expected)
            assert page.messages[-1].body == str(expected[-1] - 1).encode()
            assert page.last == count
            after = expected[-1]
        read = time.perf_counter()

        repeat = [Record("0", b""), Record(str(count - 1), b""), Record("new", b"")]
        assert await store.store("s", repeat, now_ms=NOW_MS) == [
            Stored(1, False),
            Stored(count, False),
            Stored(count + 1, True),
        ]
    print(  # for people: pytest shows it with -s
        f"\n{backend.name}: {count:,} messages stored in {written - begun:.1f} s, "
        f"opened in {again - written:.1f} s, read in {read - again:.1f} s"
    )


async def test_a_long_stream_is_deleted_without_what_comes_meanwhile(backend, url):
    count = min(DELETED, backend.paged)

    async with opened(url) as store:
        await store.store("s", numbered_records(count), now_ms=NOW_MS)
        records = numbered_records(1, prefix="later ")
        deleting = asyncio.ensure_future(store.delete("s", older_than_ms=NOW_MS + 1))
        stored = await store.store("s", records, now_ms=NOW_MS + 1)

        assert await deleting == count
        page = await store.read("s", after=0, limit=9, now_ms=NOW_MS)
        assert [message.position for message in page.messages] == [stored[0].position]
