"""The blocking twins of `admin.py`: the same names, and calls that wait."""

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import TypeVar

from waterclock.client import admin
from waterclock.client.admin import Span, StartAt
from waterclock.client.due import When
from waterclock.client.loop_thread import LoopThread
from waterclock.client.results import DeadLetter, GroupInfo, ReplayInfo, TopicInfo

Item = TypeVar("Item")


def each(background: LoopThread, items: AsyncIterator[Item]) -> Iterator[Item]:
    """Yield the items of an async iterator, waiting for each."""

    async def following() -> Item | None:
        return await anext(items, None)

    async def close() -> None:
        await getattr(items, "aclose", _nothing)()

    try:
        while (item := background.run(following())) is not None:
            yield item
    finally:
        background.run(close())


async def _nothing() -> None:
    """Close what needs no closing."""


class Topics:
    """Create, change and look at topics."""

    def __init__(self, background: LoopThread, topics: admin.Topics) -> None:
        self._background = background
        self._topics = topics

    def create(
        self,
        name: str,
        *,
        partitions: int | None = None,
        retention: Span | None = None,
        retention_bytes: int | None = None,
        retention_wait_for_groups: bool | None = None,
        is_compacted: bool | None = None,
        retries_max: int | None = None,
        ack_timeout: Span | None = None,
        if_absent: bool = False,
    ) -> TopicInfo:
        """Create a topic; what is not given is as the node's configuration says."""
        return self._background.run(
            self._topics.create(
                name,
                partitions=partitions,
                retention=retention,
                retention_bytes=retention_bytes,
                retention_wait_for_groups=retention_wait_for_groups,
                is_compacted=is_compacted,
                retries_max=retries_max,
                ack_timeout=ack_timeout,
                if_absent=if_absent,
            )
        )

    def update(
        self,
        name: str,
        *,
        partitions: int | None = None,
        retention: Span | None = None,
        retention_bytes: int | None = None,
        retention_wait_for_groups: bool | None = None,
        is_compacted: bool | None = None,
        retries_max: int | None = None,
        ack_timeout: Span | None = None,
    ) -> TopicInfo:
        """Change what is given. A retention of zero keeps messages for ever."""
        return self._background.run(
            self._topics.update(
                name,
                partitions=partitions,
                retention=retention,
                retention_bytes=retention_bytes,
                retention_wait_for_groups=retention_wait_for_groups,
                is_compacted=is_compacted,
                retries_max=retries_max,
                ack_timeout=ack_timeout,
            )
        )

    def get(self, name: str) -> TopicInfo:
        """Return a topic; raises UnknownTopic."""
        return self._background.run(self._topics.get(name))

    def list(self) -> list[TopicInfo]:
        """Return all topics."""
        return self._background.run(self._topics.list())

    def delete(self, name: str) -> None:
        """Delete a topic and all its messages."""
        self._background.run(self._topics.delete(name))

    def find_offsets(self, name: str, since: When) -> dict[int, int]:
        """Return the first offset appended at or after a time, by partition."""
        return self._background.run(self._topics.find_offsets(name, since))


class Groups:
    """Look at groups, move them, delete them."""

    def __init__(self, background: LoopThread, groups: admin.Groups) -> None:
        self._background = background
        self._groups = groups

    def list(self, topic: str | None = None) -> list[GroupInfo]:
        """Return the groups of a topic, or of all."""
        return self._background.run(self._groups.list(topic))

    def get(self, topic: str, group: str) -> GroupInfo:
        """Return a group; raises NotFound."""
        return self._background.run(self._groups.get(topic, group))

    def delete(self, topic: str, group: str) -> None:
        """Forget a group and how far it has come."""
        self._background.run(self._groups.delete(topic, group))

    def seek(self, topic: str, group: str, to: StartAt | Mapping[int, int]) -> GroupInfo:
        """Set where a group goes on; raises Busy while it has members."""
        return self._background.run(self._groups.seek(topic, group, to))


class DeadLetters:
    """Look at the messages that failed, publish them again, or let them go."""

    def __init__(self, background: LoopThread, dead_letters: admin.DeadLetters) -> None:
        self._background = background
        self._dead_letters = dead_letters

    def list(self, topic: str, *, page_size: int = 0) -> Iterator[DeadLetter]:
        """Yield the dead letters of a topic (the origin's name)."""
        return each(self._background, self._dead_letters.list(topic, page_size=page_size))

    def count(self, topic: str) -> int:
        """Return how many there are."""
        return self._background.run(self._dead_letters.count(topic))

    def redrive(
        self, topic: str, letters: Iterable[DeadLetter] | None = None, *, limit: int = 0
    ) -> int:
        """Publish dead letters again where they came from; return how many."""
        return self._background.run(self._dead_letters.redrive(topic, letters, limit=limit))

    def purge(self, topic: str, letters: Iterable[DeadLetter] | None = None) -> int:
        """Let dead letters go; return how many."""
        return self._background.run(self._dead_letters.purge(topic, letters))


class Replays:
    """Look at named replays and delete them."""

    def __init__(self, background: LoopThread, replays: admin.Replays) -> None:
        self._background = background
        self._replays = replays

    def list(self) -> list[ReplayInfo]:
        """Return the named replays that are not deleted."""
        return self._background.run(self._replays.list())

    def delete(self, name: str) -> bool:
        """Forget a replay; tell whether there was one of that name."""
        return self._background.run(self._replays.delete(name))
