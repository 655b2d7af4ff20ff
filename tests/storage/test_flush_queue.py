import asyncio
from pathlib import Path
from queue import SimpleQueue

import pytest

from tests.kit.async_fsyncs import ThreadKernel
from tests.kit.clock import ManualClock
from tests.node.hosts import START_MS, batch_of
from waterclock.model.errors import Closed, StorageFailed, WaterclockError
from waterclock.model.message import Message
from waterclock.model.sections import DedupConfig, LogConfig
from waterclock.node.counters import Histogram
from waterclock.storage.flush import BackgroundThreads, FlushQueue
from waterclock.storage.folders.os_folder import OsFolder
from waterclock.storage.jobs import SaveJob
from waterclock.storage.opening import open_partition
from waterclock.storage.partition_store import PartitionStore

GRACE_S = 30
"""Longer than anything takes: reached only by a thread that waits for ever."""


class Kit:
    """A store and its flush queue, with a note of what failed."""

    kernel: type[ThreadKernel] | None = None

    def __init__(self, folder: Path, log: LogConfig | None = None) -> None:
        self.clock = ManualClock(START_MS)
        self.store: PartitionStore = open_partition(
            OsFolder(folder),
            log=log or LogConfig(),
            dedup=DedupConfig(),
            now_ms=START_MS,
            new_log_id=b"l" * 16,
        )
        self.threads = BackgroundThreads(kernel=None if self.kernel is None else self.kernel())
        self.failures: list[WaterclockError] = []
        self.fsyncs = Histogram()
        self.queue = FlushQueue(
            self.store,
            self.clock,
            asyncio.get_running_loop(),
            threads=self.threads,
            on_fsync=lambda seconds: self.fsyncs.observe(seconds),
            on_failed=self.failures.append,
        )
        self.number = 0

    def append(self, count: int = 1) -> int:
        ids = range(self.number, self.number + count)
        self.number += count
        batch = batch_of(*(Message(b"v", message_id=b"%d" % i) for i in ids))
        end = self.store.append(batch, now_ms=START_MS).durable_at
        self.queue.request_flush()
        return end

    def close(self) -> None:
        self.queue.close()
        self.threads.stop()


@pytest.fixture(autouse=True, params=["threads", "kernel"])
def by_threads_or_by_the_kernel(request, monkeypatch):
    monkeypatch.setattr(Kit, "kernel", ThreadKernel if request.param == "kernel" else None)


def broken_fsync() -> None:
    raise StorageFailed("the disk is gone")


async def test_all_that_was_written_in_a_turn_shares_an_fsync(tmp_path):
    kit = Kit(tmp_path)
    ends = [kit.append() for _ in range(20)]
    await asyncio.gather(*(kit.queue.wait_flushed(end) for end in ends))
    fsyncs = kit.fsyncs.count
    kit.close()

    assert (fsyncs, kit.store.flushed_end) == (1, 20)


async def test_waiters_are_answered_in_the_order_of_their_offsets(tmp_path):
    kit = Kit(tmp_path)
    order: list[int] = []

    async def wait(end: int) -> None:
        await kit.queue.wait_flushed(end)
        order.append(end)

    async with asyncio.TaskGroup() as tasks:
        for end in (3, 1, 2):
            tasks.create_task(wait(end))
        await asyncio.sleep(0)
        for _ in range(3):
            kit.append()
    kit.close()

    assert order == [1, 2, 3]


async def test_an_fsync_answers_nobody_whose_message_came_after_it_began(tmp_path, monkeypatch):
    kit = Kit(tmp_path)
    file = kit.store.segments[-1].file
    sync, permits = file.sync, SimpleQueue[None]()

    def permitted_sync() -> None:
        permits.get(timeout=GRACE_S)
        sync()

    monkeypatch.setattr(file, "sync", permitted_sync)
    first = kit.append()
    await asyncio.sleep(0)  # its fsync begins
    second = kit.append()
    waiting = asyncio.ensure_future(kit.queue.wait_flushed(second))
    permits.put(None)
    await kit.queue.wait_flushed(first)
    await asyncio.sleep(0)
    is_answered = waiting.done()
    permits.put(None)
    await waiting
    monkeypatch.undo()
    kit.close()

    assert not is_answered


