"""Publishing to a topic: parse, choose partitions, append, wait for the disk.

A batch goes where it is told, or each message where its key belongs, or its id if it has no key:
dedup looks into one partition, so the same id must always come to the same one. A *sticky* batch
keeps its keyless messages together, where its first id belongs: sent again, it goes there again.

A batch that falls apart is appended part by part, and answered once every part is durable: if one
part is refused the caller hears that, sends the same batch again, and the parts that were written
are recognised by their ids.
"""

import asyncio
import time
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from waterclock.log.append import Appended
from waterclock.log.batch import Batch, parse_batch
from waterclock.log.lone_rows import LoneRows
from waterclock.model.clock import Clock
from waterclock.model.errors import WaterclockError
from waterclock.model.limits import Limits
from waterclock.model.names import check_not_own
from waterclock.node.partition.host import PartitionHost
from waterclock.node.publish.partitioner import partition_of_key, partitions_of_keys
from waterclock.node.topics import Topic, Topics

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]

FEW_ROWS_MAX = 4
"""So many rows for one partition are appended one by one: to have Arrow make a batch of them costs
more than four appends."""


@dataclass(frozen=True, slots=True)
class Published:
    """Where each message of a batch is."""

    count: int
    partition: int
    """Of all messages, unless `partitions` says otherwise."""
    first_offset: int
    """Message i is at `first_offset + i`, unless `offsets` says otherwise."""
    offsets: Int64s | None = None
    partitions: Int32s | None = None
    duplicates: Int64s | None = None
    """Rows that were published before."""
    made_partitions: int = 0
    """Of the topic, if this has made it."""


class Publisher:
    """The way into topics."""

    def __init__(self, topics: Topics, limits: Limits, clock: Clock) -> None:
        self.topics = topics
        self._limits = limits
        self._clock = clock

    async def publish_batch(
        self,
        topic: str,
        arrow: bytes | memoryview,
        *,
        partition: int | None = None,
        allow_duplicate: bool = False,
        is_sticky: bool = False,
    ) -> Published:
        """Publish a batch of Arrow bytes; it is durable on return."""
        batch = parse_batch(arrow, self._limits, now_ms=self._clock.now_ms())
        found, made_partitions = await self.topics.ensure(topic, partition=partition)
        published = await self.publish_parsed(
            found,
            batch,
            partition=partition,
            allow_duplicate=allow_duplicate,
            is_sticky=is_sticky,
        )
        return replace(published, made_partitions=made_partitions) if made_partitions else published

    async def publish_parsed(
        self,
        topic: Topic,
        batch: Batch,
        *,
        partition: int | None = None,
        allow_duplicate: bool = False,
        is_sticky: bool = False,
    ) -> Published:
        """Publish a batch that was parsed; it is durable on return."""
        check_not_own(topic.name)
        where = _where(topic, batch, is_sticky=is_sticky) if partition is None else partition
        if isinstance(where, int):
            host = topic.partition(where)
            return _answer(where, await host.publish(batch, allow_duplicate=allow_duplicate))
        order = np.argsort(where, kind="stable")
        is_alone = topic.partition(int(where[0])).role == "alone"
        parts = _parts(batch, where, order, few_max=FEW_ROWS_MAX if is_alone else 1)
        hosts = [topic.partition(number) for number, _ in parts]
        batches = [part for _, part in parts]
        publish = _publish_here if is_alone else _publish_anywhere
        answers = await publish(hosts, batches, allow_duplicate=allow_duplicate)
        return _joined(where, order, answers)


async def _publish_here(
    hosts: list[PartitionHost], batches: list[Batch], *, allow_duplicate: bool
) -> list[Appended]:
    """Append every part, then wait for all of them: a task for each is not free.

    A part that is refused keeps no other partition's from being written. Not for replicas: while
    one is waited for, another may be cut and led anew, and the offset waited for then be that of
    another message.
    """
    begun = time.perf_counter()
    answers: list[Appended] = []
    refused: WaterclockError | None = None
    refused_by: PartitionHost | None = None
    for host, batch in zip(hosts, batches, strict=True):
        if host is refused_by:
            continue  # what comes behind it with the same key must not overtake it
        try:
            answers.append(host.append(batch, allow_duplicate=allow_duplicate))
        except WaterclockError as error:
            refused, refused_by = refused or error, host
    if refused is not None:
        raise refused
    for host, batch, appended in zip(hosts, batches, answers, strict=True):
        await host.wait_durable(batch, appended, begun=begun)
    return answers


async def _publish_anywhere(
    hosts: list[PartitionHost], batches: list[Batch], *, allow_duplicate: bool
) -> list[Appended]:
    """Publish every part where its partition is led."""
    return await asyncio.gather(
        *(
            host.publish(batch, allow_duplicate=allow_duplicate)
            for host, batch in zip(hosts, batches, strict=True)
        )
    )


def _where(topic: Topic, batch: Batch, *, is_sticky: bool) -> int | Int32s:
    """Return the partition of a batch, or that of each row."""
    count = len(topic.partitions)
    if count == 1:
        return 0
    keys = batch.rows.column("key")
    keyless: int | Int32s = 0
    if keys.null_count and is_sticky:
        keyless = partition_of_key(batch.ids[0].as_py(), count)
        if keys.null_count == len(keys):
            return keyless
    elif keys.null_count:
        keyless = partitions_of_keys(batch.ids, count)
    found = partitions_of_keys(keys, count, keyless=keyless)
    return int(found[0]) if bool((found == found[0]).all()) else found


def _parts(batch: Batch, where: Int32s, order: Int64s, *, few_max: int) -> list[tuple[int, Batch]]:
    """Return partitions with a batch for each, or with one for each row where there are but few.

    All rows in the order of these parts are in `order`.
    """
    numbers, starts = np.unique(where[order], return_index=True)
    ends = [*starts[1:].tolist(), len(order)]
    lone = LoneRows(batch)
    few_max = few_max if lone.are_cheap else 1
    rows: list[int] = order.tolist()
    parts: list[tuple[int, Batch]] = []
    for number, start, end in zip(numbers.tolist(), starts.tolist(), ends, strict=True):
        if end - start <= few_max:
            parts += [(number, lone.row(row)) for row in rows[start:end]]
        else:
            parts.append((number, batch.select(where == number)))
    return parts


def _answer(partition: int, appended: Appended) -> Published:
    offsets = appended.offsets
    if isinstance(offsets, range):
        return Published(len(offsets), partition, offsets.start)
    duplicates = None if appended.is_new is None else np.flatnonzero(~appended.is_new)
    return Published(
        len(offsets), partition, int(offsets[0]), offsets=offsets, duplicates=duplicates
    )


def _joined(where: Int32s, order: Int64s, answers: list[Appended]) -> Published:
    """Return what became of the rows of a batch, whose parts were answered in this order."""
    found: list[int] = []
    repeats: list[int] = []
    for appended in answers:
        if appended.is_new is not None:
            repeats += (np.flatnonzero(~appended.is_new) + len(found)).tolist()
        found.extend(appended.offsets)
    offsets = np.empty(len(where), np.int64)
    offsets[order] = found
    return Published(
        len(where),
        int(where[0]),
        int(offsets[0]),
        offsets=offsets,
        partitions=where,
        duplicates=np.sort(order[repeats]) if repeats else None,
    )
