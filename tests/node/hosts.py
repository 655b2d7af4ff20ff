"""Parts of a node on a real disk, without its servers, for tests."""

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from tests.kit.clock import ManualClock
from waterclock.log.batch import Batch, encode_batch
from waterclock.model.clock import Clock
from waterclock.model.config import Config
from waterclock.model.errors import WaterclockError
from waterclock.model.message import Message
from waterclock.model.sections import NodeConfig
from waterclock.model.views import TopicSettings
from waterclock.node.metadata import Metadata, open_metadata
from waterclock.node.publish.publisher import Publisher
from waterclock.node.task_groups import task_group
from waterclock.node.topics import Topic, Topics
from waterclock.storage.flush import BackgroundThreads

T = TypeVar("T")
START_MS = 1_700_000_000_000


def config_in(folder: Path, **sections: Any) -> Config:
    """Return a configuration whose data is in a folder."""
    return replace(Config(node=NodeConfig(data_folder=str(folder))), **sections)


@dataclass
class Hosts:
    """Metadata, topics and publishing; nothing fires and nothing is delivered."""

    config: Config
    clock: Clock
    metadata: Metadata
    topics: Topics
    publisher: Publisher
    failures: list[WaterclockError]

    async def topic(self, name: str, partitions: int = 1) -> Topic:
        return await self.topics.create(name, TopicSettings(partitions=partitions), if_absent=True)


@asynccontextmanager
async def opened(
    folder: Path, *, config: Config | None = None, clock: Clock | None = None
) -> AsyncIterator[Hosts]:
    """Open what a folder holds; leaving closes it in good order."""
    config = config or config_in(folder)
    clock = clock or ManualClock(START_MS)
    threads = BackgroundThreads()
    failures: list[WaterclockError] = []
    metadata = open_metadata(folder / "meta", clock, threads, failures.append)
    with ExitStack() as rest:
        rest.callback(threads.stop)
        rest.callback(metadata.close)
        async with task_group() as tasks:
            topics = Topics(
                folder / "topics",
                metadata,
                config=config,
                clock=clock,
                threads=threads,
                tasks=tasks,
                on_failed=failures.append,
            )
            rest.callback(topics.close)
            await topics.open()
            publisher = Publisher(topics, config.limits, clock)
            yield Hosts(config, clock, metadata, topics, publisher, failures)


def batch_of(*messages: Message, now_ms: int = START_MS) -> Batch:
    """Return a parsed batch; messages without an id get one."""
    return encode_batch(messages, Config().limits, now_ms=now_ms, entropy=b"e" * 16)