async def test_a_failed_fsync_fails_who_waits_and_who_comes_later_and_tells_the_node(
    tmp_path, monkeypatch
):
    kit = Kit(tmp_path)
    monkeypatch.setattr(kit.store.segments[-1].file, "sync", broken_fsync)
    ends = [kit.append(), kit.append()]
    answers = await asyncio.gather(
        *(kit.queue.wait_flushed(end) for end in ends), return_exceptions=True
    )
    with pytest.raises(StorageFailed):
        await kit.queue.wait_flushed(0)
    with pytest.raises(StorageFailed):
        kit.append()
    kit.close()

    assert (
        [type(answer) for answer in answers],
        len(kit.failures),
        kit.store.acknowledged_end,
    ) == ([StorageFailed, StorageFailed], 1, 0)


async def test_a_job_that_fails_in_an_unforeseen_way_tells_the_node(tmp_path, monkeypatch):
    def fail(job: SaveJob) -> None:
        raise MemoryError

    monkeypatch.setattr(SaveJob, "run", fail)

    kit = Kit(tmp_path)
    await kit.queue.wait_flushed(kit.append())
    kit.store.roll(START_MS)
    kit.queue.request_flush()
    async with asyncio.timeout(10):
        with pytest.raises(StorageFailed, match="MemoryError"):
            await kit.queue.wait_flushed(100)
    with pytest.raises(StorageFailed, match="MemoryError"):
        kit.append()
    kit.close()

    assert [type(failure) for failure in kit.failures] == [StorageFailed]


async def test_a_bug_where_work_is_taken_in_tells_the_node(tmp_path, monkeypatch):
    def fail(job: SaveJob) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(SaveJob, "finish", fail)

    kit = Kit(tmp_path)
    await kit.queue.wait_flushed(kit.append())
    kit.store.roll(START_MS)
    kit.queue.request_flush()
    async with asyncio.timeout(10):
        with pytest.raises(StorageFailed, match="a bug"):
            await kit.queue.wait_flushed(100)
    kit.close()

    assert len(kit.failures) == 1


async def test_readers_hear_of_more_to_read_until_they_stop_listening(tmp_path):
    kit = Kit(tmp_path)
    heard: list[int] = []
    stop = kit.queue.on_readable(lambda: heard.append(int(kit.store.acknowledged_end)))
    await kit.queue.wait_flushed(kit.append(2))
    stop()
    stop()
    await kit.queue.wait_flushed(kit.append(1))
    kit.close()

    assert heard == [2]


async def test_closing_answers_everyone(tmp_path):
    kit = Kit(tmp_path)
    async with asyncio.TaskGroup() as tasks:
        written = tasks.create_task(kit.queue.wait_flushed(kit.append()))
        never = asyncio.ensure_future(kit.queue.wait_flushed(100))
        await asyncio.sleep(0)
        kit.close()
    with pytest.raises(Closed):
        await never

    assert written.exception() is None


async def test_waiters_who_gave_up_are_forgotten(tmp_path):
    kit = Kit(tmp_path)
    for _ in range(50):
        waiter = asyncio.ensure_future(kit.queue.wait_flushed(11))
        await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
    left = len(kit.queue._waiters)
    kit.close()

    assert left <= 1


async def test_the_interval_policy_flushes_without_anyone_asking(tmp_path):
    kit = Kit(tmp_path, LogConfig(fsync="interval", fsync_interval_ms=5))
    end = kit.append()
    await kit.queue.wait_flushed(end)
    answered_at = kit.store.flushed_end
    while kit.store.flushed_end < end:
        kit.clock.advance(5)
        await asyncio.sleep(0.001)
    kit.close()

    assert answered_at == 0
