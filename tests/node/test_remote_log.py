"""A log that another node has, as it is read here: the same frames, pulled when they are wanted."""

import asyncio
from typing import NoReturn

import pytest

from tests.kit.clock import ManualClock
from tests.node.test_log_reader import frames_of, read_on
from tests.server.http_client import until
from tests.storage.stores import Partition, message
from waterclock.log.frame import Frame, FrameType, read_frame
from waterclock.log.recovery import Damage
from waterclock.model.errors import NotLeader, Unavailable
from waterclock.model.ids import Offset
from waterclock.node.partition import remote_log
from waterclock.node.partition.host import PartitionHost
from waterclock.node.partition.log_reader import LogReader, Missing
from waterclock.node.partition.remote_log import (
    FrameCache,
    LogAnswer,
    LogQuery,
    RemoteLog,
    current_log,
    frames_from,
    is_current,
)

TEST_S = 5


class Elsewhere:
    """The other node, which can be behind, or away."""

    def __init__(self, partition: Partition) -> None:
        self.reader = LogReader(partition.store)
        self.asked: list[LogQuery] = []
        self.failures = 0
        self.end: int | None = None
        """How far its copy reaches, if it is behind."""
        self.grown = asyncio.Event()

    async def read(self, query: LogQuery) -> LogAnswer:
        self.asked.append(query)
        if self.failures:
            self.failures -= 1
            raise NotLeader("orders/0")
        end = self.reader.end if self.end is None else self.end
        if query.wait_ms and end <= query.beyond:
            self.grown.clear()
            await self.grown.wait()
            end = self.reader.end
        frames: list[Frame] = []
        next_offset = query.offset
        if 0 <= query.offset < end:
            frames, next_offset = frames_from(self.reader, query.offset, query.bytes_max)
            frames = [read_frame(bytes(frame.raw)) for frame in frames]
        positions = tuple(self.reader.store.offset_at(time_ms) for time_ms in query.times)
        start, log_id = self.reader.start, self.reader.log_id
        return LogAnswer(start, end, start, log_id, 7, frames, next_offset, positions)


def no_copy(*, was_here: bool) -> NoReturn:
    raise AssertionError("there is no copy here")


def host_of(elsewhere: Elsewhere | None) -> PartitionHost:
    host = PartitionHost("orders", 0, ManualClock(0), opening=no_copy)
    host.reads = elsewhere
    return host


@pytest.fixture
def partition() -> Partition:
    found = Partition()
    found.fill(range(3), roll=True)
    found.publish(message(3), message(4), message(5, due_ms=2_000_000_000_000))
    found.fill(range(6, 9))
    return found


async def read_all(log: RemoteLog) -> list[tuple[int, int, str]]:
    """Read as those do that wait."""
    await log.refresh()
    found: list[tuple[int, int, str]] = []
    at = 0
    while at < log.end:
        await log.load(at)
        frame = log.at(at)
        assert frame is not None
        if isinstance(frame, Missing):
            at = frame.end
        else:
            header = frame.header
            found.append((header.base_offset, header.end_offset, header.type.name))
            at = header.end_offset
    return found


async def test_who_waits_reads_the_frames_with_messages_and_nothing_else(partition):
    elsewhere = Elsewhere(partition)
    log = RemoteLog(host_of(elsewhere))

    wanted = [each for each in frames_of(partition.store) if each[2] != FrameType.SCHEDULED.name]
    assert await read_all(log) == wanted
    assert len(elsewhere.asked) == 2, "how far, and all of it"
    assert (log.start, log.end, log.log_id) == (0, 9, partition.store.log_id)
    assert await log.offset_at(0) == 0
    frame = log.at(4)
    assert isinstance(frame, Frame)
    assert log.rows(frame).column("message_id").to_pylist() == [
        row.message_id for row in (message(3), message(4))
    ]


async def test_what_has_no_room_is_pulled_again(partition, monkeypatch):
    monkeypatch.setattr(remote_log, "READ_BYTES", 1)
    elsewhere = Elsewhere(partition)
    log = RemoteLog(host_of(elsewhere), FrameCache(1))

    first = await read_all(log)
    count = len(elsewhere.asked)
    assert await read_all(log) == first
    assert len(elsewhere.asked) == 2 * count
    assert len(log._pulled) == 1


async def test_a_copy_that_is_behind_is_asked_until_it_is_not(partition, monkeypatch):
    monkeypatch.setattr(remote_log, "PAUSE_S", 0.001)
    elsewhere = Elsewhere(partition)
    log = RemoteLog(host_of(elsewhere))
    await log.refresh()
    elsewhere.end = 2
    loading = asyncio.ensure_future(log.load(5))
    await until(lambda: len(elsewhere.asked) >= 4)
    assert (log.end, loading.done()) == (9, False)

    elsewhere.end = None
    await loading
    assert log.at(5) is not None


