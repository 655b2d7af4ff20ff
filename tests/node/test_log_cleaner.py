import asyncio
import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from tests.kit.clock import ManualClock
from tests.node.hosts import START_MS, Hosts, batch_of, config_in, opened
from waterclock.log.segment import segment_name
from waterclock.model.config import Config
from waterclock.model.errors import Closed, FrameDamaged, StorageFailed, StorageFull
from waterclock.model.ids import Millis
from waterclock.model.message import Message
from waterclock.model.sections import DedupConfig, LogConfig, RetentionConfig
from waterclock.model.units import DAY_MS, KIB
from waterclock.model.views import TopicSettings
from waterclock.node import log_cleaner as module
from waterclock.node import metadata as metadata_module
from waterclock.node.log_cleaner import LogCleaner
from waterclock.node.partition.host import PartitionHost
from waterclock.node.topics import Topic
from waterclock.storage.local_log import stored_messages
from waterclock.storage.rewrite import RewriteJob


class Readers:
    """Groups, as far as retention asks about them."""

    def __init__(self) -> None:
        self.committed: int | None = None
        self.trimmed: list[int] = []
        self.asked = 0

    def consumed_end(self, topic: str, partition: int) -> int | None:
        self.asked += 1
        return self.committed

    async def trim(self, partition: PartitionHost, start: int) -> None:
        self.trimmed.append(start)

    async def expire(self) -> None:
        pass


def small_segments(folder: Path, **sections: object) -> Config:
    log = LogConfig(segment_bytes=4 * KIB, preallocate_bytes=0)
    return config_in(folder, log=log, dedup=DedupConfig(enabled=False), **sections)


def keeper(hosts: Hosts, readers: Readers) -> LogCleaner:
    return LogCleaner(hosts.topics, hosts.metadata, hosts.config, readers)


async def fill(topic: Topic, count: int, *, keys: int = 0, start: int = 0) -> None:
    for i in range(start, start + count):
        key = b"k%d" % (i % keys) if keys else None
        message = Message(b"%d" % i + b"." * 500, key=key, message_id=b"%d" % i)
        await topic.partition(0).publish(batch_of(message))
    host = topic.partition(0)
    while host.store.jobs:
        host.store.run_jobs()


def offsets(topic: Topic) -> Iterator[int]:
    for frame in topic.partition(0).store.frames(topic.partition(0).store.start):
        if frame.header.is_deliverable:
            yield from (stored.offset for stored in stored_messages(frame, 0))


@pytest.fixture(autouse=True)
def _compact_small_logs(monkeypatch):
    monkeypatch.setattr(module, "COMPACT_BYTES_MIN", 4 * KIB)


async def test_what_is_too_old_goes_once_all_have_read_it_if_that_is_awaited(tmp_path):
    clock = ManualClock(START_MS)

    async def retain():
        waiting = RetentionConfig(age_ms=DAY_MS, wait_for_groups=True)
        config = small_segments(tmp_path, retention=waiting)
        async with opened(tmp_path, config=config, clock=clock) as hosts:
            topic = await hosts.topic("t")
            await fill(topic, 30)
            clock.advance(2 * DAY_MS)
            await fill(topic, 30, start=30)
            readers = Readers()
            readers.committed = 20
            await keeper(hosts, readers).once()
            held = min(offsets(topic))
            readers.committed = None
            await keeper(hosts, readers).once()
            return held, min(offsets(topic))

    held, freed = await retain()

    assert 0 < held <= 20
    assert held < freed <= 30


@pytest.mark.parametrize("own", [None, True, False])
async def test_retention_waits_for_no_group_unless_the_topic_says_so(tmp_path, own):
    config = small_segments(tmp_path, retention=RetentionConfig(bytes=8 * KIB))
    async with opened(tmp_path, config=config) as hosts:
        settings = TopicSettings(retention_wait_for_groups=own)
        topic = await hosts.topics.create("t", settings)
        await fill(topic, 60)
        readers = Readers()
        readers.committed = 0
        await keeper(hosts, readers).once()
        first, trimmed = min(offsets(topic)), readers.trimmed

    if own:
        assert (first, trimmed) == (0, [])
    else:
        assert not readers.asked, "with a thousand partitions and groups, asking takes its time"
        assert first > 30
        assert trimmed == [first], "the groups were told before"


