from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.hosts import START_MS, Hosts, batch_of, config_in, opened, run
from waterclock.model.config import Config
from waterclock.model.errors import StorageFull
from waterclock.model.message import Message
from waterclock.model.sections import DedupConfig, LogConfig, RetentionConfig
from waterclock.model.units import DAY_MS, KIB
from waterclock.node import housekeeping as module
from waterclock.node.housekeeping import Housekeeping
from waterclock.node.topics import Topic, TopicSettings
from waterclock.storage.local_log import stored_messages
from waterclock.storage.rewriting import RewriteJob
from waterclock.testing.clock import ManualClock


class Readers:
    """Groups, as far as retention asks about them."""

    def __init__(self) -> None:
        self.committed: int | None = None

    def min_committed(self, topic: str, partition: int) -> int | None:
        return self.committed


def small_segments(folder: Path, **sections: object) -> Config:
    log = LogConfig(segment_bytes=4 * KIB, preallocate_bytes=0)
    return config_in(folder, log=log, dedup=DedupConfig(enabled=False), **sections)


def keeper(hosts: Hosts, readers: Readers) -> Housekeeping:
    return Housekeeping(
        hosts.topics, hosts.metadata, hosts.config, consumed_end=readers.min_committed
    )


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


def test_what_is_too_old_and_read_by_all_goes(tmp_path):
    clock = ManualClock(START_MS)

    async def retain():
        config = small_segments(tmp_path, retention=RetentionConfig(age_ms=DAY_MS))
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

    held, freed = run(retain())

    assert 0 < held <= 20
    assert held < freed <= 30


def test_a_topic_may_keep_less_than_the_node_or_all(tmp_path):
    async def retain():
        config = small_segments(tmp_path, retention=RetentionConfig(bytes=8 * KIB))
        async with opened(tmp_path, config=config) as hosts:
            short = await hosts.topic("short")
            kept = await hosts.topics.create("kept", TopicSettings(retention_bytes=0))
            await fill(short, 60)
            await fill(kept, 60)
            await keeper(hosts, Readers()).once()
            return min(offsets(short)), min(offsets(kept))

    first_short, first_kept = run(retain())

    assert first_short > 30
    assert first_kept == 0


def test_a_compacted_topic_keeps_the_latest_of_each_key_and_what_is_unread(tmp_path):
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

    unread, latest, active = run(compact())

    assert set(range(10, 60)) <= unread
    assert set(range(active, 120)) | {117, 118, 119} == latest


def test_messages_published_during_a_pass_are_kept(tmp_path, monkeypatch):
    async def compact():
        async with opened(tmp_path, config=small_segments(tmp_path)) as hosts:
            topic = await hosts.topics.create("t", TopicSettings(is_compacted=True))
            await fill(topic, 40, keys=2)
            real = module._frames

            async def slowly(store):
                frames = await real(store)
                await fill(topic, 40, keys=2, start=40)
                return frames

            monkeypatch.setattr(module, "_frames", slowly)
            await keeper(hosts, Readers()).once()
            return set(offsets(topic))

    assert set(range(40, 80)) <= run(compact())


def test_a_full_disk_puts_it_off_for_one_topic_and_not_for_the_others(tmp_path, monkeypatch):
    real = RewriteJob.run

    async def retain():
        config = small_segments(tmp_path, retention=RetentionConfig(bytes=8 * KIB))
        async with opened(tmp_path, config=config) as hosts:
            full, other = await hosts.topic("full"), await hosts.topic("other")
            await fill(full, 60)
            await fill(other, 60)

            def run_if_space(job: RewriteJob) -> None:
                if job._store is full.partition(0).store:
                    raise StorageFull("no space")
                real(job)

            monkeypatch.setattr(RewriteJob, "run", run_if_space)
            await keeper(hosts, Readers()).once()
            later = min(offsets(full)), min(offsets(other))
            monkeypatch.undo()
            await keeper(hosts, Readers()).once()
            return later, min(offsets(full))

    (full, other), again = run(retain())

    assert full == 0
    assert other > 30
    assert again > 30
