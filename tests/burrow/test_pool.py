"""A pool over a broker in memory: work is done, in order, once, and committed."""

import asyncio
import os
import signal
import threading
import time

import pytest

from tests.burrow.memory_source import MemoryBroker, MemorySource
from tests.burrow.pool_runs import PATIENCE_S, CallLog, done_of, until
from waterclock.burrow.core.records import Record
from waterclock.burrow.runtime.pool import Pool
from waterclock.burrow.runtime.tracing import current_record, current_trace
from waterclock.model.errors import BadConfig


@pytest.mark.parametrize("order", ["none", "key", "partition"])
async def test_everything_is_done_once_and_committed(order):
    broker = MemoryBroker()
    broker.fill(3_000)
    calls = CallLog(stop_at=3_000)

    calls.pool = Pool(MemorySource(broker), calls.process, workers=20, order=order)
    await calls.pool.run()
    assert sorted(map(int, calls.values)) == list(range(3_000))
    assert done_of(broker) == 3_000
    assert all(not commit.metadata for commit in broker.committed.values())
    if order != "none":
        assert all(offsets == sorted(offsets) for offsets in calls.by_key.values())


async def test_a_function_that_never_suspends_is_worked_through():
    broker = MemoryBroker()
    broker.fill(20_000)
    calls = CallLog(stop_at=20_000)

    async def process(record: Record) -> None:
        calls.saw(record)

    calls.pool = Pool(MemorySource(broker), process, workers=10)
    await calls.pool.run()
    assert len(set(calls.values)) == len(calls.values) == 20_000


async def test_a_slow_function_that_never_suspends_leaves_turns_to_others():
    broker = MemoryBroker(1)
    broker.fill(200, keys=200)
    seen_at: list[int] = []

    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async def process(record: Record) -> None:
        end = time.perf_counter() + 0.001
        while time.perf_counter() < end:
            pass
        seen_at.append(turns)
        if len(seen_at) == 200:
            pool.stop()

    pool = Pool(MemorySource(broker), process, workers=1)
    async with asyncio.TaskGroup() as tasks:
        beside = tasks.create_task(others())
        await pool.run()
        beside.cancel()
    assert len(set(seen_at)) > 10


async def test_a_plain_function_runs_on_threads_as_many_as_there_are_workers():
    broker = MemoryBroker()
    broker.fill(200)
    together = threading.Barrier(8)
    threads: set[int] = set()
    values = []

    loop = asyncio.get_running_loop()

    def process(record: Record) -> None:
        if len(threads) < 8:
            threads.add(threading.get_ident())
            together.wait(PATIENCE_S)
        values.append(record.value)
        if len(values) == 200:
            loop.call_soon_threadsafe(pool.stop)

    pool = Pool(MemorySource(broker), process, workers=8, order="none")
    await pool.run()
    assert len(threads) == 8
    assert len(set(values)) == 200
    assert done_of(broker) == 200


async def test_a_stop_lets_what_was_begun_end_and_begins_nothing():
    broker = MemoryBroker(1)
    broker.fill(100, keys=100)
    begun, ended = [], []

    gate = asyncio.Event()

    async def process(record: Record) -> None:
        begun.append(record.offset)
        await gate.wait()
        ended.append(record.offset)

    pool = Pool(MemorySource(broker), process, workers=5)
    async with pool:
        await until(lambda: len(begun) == 5)
        pool.stop()
        for _ in range(10):
            await asyncio.sleep(0)
        gate.set()
    assert begun == ended == [0, 1, 2, 3, 4]
    assert broker.committed[broker.names[0]].offset == 5