async def test_a_topic_may_keep_less_than_the_node_or_all(tmp_path):
    config = small_segments(tmp_path, retention=RetentionConfig(bytes=8 * KIB))
    async with opened(tmp_path, config=config) as hosts:
        short = await hosts.topic("short")
        kept = await hosts.topics.create("kept", TopicSettings(retention_bytes=0))
        # Less than the node itself can be configured to keep.
        least = await hosts.topics.create("least", TopicSettings(retention_bytes=1))
        for topic in (short, kept, least):
            await fill(topic, 60)
        await keeper(hosts, Readers()).once()
        first_short, first_kept, first_least = (min(offsets(t)) for t in (short, kept, least))

    assert first_short > 30
    assert first_kept == 0
    assert first_least > first_short


async def test_a_compacted_topic_keeps_the_latest_of_each_key_and_what_is_unread(tmp_path):
    async def compact():
        async with opened(tmp_path, config=small_segments(tmp_path)) as hosts:
            topic = await hosts.topics.create("t", TopicSettings(is_compacted=True))
            await fill(topic, 60, keys=3)
            readers = Readers()
            readers.committed = 10
            await keeper(hosts, readers).once()
            unread = set(offsets(topic))
            readers.committed = 120
            await fill(topic, 60, keys=3, start=60)
            await keeper(hosts, readers).once()
            return unread, set(offsets(topic)), topic.partition(0).store.segments[-1].base_offset

    unread, latest, active = await compact()

    assert set(range(10, 60)) <= unread
    assert set(range(active, 120)) | {117, 118, 119} == latest


async def test_messages_published_during_a_pass_are_kept(tmp_path, slow_rewrites):
    async with opened(tmp_path, config=small_segments(tmp_path)) as hosts:
        topic = await hosts.topics.create("t", TopicSettings(is_compacted=True))
        await fill(topic, 40, keys=2)
        with slow_rewrites() as slow:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(keeper(hosts, Readers()).once())
                await slow.has_begun.wait()
                await fill(topic, 40, keys=2, start=40)
                slow.go_on.set()
        assert set(range(40, 80)) <= set(offsets(topic))


# When something goes wrong


class SlowRewrites:
    """Rewrites that wait for a word, inside."""

    def __init__(self) -> None:
        self.has_begun = asyncio.Event()
        self.go_on = threading.Event()
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.go_on.set()

    def wait(self) -> None:
        self._loop.call_soon_threadsafe(self.has_begun.set)
        self.go_on.wait()


@pytest.fixture
def slow_rewrites(monkeypatch):
    def slow_rewrites() -> SlowRewrites:
        slow, real = SlowRewrites(), RewriteJob.run

        def run(job: RewriteJob) -> None:
            slow.wait()
            real(job)

        monkeypatch.setattr(RewriteJob, "run", run)
        return slow

    return slow_rewrites


async def two_topics(hosts: Hosts) -> tuple[Topic, Topic]:
    """Return two topics that have more than may be retained."""
    first, second = await hosts.topic("first"), await hosts.topic("second")
    await fill(first, 60)
    await fill(second, 60)
    return first, second


def retaining(folder: Path) -> Config:
    return small_segments(folder, retention=RetentionConfig(bytes=8 * KIB))


@pytest.mark.parametrize("problem", [StorageFull, FrameDamaged, Closed])
async def test_a_problem_puts_it_off_for_one_topic_and_not_for_the_others(
    tmp_path, monkeypatch, problem
):
    real = RewriteJob.run

    async def retain():
        async with opened(tmp_path, config=retaining(tmp_path)) as hosts:
            first, second = await two_topics(hosts)

            def run_if_well(job: RewriteJob) -> None:
                if job._store is first.partition(0).store:
                    raise problem("not now")
                real(job)

            monkeypatch.setattr(RewriteJob, "run", run_if_well)
            await keeper(hosts, Readers()).once()
            later = min(offsets(first)), min(offsets(second))
            monkeypatch.undo()
            await keeper(hosts, Readers()).once()
            return later, min(offsets(first))

    (first, second), again = await retain()

    assert first == 0
    assert second > 30
    assert again > 30


