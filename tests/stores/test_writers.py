"""Many writers on one stream: tasks, connections, processes; none sees a hole or a step back."""

import asyncio
from contextlib import AsyncExitStack

from tests.stores import writer
from tests.stores.backend import opened
from tests.stores.streams import NOW_MS, numbered_records, read_all
from waterclock.stores.base import Record, Stored, StreamStore

TASKS = 8
CALLS = 12
BATCH = 5
TOTAL = TASKS * CALLS * BATCH


async def several(stack: AsyncExitStack, url: str, count: int) -> list[StreamStore]:
    """Open a store several times, at once."""
    entering = (stack.enter_async_context(opened(url)) for _ in range(count))
    return list(await asyncio.gather(*entering))


async def follow(store: StreamStore, stream: str, count: int) -> int:
    """Read a stream while it grows: each page must begin where the last one ended."""
    after = 0
    while after < count:
        page = await store.read(stream, after=after, limit=50, now_ms=NOW_MS)
        positions = [message.position for message in page.messages]
        assert positions == list(range(after + 1, after + 1 + len(positions)))
        after += len(positions)
        assert page.last >= after
        await asyncio.sleep(0)  # a store that need not wait must not keep the writers waiting
    return after


async def test_concurrent_writers_get_dense_positions_and_readers_miss_nothing(backend, url):
    async def write(store, name):
        positions = []
        for call in range(CALLS):
            records = numbered_records(BATCH, start=call * BATCH, prefix=f"{name}-")
            positions += await store.store("s", records, now_ms=NOW_MS)
        assert all(is_new for _, is_new in positions)
        # The order of one writer's calls is the order of their positions.
        assert positions == sorted(positions)
        return [position for position, _ in positions]

    async with AsyncExitStack() as stack:
        stores = await several(stack, url, 2 if backend.is_shared else 1)
        found = await asyncio.gather(
            *(write(stores[task % len(stores)], task) for task in range(TASKS)),
            *(follow(store, "s", TOTAL) for store in stores),
        )
        written = [position for positions in found[:TASKS] for position in positions]
        assert sorted(written) == list(range(1, TOTAL + 1))


async def test_concurrent_writers_of_the_same_ids_store_each_of_them_once(backend, url):
    async with AsyncExitStack() as stack:
        stores = await several(stack, url, 2 if backend.is_shared else 1)
        ids = [str(number) for number in range(20)]
        found: dict[str, list[Stored]] = {message_id: [] for message_id in ids}

        async def write(task):
            store = stores[task % len(stores)]
            for start in range(0, 20, 4):
                # Each in an order of its own, so that they meet everywhere.
                chosen = [ids[(start + number + task * 3) % 20] for number in range(4)]
                records = [Record(message_id, b"") for message_id in chosen]
                stored = await store.store("s", records, now_ms=NOW_MS)
                for message_id, answer in zip(chosen, stored, strict=True):
                    found[message_id].append(answer)

        await asyncio.gather(*map(write, range(TASKS)))

        assert all(sum(stored.is_new for stored in found[id_]) == 1 for id_ in ids)
        assert all(len({stored.position for stored in found[id_]}) == 1 for id_ in ids)
        assert [m.position for m in await read_all(stores[0], "s")] == list(range(1, 21))


async def test_concurrent_openings_create_one_schema(backend, url):
    async with AsyncExitStack() as stack:
        stores = await several(stack, url, 4 if backend.is_shared else 1)
        for number, store in enumerate(stores):
            stored = await store.store("s", [Record(str(number), b"")], now_ms=NOW_MS)
            assert stored == [Stored(number + 1, True)]


async def test_processes_write_to_one_stream_together(backend, url):
    prefixes = ["p", "q"] if backend.is_shared else ["p"]
    processes = [writer.started(url, "s", prefix, calls=20, batch=5) for prefix in prefixes]
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(prefixes)
    acknowledged = dict(line.split() for output in outputs for line in output.splitlines())

    async with opened(url) as store:
        messages = await read_all(store, "s")
        assert {m.message_id: str(m.position) for m in messages} == acknowledged
        assert len(messages) == 100 * len(prefixes) == messages[-1].position


async def test_what_a_killed_process_was_told_is_there_and_positions_have_no_hole(url):
    process = writer.started(url, "s", "p", calls=10_000, batch=3)
    assert process.stdout is not None
    seen = [process.stdout.readline() for _ in range(60)]
    process.kill()
    seen += process.stdout.readlines()
    process.stdout.close()
    process.wait()
    # The last line may be cut short, and then its message counts for nothing.
    acknowledged = dict(line.split() for line in seen if line.endswith("\n"))

    async with opened(url) as store:
        messages = await read_all(store, "s")
        assert acknowledged.items() <= {m.message_id: str(m.position) for m in messages}.items()
        assert [m.position for m in messages] == list(range(1, len(messages) + 1))
        # Whole calls only: what was under way is there entirely or not at all.
        assert len(messages) % 3 == 0
        stored = await store.store("s", [Record("p-0", b""), Record("x", b"")], now_ms=NOW_MS)
        assert stored == [Stored(1, False), Stored(len(messages) + 1, True)]


async def test_cancelled_calls_leave_nothing_behind_that_others_would_wait_for(url):
    async with opened(url) as store:
        await store.store("s", numbered_records(3), now_ms=NOW_MS)
        for turns in range(60):
            records = [Record(f"c{turns}", b"")]
            task = asyncio.ensure_future(
                store.store("s", records, now_ms=NOW_MS)
                if turns % 2
                else store.read("s", after=0, limit=9, now_ms=NOW_MS)
            )
            for _ in range(turns // 2):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])

        await asyncio.gather(
            *(store.store("s", [Record(f"d{n}", b"")], now_ms=NOW_MS) for n in range(40))
        )
        messages = await read_all(store, "s")
        assert [m.position for m in messages] == list(range(1, len(messages) + 1))
        assert {f"d{number}" for number in range(40)} <= {m.message_id for m in messages}