async def test_after_a_clean_stop_the_next_pool_does_nothing_twice():
    broker = MemoryBroker()
    broker.fill(2_000)
    first, second = CallLog(stop_at=700), CallLog(stop_at=10**9)

    first.pool = Pool(MemorySource(broker), first.process, workers=50, order="none")
    await first.pool.run()
    second._stop_at = 2_000 - len(first.values)
    second.pool = Pool(MemorySource(broker), second.process, workers=50, order="none")
    await second.pool.run()
    assert len(first.values) + len(second.values) == 2_000
    assert set(first.values) | set(second.values) == {b"%d" % number for number in range(2_000)}


async def test_a_stuck_record_holds_back_the_commit_and_its_followers_survive_a_restart():
    broker = MemoryBroker(1)
    broker.fill(500, keys=500)
    seen: list[int] = []
    again: list[int] = []

    async def stuck(record: Record) -> None:
        if record.offset == 3:
            await asyncio.Event().wait()
        seen.append(record.offset)
        if len(seen) == 499:
            pool.stop()

    pool = Pool(MemorySource(broker), stuck, workers=10, grace_s=0.05)
    await pool.run()

    async def fine(record: Record) -> None:
        again.append(record.offset)
        other.stop()

    other = Pool(MemorySource(broker), fine, workers=10)
    await other.run()
    assert len(seen) == 499
    assert again == [3]
    assert broker.committed[broker.names[0]].offset == 500


async def test_slow_workers_hold_back_reading():
    broker = MemoryBroker(1)
    broker.fill(50_000)

    source, gate = MemorySource(broker), asyncio.Event()

    async def process(record: Record) -> None:
        await gate.wait()

    async with Pool(source, process, workers=10, queue_max=1_000, grace_s=0):
        await until(lambda: source.paused)
        assert source.positions[broker.names[0]] <= 3_000
        gate.set()
        await until(lambda: source.positions[broker.names[0]] == 50_000)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_the_pool_in_good_order(number):
    broker = MemoryBroker()
    broker.fill(100)
    seen = []

    before = signal.getsignal(number)

    async def process(record: Record) -> None:
        seen.append(record.value)
        if len(seen) == 100:
            os.kill(os.getpid(), number)

    await Pool(MemorySource(broker), process).run()
    assert done_of(broker) == 100
    assert signal.getsignal(number) is before


async def test_a_function_can_ask_which_record_and_trace_it_is_about():
    broker = MemoryBroker(1)
    parent = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    broker.publish(b"traced", headers=[("traceparent", parent)])
    found: list[object] = []

    async def deeper() -> None:
        await asyncio.sleep(0)
        found.extend([current_record(), current_trace()])

    async def process(record: Record) -> None:
        await deeper()
        found.append(record)
        pool.stop()

    pool = Pool(MemorySource(broker), process)
    await pool.run()
    asked, trace, record = found
    assert asked is record
    assert trace is not None
    assert trace.headers() == [("traceparent", parent)]  # type: ignore[attr-defined]


async def test_workers_follow_the_lag(monkeypatch):
    monkeypatch.setattr("waterclock.burrow.runtime.pool.SAMPLE_S", 0.01)
    broker = MemoryBroker(1)
    broker.fill(5_000, keys=5_000)

    gate, running = asyncio.Event(), 0

    async def process(record: Record) -> None:
        nonlocal running
        running += 1
        await gate.wait()
        running -= 1

    pool = Pool(MemorySource(broker), process, scale=(2, 16), grace_s=0)
    async with pool:
        await until(lambda: running == 16)
        gate.set()
        await until(lambda: pool.metrics.workers == 2)


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("workers", {"workers": 0}),
        ("batch_size", {"batch_size": 0}),
        ("timeout_s", {"timeout_s": 1.0}),
        ("dead_letters", {"on_failure": "dlq"}),
        ("scale", {"scale": (5, 2)}),
        ("order", {"order": "topic"}),
    ],
)
def test_what_cannot_work_is_refused_by_name(field, options):
    with pytest.raises(BadConfig) as caught:
        Pool(MemorySource(MemoryBroker()), print, **options)

    assert caught.value.field == field