async def test_rot_met_on_the_way_is_a_problem_of_its_partition_alone(tmp_path):
    async def retain():
        async with opened(tmp_path, config=retaining(tmp_path)) as hosts:
            first, second = await two_topics(hosts)
            segment = tmp_path / "topics" / first.folder / "0" / "log" / segment_name(0)
            with segment.open("r+b") as file:
                file.seek(1_500)
                file.write(b"rot")
            await keeper(hosts, Readers()).once()
            await keeper(hosts, Readers()).once()
            left = [path.name for path in segment.parent.glob("*.tmp")]
            return len(first.partition(0).store.faults), left, min(offsets(second))

    faults, left, second = await retain()

    assert faults == 1
    assert left == []
    assert second > 30


async def test_a_disk_that_failed_ends_it(tmp_path, monkeypatch):
    def fail(job: RewriteJob) -> None:
        raise StorageFailed("EIO")

    async with opened(tmp_path, config=retaining(tmp_path)) as hosts:
        await two_topics(hosts)
        monkeypatch.setattr(RewriteJob, "run", fail)
        with pytest.raises(StorageFailed):
            await keeper(hosts, Readers()).once()


async def test_records_that_cannot_be_compacted_keep_no_topic_from_its_turn(tmp_path, monkeypatch):
    def full(now_ms: int) -> None:
        raise StorageFull("no space")

    async with opened(tmp_path, config=retaining(tmp_path)) as hosts:
        first, _ = await two_topics(hosts)
        monkeypatch.setattr(metadata_module, "HISTORY_BYTES_MIN", 1)
        for number in range(50):
            await hosts.metadata.put("x", b"%d" % number)
        monkeypatch.setattr(hosts.metadata._store, "roll", full)
        await keeper(hosts, Readers()).once()
        assert min(offsets(first)) > 30


async def test_a_topic_is_not_closed_while_its_segment_is_rewritten(tmp_path, slow_rewrites):
    async with opened(tmp_path, config=retaining(tmp_path)) as hosts:
        first, second = await two_topics(hosts)
        host = first.partition(0)
        is_deleted = asyncio.Event()
        hosts.topics.on_deleted.append(lambda topic: is_deleted.set())
        with slow_rewrites() as slow:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(keeper(hosts, Readers()).once())
                await slow.has_begun.wait()
                deleting = tasks.create_task(hosts.topics.delete("first"))
                await is_deleted.wait()
                host.store.check_appendable()
                slow.go_on.set()
                await deleting
                with pytest.raises(Closed):
                    host.store.check_appendable()
        assert min(offsets(second)) > 30


# What is remembered between passes


async def test_what_scheduled_messages_pin_is_written_anew_once_and_not_each_time(
    tmp_path, monkeypatch
):
    written: list[int] = []
    real = RewriteJob._write_anew

    def noted(job: RewriteJob, *rest: object) -> None:
        written.append(job._old.base_offset)
        real(job, *rest)  # type: ignore[arg-type]

    async with opened(tmp_path, config=retaining(tmp_path)) as hosts:
        topic = await hosts.topic("t")
        due = Millis(START_MS + DAY_MS)
        for number in range(30):
            message = Message(b"." * 500, message_id=b"%d" % number, due_ms=due)
            await topic.partition(0).publish(batch_of(message))
        topic.partition(0).store.run_jobs()
        monkeypatch.setattr(RewriteJob, "_write_anew", noted)
        cleaner = keeper(hosts, Readers())
        for _ in range(3):
            await cleaner.once()
        segments = len(topic.partition(0).store.segments)

    assert len(written) == len(set(written))
    assert 1 < len(written) < segments


async def test_partitions_of_deleted_topics_are_forgotten(tmp_path):
    async with opened(tmp_path, config=retaining(tmp_path)) as hosts:
        await two_topics(hosts)
        cleaner = keeper(hosts, Readers())
        await cleaner.once()
        await hosts.topics.delete("first")
        gc.collect()
        assert [host.topic for host in cleaner._compacted_bytes] == ["second"]
