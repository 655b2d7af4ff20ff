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
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from waterclock.log.append import Appended
from waterclock.log.batch import Batch
from waterclock.log.lone_message import LoneMessage, parse_any
from waterclock.log.lone_rows import LoneRows
from waterclock.log.partitioner import (
    partition_of_key,
    partitions_of_keys,
    partitions_of_messages,
)
from waterclock.model.clock import Clock
from waterclock.model.limits import Limits
from waterclock.model.message import Acks
from waterclock.model.names import check_not_own
from waterclock.node.partition.host import PartitionHost
from waterclock.node.publish.spread_batch import SpreadBatch
from waterclock.node.topics import Topic, Topics

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]


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
        acks: Acks = "quorum",
    ) -> Published:
        """Publish a batch of Arrow bytes; it is durable on return."""
        batch = parse_any(arrow, self._limits, now_ms=self._clock.now_ms())
        found, made_partitions = await self.topics.ensure(topic, partition=partition)
        published = await self.publish_parsed(
            found,
            batch,
            partition=partition,
            allow_duplicate=allow_duplicate,
            is_sticky=is_sticky,
            acks=acks,
        )
        return replace(published, made_partitions=made_partitions) if made_partitions else published

    def publish_here(
        self,
        topic: Topic,
        batch: Batch,
        on_durable: Callable[[Published | Exception], None],
        *,
        partition: int | None = None,
        allow_duplicate: bool = False,
        is_sticky: bool = False,
        acks: Acks = "quorum",
    ) -> bool:
        """Publish a batch for one partition that this node leads, without a task: it is appended on
        return, and `on_durable` is called, perhaps at once, when it is durable or will not be.
        False: nothing was done, as it takes more than that; `publish_parsed` does it."""
        check_not_own(topic.name)
        where = _where(topic, batch, is_sticky=is_sticky) if partition is None else partition
        if not isinstance(where, int):
            return False
        host = topic.partition(where)
        if host.is_elsewhere:
            return False
        begun = time.perf_counter()
        appended = host.append(batch, allow_duplicate=allow_duplicate)

        def flushed(error: Exception | None) -> None:
            if error is None:
                host.note_durable(batch, begun=begun)
            on_durable(_answer(where, appended) if error is None else error)

        host.notify_acks(appended.durable_at, flushed, acks=acks)
        return True

    async def publish_parsed(
        self,
        topic: Topic,
        batch: Batch,
        *,
        partition: int | None = None,
        allow_duplicate: bool = False,
        is_sticky: bool = False,
        acks: Acks = "quorum",
    ) -> Published:
        """Publish a batch that was parsed; it is durable on return."""
        check_not_own(topic.name)
        where = _where(topic, batch, is_sticky=is_sticky) if partition is None else partition
        if isinstance(where, int):
            host = topic.partition(where)
            appended = await host.publish(batch, allow_duplicate=allow_duplicate, acks=acks)
            return _answer(where, appended)
        numbers = where.tolist()
        by_number = {number: topic.partition(number) for number in set(numbers)}
        hosts = [by_number[number] for number in numbers]
        if hosts[0].role == "alone":
            spread = SpreadBatch(batch, hosts, where)
            spread.append(now_ms=self._clock.now_ms(), allow_duplicate=allow_duplicate)
            await spread.wait_durable()
            return _spread_answer(where, spread.offsets, spread.repeats)
        order = np.argsort(where, kind="stable")
        parts = _parts(batch, where, order)
        answers = await _publish_anywhere(
            [topic.partition(number) for number, _ in parts],
            [part for _, part in parts],
            allow_duplicate=allow_duplicate,
            acks=acks,
        )
        return _joined(where, order, answers)


async def _publish_anywhere(
    hosts: list[PartitionHost], batches: list[Batch], *, allow_duplicate: bool, acks: Acks
) -> list[Appended]:
    """Publish every part where its partition is led."""
    return await asyncio.gather(
        *(
            host.publish(batch, allow_duplicate=allow_duplicate, acks=acks)
            for host, batch in zip(hosts, batches, strict=True)
        )
    )


def _where(topic: Topic, batch: Batch, *, is_sticky: bool) -> int | Int32s:
    """Return the partition of a batch, or that of each row."""
    count = len(topic.partitions)
    if count == 1:
        return 0
    if isinstance(batch, LoneMessage):
        return partition_of_key(batch.first_id if batch.key is None else batch.key, count)
    keys = batch.rows.column("key")
    if keys.null_count and is_sticky:
        keyless = partition_of_key(batch.ids[0].as_py(), count)
        if keys.null_count == len(keys):
            return keyless
        found = partitions_of_keys(keys, count, keyless=keyless)
    else:
        found = partitions_of_messages(keys, batch.ids, count)
    return int(found[0]) if bool((found == found[0]).all()) else found


def _parts(batch: Batch, where: Int32s, order: Int64s) -> list[tuple[int, Batch]]:
    """Return partitions with a batch for each; all rows in the order of these are in `order`."""
    numbers, starts = np.unique(where[order], return_index=True)
    ends = [*starts[1:].tolist(), len(order)]
    lone = LoneRows(batch)
    parts: list[tuple[int, Batch]] = []
    for number, start, end in zip(numbers.tolist(), starts.tolist(), ends, strict=True):
        is_lone = end - start == 1
        part = lone.row(int(order[start])) if is_lone else batch.select(where == number)
        parts.append((number, part))
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
    return _spread_answer(where, offsets, np.sort(order[repeats]).tolist())


def _spread_answer(where: Int32s, offsets: Int64s, repeats: list[int]) -> Published:
    return Published(
        len(where),
        int(where[0]),
        int(offsets[0]),
        offsets=offsets,
        partitions=where,
        duplicates=np.array(repeats, np.int64) if repeats else None,
    )
