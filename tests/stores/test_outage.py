"""The server dies under load and comes back: nothing acknowledged is lost, the same object goes on.

Only for stores that have a server: of the others, the process is the server (test_writers).
"""

import asyncio

import pytest

from tests.stores.backend import WITH_SERVER, opened
from tests.stores.streams import NOW_MS, numbered_records, read_all
from waterclock.model.errors import StoreUnavailable
from waterclock.stores.base import Record, Stored

WRITERS = 4
BEFORE = 40
AFTER = 40


pytestmark = pytest.mark.parametrize("backend", WITH_SERVER, indirect=True)


@pytest.fixture
def server(backend):
    return backend.server


async def until_available(store):
    """Return once calls are answered again: a driver looks for its server every now and then."""
    async with asyncio.timeout(60):
        while True:
            try:
                await store.read("s", after=0, limit=1, now_ms=NOW_MS)
            except StoreUnavailable:
                await asyncio.sleep(0.05)
            else:
                return


async def test_a_server_killed_under_load_loses_nothing_it_acknowledged_and_without_it_all_fails(
    server, url
):
    """One death of a server for all of it: some take ten seconds of a core to come back."""
    acknowledged: dict[str, int] = {}
    failures = 0
    is_busy, is_back = asyncio.Event(), asyncio.Event()

    async def write(store, name):
        nonlocal failures
        number, is_unknown = 0, False
        while number < AFTER or is_unknown or not is_back.is_set():
            message_id = f"{name}-{number}"
            try:
                records = [Record(message_id, message_id.encode())]
                stored = await store.store("s", records, now_ms=NOW_MS)
            except StoreUnavailable:
                failures += 1
                # The same id again: nobody knows whether it was stored.
                is_unknown = True
                await is_back.wait()
                continue
            acknowledged[message_id] = stored[0].position
            number, is_unknown = number + 1, False
            if len(acknowledged) >= BEFORE:
                is_busy.set()

    async def crash(beside):
        await is_busy.wait()
        try:
            async with opened(url) as closed:
                assert len(await read_all(closed, "beside")) == 10
                await asyncio.to_thread(server.kill)
            await every_call_fails(beside, url)
        finally:
            await asyncio.to_thread(server.start)
        is_back.set()

    async with opened(url) as store, opened(url) as beside:
        await beside.store("beside", numbered_records(10), now_ms=NOW_MS)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(crash(beside))
            for name in range(WRITERS):
                tasks.create_task(write(store, name))

        messages = await read_all(store, "s")
        found = {m.message_id: m.position for m in messages}
        assert acknowledged == found
        assert [m.position for m in messages] == list(range(1, len(messages) + 1))
        assert failures

        # The one that was refused all the while works again by itself.
        await until_available(beside)
        assert len(await read_all(beside, "beside")) == 10
        stored = await beside.store("beside", [Record("y", b"")], now_ms=NOW_MS)
        assert stored == [Stored(11, True)]


async def every_call_fails(store, url):
    """See that calls say in their own words that the server is away."""
    for _ in range(20):  # more often than there are connections
        with pytest.raises(StoreUnavailable):
            await store.read("beside", after=0, limit=9, now_ms=NOW_MS)
        with pytest.raises(StoreUnavailable):
            await store.store("beside", [Record("x", b"")], now_ms=NOW_MS)
    with pytest.raises(StoreUnavailable):
        await store.delete("beside")
    with pytest.raises(StoreUnavailable):
        await store.purge(now_ms=NOW_MS)
    with pytest.raises(StoreUnavailable):
        async with opened(url):
            pass
