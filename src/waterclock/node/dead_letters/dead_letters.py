"""Dead letters: where messages go that failed too often, and what becomes of them there.

They are messages of an ordinary topic, `<topic>.dlq`, made when the first one is needed, with as
many partitions as the topic itself; anyone may subscribe to it. It has no dead letter topic of its
own: what fails there comes again, after the longest wait there is.

The id of a dead letter says whose it is: `<group>/<topic>/<partition>/<offset>/<life>`, where the
life is one run of a group through the log. Writing it again is therefore a repeat that changes
nothing (as long as `dedup` is enabled), and a message that dies in another run of the group, after
a seek, is another dead letter.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from waterclock.delivery.events import DeadLetter as Dead
from waterclock.log.batch import Batch
from waterclock.model.clock import Clock
from waterclock.model.errors import BadInput
from waterclock.model.names import DEAD_LETTERS
from waterclock.node.dead_letters.progress import progress_key
from waterclock.node.dead_letters.redrive import (
    DeadLetterPartition,
    chosen,
    publish_again,
    wanted_by_partition,
)
from waterclock.node.dead_letters.rows import (
    DeadLetter,
    batch_of,
    dead_headers,
    dead_letters_of,
    short_id,
)
from waterclock.node.groups.outbound import DeliveryBatch, gather
from waterclock.node.groups.partition import GroupPartition
from waterclock.node.metadata import Metadata
from waterclock.node.partition.host import PartitionHost
from waterclock.node.topics import Topic, Topics, TopicSettings

BURIED_AT_ONCE = 500
LIST_MAX = 1_000
LIST_DEFAULT = 100


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """Some dead letters, and how many there are in all."""

    letters: list[DeadLetter]
    next_page: str
    """Ask for this to go on; empty at the end."""
    total: int


class DeadLetters:
    """All dead letters of a node."""

    def __init__(self, topics: Topics, metadata: Metadata, clock: Clock) -> None:
        self._topics = topics
        self._metadata = metadata
        self._clock = clock
        self._wards: dict[PartitionHost, DeadLetterPartition] = {}
        self._changing = asyncio.Lock()

    async def open(self) -> None:
        """Take up what is done with. Call it once the topics are open, before anyone is buried: the
        next dead letters may get offsets that a log has lost, and that marks still speak of."""
        outlived: dict[str, bytes | None] = {}
        for topic in self._topics.all():
            for host in topic.partitions:
                saved = self._metadata.get(progress_key(host))
                if saved is not None and host.is_open:
                    ward = self._wards[host] = DeadLetterPartition(host, saved)
                    if ward.record() != saved:
                        outlived[ward.key] = ward.record()
        await self._metadata.put_many(outlived)
        self._topics.on_deleted.append(self._topic_deleted)

    def _topic_deleted(self, topic: Topic) -> None:
        for host in topic.partitions:
            ward = self._wards.pop(host, None)
            if ward is not None:
                ward.is_gone = True

    # From the groups

    async def write_dead_letters(self, place: GroupPartition, group: str, letter: Dead) -> None:
        """Write dead messages to the dead letter topic; they are durable on return.

        Messages that are gone from the log are passed over: nobody can be shown them any more.
        """
        topic = await self._topic(place.partition.topic, place.number + 1)
        host = topic.partition(place.number)
        ranges = list(letter.ranges)
        while ranges:
            # At no time, so that none is too late to be kept.
            found = gather(place.log, ranges, 0)
            ranges = [(max(start, found.end), end) for start, end in ranges if end > found.end]
            if found.messages is not None:
                for batch in self._batches(found.messages, place, group, letter):
                    await host.publish(batch)

    async def _topic(self, origin: str, partitions: int) -> Topic:
        name = origin + DEAD_LETTERS
        topic = self._topics.find(name)
        if topic is not None and len(topic.partitions) >= partitions:
            return topic
        partitions = len(self._topics.get(origin).partitions)
        if topic is None:
            settings = TopicSettings(partitions=partitions)
            topic = await self._topics.create(name, settings, if_absent=True)
        if len(topic.partitions) < partitions:
            grown = msgspec.structs.replace(topic.settings, partitions=partitions)
            topic = await self._topics.update(name, grown)
        return topic

    def _batches(
        self, messages: DeliveryBatch, place: GroupPartition, group: str, letter: Dead
    ) -> Iterator[Batch]:
        rows = messages.rows()
        offsets = [offset for start, end in messages.ranges for offset in range(start, end)]
        facts = {
            "topic": place.partition.topic,
            "partition": place.number,
            "group": group,
            "reason": letter.reason.name.lower(),
            "attempts": letter.attempts,
            "dead-lettered-ms": self._clock.now_ms(),
        }
        whose = f"{group}/{place.partition.topic}/{place.number}"
        for at in range(0, len(rows), BURIED_AT_ONCE):
            some = rows.slice(at, BURIED_AT_ONCE)
            numbers = offsets[at : at + BURIED_AT_ONCE]
            ids = [short_id(f"{whose}/{offset}/{place.life}".encode()) for offset in numbers]
            yield batch_of(some, ids, list(dead_headers(some, numbers, facts)))

    # For people

    async def redrive(
        self, topic: str, positions: Sequence[tuple[int, int]] | None = None, *, limit: int = 0
    ) -> int:
        """Publish dead letters again where they came from: those at (partition, offset), or all
        there are now. Return how many; those that are done with do not count."""
        return await self._finish(self._topics.get(topic), positions, limit, is_redriven=True)

    async def purge(self, topic: str, positions: Sequence[tuple[int, int]] | None = None) -> int:
        """Drop dead letters from the list; return how many."""
        return await self._finish(self._topics.get(topic), positions, 0, is_redriven=False)

    async def _finish(
        self,
        topic: Topic,
        positions: Sequence[tuple[int, int]] | None,
        limit: int,
        *,
        is_redriven: bool,
    ) -> int:
        if limit < 0:
            raise BadInput("limit must not be negative")
        finished = 0
        async with self._changing:
            wards = self._wards_of(topic.name)
            wanted = wanted_by_partition(positions, len(wards))
            for ward, end in [(ward, ward.end) for ward in wards]:
                only = None if wanted is None else wanted.get(ward.host.partition, set())
                async for living in ward.living(0, end, only):
                    some = chosen(living, only, limit and limit - finished)
                    if is_redriven:
                        await publish_again(topic, some)
                    await self._metadata.put(ward.key, ward.mark(some.offsets))
                    finished += len(some.offsets)
                    if limit and finished >= limit:
                        return finished
        return finished

    async def list(self, topic: str, *, limit: int = 0, page: str = "") -> DeadLetterPage:
        """Return dead letters of a topic in the order of partitions and offsets."""
        if limit < 0:
            raise BadInput("limit must not be negative")
        wards = self._wards_of(topic)
        number, start = _page(page)
        limit = min(limit or LIST_DEFAULT, LIST_MAX)
        found: list[DeadLetter] = []
        for ward in wards:
            if ward.host.partition < number:
                continue
            begin = start if ward.host.partition == number else 0
            async for living in ward.living(begin, ward.end):
                found += dead_letters_of(living.rows, ward.host.partition, living.offsets)
                if len(found) > limit:
                    break
            if len(found) > limit:
                break
        total = sum([await ward.count() for ward in wards])
        more = found[limit:]
        next_page = f"{more[0].partition}:{more[0].offset}" if more else ""
        return DeadLetterPage(found[:limit], next_page, total)

    def _wards_of(self, topic: str) -> tuple[DeadLetterPartition, ...]:
        self._topics.get(topic)
        dead = self._topics.find(topic + DEAD_LETTERS)
        living = [] if dead is None else [host for host in dead.partitions if host.is_open]
        for host in living:
            if host not in self._wards:
                self._wards[host] = DeadLetterPartition(host, None)
        return tuple(self._wards[host] for host in living)


def _page(page: str) -> tuple[int, int]:
    if not page:
        return 0, 0
    number, _, offset = page.partition(":")
    if not (number.isdecimal() and offset.isdecimal() and len(page) < 40):
        raise BadInput("page is none that was handed out")
    return int(number), int(offset)
