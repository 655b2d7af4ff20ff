"""Dead letters: where messages go that failed too often, and what becomes of them there.

They are messages of an ordinary topic, `<topic>.dlq`, made when the first one is needed, with as
many partitions as the topic itself; anyone may subscribe to it. It has no dead letter topic of its
own: what fails there comes again, after the longest wait there is.

The id of a dead letter says whose it is: `<group>/<topic>/<partition>/<offset>/<run_id>`, where the
run id names one run of a group through the log. Writing it again is therefore a repeat that changes
nothing (as long as `dedup` is enabled), and a message that fails for good in another run of the
group, after a seek, is another dead letter.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

from waterclock.delivery.events import WriteDeadLetters
from waterclock.log.batch import Batch
from waterclock.model.clock import Clock
from waterclock.model.errors import AlreadyExists, BadInput
from waterclock.model.names import DEAD_LETTERS, check_not_own
from waterclock.model.views import DeadLetter
from waterclock.node.dead_letters.progress import progress_key
from waterclock.node.dead_letters.redrive import (
    DeadLetterPartition,
    Edit,
    OpenDeadLetters,
    chosen,
    edited,
    publish_again,
    wanted_by_partition,
)
from waterclock.node.dead_letters.rows import (
    batch_of,
    dead_headers,
    dead_letters_of,
    short_id,
)
from waterclock.node.groups.outbound import DeliveryBatch, read_batch
from waterclock.node.groups.partition import GroupPartition
from waterclock.node.metadata import Metadata
from waterclock.node.partition.host import PartitionHost
from waterclock.node.partition.remote_log import is_elsewhere
from waterclock.node.topics import Topic, Topics

WRITTEN_AT_ONCE = 500
LIST_MAX = 1_000
LIST_DEFAULT = 100


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """Some dead letters, and how many there are in all."""

    dead_letters: list[DeadLetter]
    next_page: str
    """Ask for this to go on; empty at the end."""
    total: int


class DeadLetters:
    """All dead letters of a node."""

    def __init__(self, topics: Topics, metadata: Metadata, clock: Clock) -> None:
        self._topics = topics
        self._metadata = metadata
        self._clock = clock
        self._partitions: dict[PartitionHost, DeadLetterPartition] = {}
        self._changing = asyncio.Lock()
        topics.on_deleted.append(self._topic_deleted)
        metadata.on_leading.append(lambda is_leading: self._lead_changed())

    async def open(self) -> None:
        """Take up which dead letters are done, on a node that is alone. Call it once the topics are
        open, before any is written: the next ones may get offsets that a log has lost, and that
        records still name."""
        outlived: dict[str, bytes | None] = {}
        for topic in self._topics.all():
            for host in topic.partitions:
                saved = self._metadata.get(progress_key(host))
                if saved is not None and host.is_open:
                    partition = self._partition(topic, host)
                    if partition.record() != saved:
                        outlived[partition.key] = partition.record()
        await self._metadata.put_many(outlived)

    def _lead_changed(self) -> None:
        """Read the records anew, when they are asked for: others may have changed them."""
        for partition in self._partitions.values():
            partition.is_stale = True
        self._partitions.clear()

    def _partition(self, topic: Topic, host: PartitionHost) -> DeadLetterPartition:
        partition = self._partitions.get(host)
        if partition is None or not partition.is_current:
            saved = self._metadata.get(progress_key(host))
            log_id = bytes.fromhex(topic.log_id(host.partition))
            partition = self._partitions[host] = DeadLetterPartition(host, saved, log_id=log_id)
        return partition

    def _topic_deleted(self, topic: Topic) -> None:
        for host in topic.partitions:
            partition = self._partitions.pop(host, None)
            if partition is not None:
                partition.is_gone = True

    # From the groups

    async def write_dead_letters(
        self, partition: GroupPartition, group: str, effect: WriteDeadLetters
    ) -> None:
        """Write dead messages to the dead letter topic; they are durable on return.

        Messages that are gone from the log are passed over; those that cannot be read for now, as
        the log here was opened anew, are Unavailable.
        """
        topic = await self._topic(partition.host.topic, partition.number + 1)
        host = topic.partition(partition.number)
        ranges = list(effect.ranges)
        while ranges:
            log = partition.log  # which may be another one when it has loaded
            await log.load(ranges[0][0])
            # At no time, so that none is too late to be kept.
            found = read_batch(log, ranges, 0)
            ranges = [(max(start, found.end), end) for start, end in ranges if end > found.end]
            if found.messages is not None:
                for batch in self._batches(found.messages, partition, group, effect):
                    await host.publish(batch)

    async def _topic(self, origin: str, partitions: int) -> Topic:
        name = origin + DEAD_LETTERS
        topic = self._topics.find(name)
        if topic is not None and len(topic.partitions) >= partitions:
            return topic
        partitions = len(self._topics.get(origin).partitions)
        return await self._topics.ensure_partitions(name, partitions)

    def _batches(
        self,
        messages: DeliveryBatch,
        partition: GroupPartition,
        group: str,
        effect: WriteDeadLetters,
    ) -> Iterator[Batch]:
        rows = messages.rows()
        offsets = [offset for start, end in messages.ranges for offset in range(start, end)]
        facts = {
            "topic": partition.host.topic,
            "partition": partition.number,
            "group": group,
            "reason": effect.reason.name.lower(),
            "attempts": effect.attempts,
            "dead-lettered-ms": self._clock.now_ms(),
        }
        whose = f"{group}/{partition.host.topic}/{partition.number}"
        for at in range(0, len(rows), WRITTEN_AT_ONCE):
            some = rows.slice(at, WRITTEN_AT_ONCE)
            numbers = offsets[at : at + WRITTEN_AT_ONCE]
            ids = [short_id(f"{whose}/{offset}/{partition.run_id}".encode()) for offset in numbers]
            yield batch_of(some, ids, list(dead_headers(some, numbers, facts)))

    # For people

    async def redrive(
        self,
        topic: str,
        positions: Sequence[tuple[int, int]] | None = None,
        *,
        limit: int = 0,
        edit: Edit | None = None,
    ) -> int:
        """Publish dead letters again where they came from: those at (partition, offset), or all
        there are now. Return how many; those that are done do not count.

        One may be edited. Raises AlreadyExists if it was published before, and not taken off the
        list: what it was published as then stays.
        """
        check_not_own(topic)
        if edit is not None and len(positions or ()) != 1:
            raise BadInput("value and headers are for one dead letter: name its position")
        into = self._topics.get(topic)

        async def publish(some: OpenDeadLetters) -> None:
            if edit is None:
                await publish_again(into, some)
            elif some.offsets and not await publish_again(into, edited(some, edit)):
                (at,) = positions or ()
                raise AlreadyExists("message redriven from", f"{topic} {at[0]}/{at[1]}")

        return await self._finish(topic, positions, limit, publish)

    async def purge(self, topic: str, positions: Sequence[tuple[int, int]] | None = None) -> int:
        """Drop dead letters from the list; return how many."""
        return await self._finish(topic, positions, 0, None)

    async def _finish(
        self,
        topic: str,
        positions: Sequence[tuple[int, int]] | None,
        limit: int,
        publish: Callable[[OpenDeadLetters], Awaitable[None]] | None,
    ) -> int:
        """Take dead letters off the list once they are published, if they are to be."""
        if limit < 0:
            raise BadInput("limit must not be negative")
        finished = 0
        async with self._changing:
            partitions = await self._partitions_of(topic)
            wanted = wanted_by_partition(positions, len(partitions))
            for partition, end in [(partition, partition.end) for partition in partitions]:
                only = None if wanted is None else wanted.get(partition.host.partition, set())
                async for found in partition.open_dead_letters(0, end, only):
                    some = chosen(found, only, limit and limit - finished)
                    if publish is not None:
                        await publish(some)
                    await self._metadata.put(partition.key, partition.finish(some.offsets))
                    finished += len(some.offsets)
                    if limit and finished >= limit:
                        return finished
        return finished

    async def list(self, topic: str, *, limit: int = 0, page: str = "") -> DeadLetterPage:
        """Return dead letters of a topic in the order of partitions and offsets."""
        if limit < 0:
            raise BadInput("limit must not be negative")
        partitions = await self._partitions_of(topic)
        number, start = _page(page)
        limit = min(limit or LIST_DEFAULT, LIST_MAX)
        found: list[DeadLetter] = []
        for partition in partitions:
            if partition.host.partition < number:
                continue
            begin = start if partition.host.partition == number else 0
            async for some in partition.open_dead_letters(begin, partition.end):
                found += dead_letters_of(some.rows, partition.host.partition, some.offsets)
                if len(found) > limit:
                    break
            if len(found) > limit:
                break
        total = sum([await partition.count() for partition in partitions])
        more = found[limit:]
        next_page = f"{more[0].partition}:{more[0].offset}" if more else ""
        return DeadLetterPage(found[:limit], next_page, total)

    async def counts(self) -> dict[str, int]:
        """Return how many dead letters each topic has that has a dead letter topic, as far as this
        node leads that; what was counted before is not read again."""
        found: dict[str, int] = {}
        for topic in self._topics.all():
            dead = self._topics.find(topic.name + DEAD_LETTERS)
            for host in () if dead is None else dead.partitions:
                if host.is_open and host.is_here and dead is not None:
                    partition = self._partition(dead, host)
                    await partition.refresh()
                    found[topic.name] = found.get(topic.name, 0) + await partition.count()
        return found

    async def _partitions_of(self, topic: str) -> tuple[DeadLetterPartition, ...]:
        """Return those that can be read, here or elsewhere, as they are now."""
        self._topics.get(topic)
        dead = self._topics.find(topic + DEAD_LETTERS)
        if dead is None:
            return ()
        hosts = [host for host in dead.partitions if host.is_open or is_elsewhere(host)]
        partitions = tuple(self._partition(dead, host) for host in hosts)
        for partition in partitions:
            await partition.refresh()
        return partitions


def _page(page: str) -> tuple[int, int]:
    if not page:
        return 0, 0
    number, _, offset = page.partition(":")
    if not (number.isdecimal() and offset.isdecimal() and len(page) < 40):
        raise BadInput("page is none that was handed out")
    return int(number), int(offset)