async def test_what_the_copy_that_answers_does_not_reach_is_not_taken_for_the_end(
    partition, monkeypatch
):
    monkeypatch.setattr(remote_log, "ASK_S", 0.01)
    elsewhere = Elsewhere(partition)
    elsewhere.end = 2
    log = RemoteLog(host_of(elsewhere))  # who reads on has heard of the rest from another copy

    with pytest.raises(Unavailable, match="does not reach 5 yet"):
        await log.load(5)


async def test_who_waits_is_told_when_nobody_answers_for_too_long(partition, monkeypatch):
    monkeypatch.setattr(remote_log, "ASK_S", 0.05)
    elsewhere = Elsewhere(partition)
    elsewhere.failures = 1_000
    with pytest.raises(NotLeader):
        await RemoteLog(host_of(elsewhere)).refresh()
    with pytest.raises(Unavailable):
        await RemoteLog(host_of(None)).refresh()


async def test_who_listens_is_woken_by_what_comes_and_by_what_was_pulled(partition):
    elsewhere = Elsewhere(partition)
    elsewhere.failures = 1
    async with asyncio.timeout(TEST_S), asyncio.TaskGroup() as tasks:
        log = RemoteLog(host_of(elsewhere), spawn=tasks.create_task)
        woken = asyncio.Event()
        stop = log.on_readable(woken.set)

        async def until_there(offset: int) -> None:
            while not log.has(offset, offset + 1):
                woken.clear()
                await woken.wait()

        await until_there(8)
        await until_there(0)
        assert [each for each in read_on(log, 0) if each[2] != "missing"] == [
            each for each in frames_of(partition.store) if each[2] != FrameType.SCHEDULED.name
        ]
        assert log.at(9) is None, "who reads at the end gets what comes with the news"
        count = len(elsewhere.asked)
        waiting = tasks.create_task(until_there(9))
        await asyncio.sleep(0)
        partition.fill(range(9, 11))
        elsewhere.grown.set()
        await waiting
        assert len(elsewhere.asked) - count <= 2
        stop()
        log.close()
        assert log._cache.size_bytes == 0


class Follower:
    """A host whose copy is behind, as far as it is asked."""

    topic, partition, role, problem, is_open = "orders", 0, "follower", None, True

    def __init__(self, elsewhere: Elsewhere) -> None:
        self.reads = elsewhere
        self.store = elsewhere.reader.store
        self.flush_queue = self
        self.waited: list[int] = []
        self.has_come = asyncio.Event()
        self.others_count = False

    def has_others(self) -> bool:
        return self.others_count

    def met_damage(self) -> bool:
        return self.others_count

    async def wait_flushed(self, end: int) -> None:
        self.waited.append(end)
        await self.has_come.wait()


async def test_a_copy_that_follows_is_read_once_it_has_what_was_acknowledged(partition):
    follower = Follower(Elsewhere(partition))
    waiting = asyncio.ensure_future(current_log(follower))  # type: ignore[arg-type]
    await until(lambda: follower.waited == [9])
    assert not waiting.done()

    follower.has_come.set()
    assert isinstance(await waiting, LogReader)


@pytest.mark.parametrize("has_others", [True, False])
async def test_a_damaged_copy_is_read_elsewhere_if_others_count(partition, has_others):
    follower = Follower(Elsewhere(partition))
    follower.has_come.set()
    here = await current_log(follower)  # type: ignore[arg-type]
    follower.store.faults.append(Damage(64, 128, Offset(0), Offset(1), "rot"))
    follower.others_count = has_others

    found = await current_log(follower)  # type: ignore[arg-type]

    assert isinstance(found, RemoteLog if has_others else LogReader)
    assert is_current(here, follower) is not has_others  # type: ignore[arg-type]
    assert is_current(found, follower)  # type: ignore[arg-type]
    assert found.end == 9


async def test_a_copy_is_read_as_it_is_while_nobody_leads(partition):
    follower = Follower(Elsewhere(partition))
    follower.reads.failures = 1
    found = await current_log(follower)  # type: ignore[arg-type]
    assert (isinstance(found, LogReader), follower.waited) == (True, [])


async def test_a_copy_that_does_not_come_up_is_not_read(partition, monkeypatch):
    monkeypatch.setattr(remote_log, "ASK_S", 0.01)
    with pytest.raises(Unavailable, match="does not reach 9 yet"):
        await current_log(Follower(Elsewhere(partition)))  # type: ignore[arg-type]
