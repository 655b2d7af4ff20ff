"""Topics on a real disk, a clock turned by hand, and no timer: what is due is fired by call."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from tests.kit.clock import ManualClock
from waterclock.log.batch import encode_batch
from waterclock.model.config import Config
from waterclock.model.limits import Limits
from waterclock.model.message import Message
from waterclock.model.sections import DedupConfig, LogConfig
from waterclock.model.units import KIB
from waterclock.model.views import TopicSettings
from waterclock.node.metadata import open_metadata
from waterclock.node.publish.publisher import Published, Publisher
from waterclock.node.schedule.pending import PendingMessages
from waterclock.node.schedule.recurrences import Recurrences
from waterclock.node.task_groups import task_group
from waterclock.node.topics import Topics
from waterclock.storage.flush import BackgroundThreads
from waterclock.storage.local_log import stored_messages

LOG = LogConfig(preallocate_bytes=64 * KIB)


class TimedTopics:
    """Topics, what publishes to them and what knows of their pending messages."""

    def __init__(
        self, path: Path, clock: ManualClock, dedup: DedupConfig, tasks: asyncio.TaskGroup
    ) -> None:
        self.clock = clock
        self.tasks = tasks
        self.limits = Limits()
        config = replace(Config(), log=LOG, dedup=dedup)
        self._threads = BackgroundThreads()
        self.metadata = open_metadata(path / "meta", clock, self._threads, self._failed)
        self.topics = Topics(
            path / "topics",
            self.metadata,
            config=config,
            clock=clock,
            threads=self._threads,
            tasks=tasks,
            on_failed=self._failed,
        )
        self.publisher = Publisher(self.topics, self.limits, clock)
        self.pending = PendingMessages(self.topics, self.limits, clock)
        self.reopen_recurrences()

    @staticmethod
    def _failed(error: BaseException) -> None:
        raise AssertionError(f"the disk failed: {error}")

    def reopen_recurrences(self) -> None:
        """Take up recurrences as a node does that starts."""
        self.recurrences = Recurrences(
            self.metadata, self.publisher, self.pending, self.clock, self.tasks
        )
        self.topics.while_deleting = [self.recurrences.topic_deleting]

    async def create(self, name: str, partitions: int = 1) -> None:
        """Create a topic."""
        await self.topics.create(name, TopicSettings(partitions=partitions))

    async def publish(self, topic: str, messages: Sequence[Message], **how: object) -> Published:
        """Publish a batch."""
        batch = encode_batch(messages, self.limits, now_ms=self.clock.now_ms())
        return await self.publisher.publish_batch(topic, batch.body, **how)  # type: ignore[arg-type]

    async def fired(self, topic: str) -> list[Message]:
        """Fire what is due; return all deliverable messages of a topic, partition by partition."""
        found: list[Message] = []
        for host in self.topics.get(topic).partitions:
            while host.scheduler.firing.fire_slice():
                pass
            host.flush_queue.request_flush()
            await host.flush_queue.wait_flushed(host.store.end)
            for frame in host.store.frames(host.store.start):
                if frame.header.is_deliverable:
                    found += [m for _, m in stored_messages(frame, frame.header.base_offset)]
        return found

    def close(self) -> None:
        """Stop cleanly."""
        self.topics.close()
        self.metadata.close()
        self._threads.stop()


@asynccontextmanager
async def timed_topics(
    path: Path, clock: ManualClock | None = None, dedup: DedupConfig | None = None
) -> AsyncIterator[TimedTopics]:
    """Open what is in a folder for as long as the context lasts."""
    with ExitStack() as rest:
        async with task_group() as tasks:
            here = TimedTopics(path, clock or ManualClock(), dedup or DedupConfig(), tasks)
            rest.callback(here.close)
            await here.topics.open()
            yield here


@asynccontextmanager
async def with_topic(
    path: Path, *, partitions: int, dedup: DedupConfig | None = None
) -> AsyncIterator[TimedTopics]:
    """The same, with a topic `t`."""
    async with timed_topics(path, dedup=dedup) as here:
        await here.create("t", partitions)
        yield here
