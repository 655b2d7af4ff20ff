"""A partition with replicas: what its host does as a follower, as a leader, and in between."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.kit.clock import ManualClock
from tests.node.hosts import START_MS, batch_of
from waterclock.model.config import Config
from waterclock.model.errors import Fenced, NotLeader
from waterclock.model.ids import Epoch, Millis
from waterclock.model.message import Message
from waterclock.node.partition.host import PartitionHost
from waterclock.node.partition.opening import replica_host
from waterclock.node.schedule.scheduler import Scheduler
from waterclock.storage.flush import BackgroundThreads

LOG_ID = b"l" * 16
ONE = batch_of(Message(b"one", message_id=b"1"))
LATER = batch_of(Message(b"later", message_id=b"2", due_ms=Millis(START_MS + 60_000)))


@asynccontextmanager
async def replica_in(folder: Path, log_id: bytes = LOG_ID) -> AsyncIterator[PartitionHost]:
    threads = BackgroundThreads()
    host = replica_host(
        "t",
        0,
        log_folder=folder / "log",
        timers_folder=folder / "timers",
        config=Config(),
        clock=ManualClock(START_MS),
        threads=threads,
        loop=asyncio.get_running_loop(),
        on_failed=lambda error: None,
        on_full=lambda error: None,
        log_id=log_id,
    )
    try:
        yield host
    finally:
        host.close()
        threads.stop()


def begin_epoch(host: PartitionHost, epoch: int) -> None:
    assert host.replica is not None
    host.replica.begin_epoch(Epoch(epoch), now_ms=START_MS)
    host.flush_queue.request_flush()


def commit(host: PartitionHost, end: int) -> None:
    assert host.replica is not None
    host.replica.commit(end)
    host.flush_queue.committed()


async def test_a_follower_has_a_log_and_takes_no_publishes(tmp_path):
    async with replica_in(tmp_path) as host:
        assert (host.role, host.is_open) == ("closed", False)
        await host.open_replica()
        host.follow("n2")

        with pytest.raises(NotLeader) as refused:
            await host.publish(ONE)
        with pytest.raises(NotLeader):
            _ = host.scheduler

        assert (host.role, host.store.log_id, refused.value.leader) == ("follower", LOG_ID, "n2")


async def test_a_publish_is_answered_once_it_is_committed(tmp_path):
    async with replica_in(tmp_path) as host:
        await host.open_replica()
        begin_epoch(host, 1)
        host.admit(Epoch(1), leader="n1")

        async with asyncio.TaskGroup() as tasks:
            publish = tasks.create_task(host.publish(ONE))
            await host.publish(batch_of(Message(b"x", message_id=b"x")), acks="leader")
            assert not publish.done()
            commit(host, host.store.end)

        assert list(publish.result().offsets) == [2]


async def test_who_reads_a_log_that_was_opened_again_hears_how_far_it_is_committed(tmp_path):
    async with replica_in(tmp_path) as host:
        await host.open_replica()
        begin_epoch(host, 1)
    async with replica_in(tmp_path) as host:
        await host.open_replica()
        heard: list[int] = []
        host.flush_queue.on_readable(lambda: heard.append(host.store.acknowledged_end))
        assert host.store.acknowledged_end == 0

        commit(host, host.store.end)

        assert heard == [1]


async def test_who_waits_when_the_lead_is_lost_learns_that_nobody_knows(tmp_path):
    async with replica_in(tmp_path) as host:
        await host.open_replica()
        begin_epoch(host, 1)
        host.admit(Epoch(1), leader="n1")

        async def refused() -> None:
            with pytest.raises(Fenced, match="another leads"):
                await host.publish(ONE)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(refused())
            await host.publish(batch_of(Message(b"x", message_id=b"x")), acks="leader")
            host.step_down("another leads")

        assert (host.role, host.leader) == ("follower", "")


async def test_what_is_scheduled_while_the_timers_are_loaded_is_among_them(tmp_path):
    async with replica_in(tmp_path) as host:
        await host.open_replica()
        begin_epoch(host, 1)
        host.admit(Epoch(1), leader="n1")
        host.append(LATER)  # before they are loaded
        host.lead()

        async with asyncio.TaskGroup() as tasks:
            loading = tasks.create_task(host.load_timers())
            await asyncio.sleep(0)
            host.append(batch_of(Message(b"y", message_id=b"y", due_ms=Millis(START_MS + 1_000))))

        assert loading.result() is host.scheduler
        assert len(host.scheduler) == 2


async def led_with_timers(host: PartitionHost) -> Scheduler:
    await host.open_replica()
    begin_epoch(host, 1)
    host.admit(Epoch(1), leader="n1")
    host.append(LATER)
    commit(host, host.store.end)
    host.lead()
    scheduler = await host.load_timers()
    assert scheduler is not None
    return scheduler


async def test_timers_write_nothing_to_the_log_once_the_lead_is_lost(tmp_path):
    async with replica_in(tmp_path) as host:
        scheduler = await led_with_timers(host)
        assert isinstance(host.clock, ManualClock)
        host.clock.advance(60_000)
        host.step_down("another leads")
        end, later = host.store.end, np.array([1])

        assert not scheduler.firing.fire_slice()
        with pytest.raises(NotLeader):
            await scheduler.cancel(later)
        with pytest.raises(NotLeader):
            await scheduler.reschedule(later, later)
        with pytest.raises(NotLeader):
            _ = host.scheduler
        assert host.store.end == end


async def test_timers_of_a_lead_that_was_lost_are_not_those_of_the_next(tmp_path):
    """They know nothing of what the leader between did: fired, they would fire again."""
    async with replica_in(tmp_path) as host:
        before = await led_with_timers(host)
        host.step_down("another leads")
        begin_epoch(host, 3)
        host.admit(Epoch(3), leader="n1")
        host.lead()

        with pytest.raises(NotLeader):
            await before.cancel(np.array([1]))
        with pytest.raises(NotLeader):
            _ = host.scheduler
        host.unload_timers()
        await host.load_timers()
        assert len(host.scheduler) == 1


async def test_a_cancel_that_waits_when_the_lead_is_lost_learns_that_nobody_knows(tmp_path):
    async with replica_in(tmp_path) as host:
        scheduler = await led_with_timers(host)

        async def refused() -> None:
            with pytest.raises(Fenced, match="another leads"):
                await scheduler.cancel(np.array([1]))

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(refused())
            await asyncio.sleep(0)
            host.step_down("another leads")


async def test_a_log_that_was_cut_is_opened_anew(tmp_path):
    seen: list[str] = []
    async with replica_in(tmp_path) as host:
        replica = await host.open_replica()
        assert replica is not None
        begin_epoch(host, 1)
        host.admit(Epoch(1), leader="n1")
        host.append(ONE)
        host.on_role.append(lambda host: seen.append(host.role))

        host.step_down("another leads")
        replica.truncate(1)
        host.close_replica("it is cut")
        assert not host.is_open
        await host.open_replica()

        assert seen == ["follower", "closed", "follower"]
        assert host.store.end == 1


async def test_a_log_of_another_partition_is_not_taken_for_its_own(tmp_path):
    async with replica_in(tmp_path) as host:
        await host.open_replica()
    async with replica_in(tmp_path, log_id=b"m" * 16) as host:
        assert await host.open_replica() is None

        assert host.problem is not None
        assert "has the log 6c6c" in host.problem
        assert not host.is_open


async def test_a_log_that_was_here_and_is_gone_is_damaged_and_takes_nothing(tmp_path):
    for _ in range(2):  # the second start finds an empty log, and knows what it is
        async with replica_in(tmp_path) as host:
            replica = await host.open_replica(was_here=True)

            assert replica is not None
            assert replica.is_faulty
            assert "its folder was removed" in host.view().problem
