"""Publishing to a topic: parse, choose partitions, append, wait for the disk.

A batch goes where it is told, or each message where its key belongs, or its id if it has no key:
dedup looks into one partition, so the same id must always come to the same one. A *sticky* batch
keeps its keyless messages together, where its first id belongs: sent again, it goes there again.

A batch that falls apart is appended part by part, and answered once every part is durable: if one
part is refused the caller hears that, sends the same batch again, and the parts that were written
are recognised by their ids.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from waterclock.log.append import Appended
from waterclock.log.batch import Batch, parse_batch
from waterclock.model.clock import Clock
from waterclock.model.limits import Limits
from waterclock.model.names import check_not_own
from waterclock.node.publish.partitioner import partition_of_key, partitions_of_keys
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
        parts = list(_parts(batch, where))
        answers = await asyncio.gather(
            *(
                topic.partition(number).publish(part, allow_duplicate=allow_duplicate)
                for number, _, part in parts
            )
        )
        return _joined(where, [rows for _, rows, _ in parts], answers)


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


def _parts(batch: Batch, where: Int32s) -> Iterator[tuple[int, Int64s, Batch]]:
    for number in np.unique(where).tolist():
        mine = where == number
        yield number, np.flatnonzero(mine), batch.select(mine)


def _answer(partition: int, appended: Appended) -> Published:
    offsets = appended.offsets
    if isinstance(offsets, range):
        return Published(len(offsets), partition, offsets.start)
    duplicates = None if appended.is_new is None else np.flatnonzero(~appended.is_new)
    return Published(
        len(offsets), partition, int(offsets[0]), offsets=offsets, duplicates=duplicates
    )


def _joined(where: Int32s, rows: list[Int64s], answers: list[Appended]) -> Published:
    offsets = np.empty(len(where), np.int64)
    is_new = np.ones(len(where), np.bool_)
    for mine, appended in zip(rows, answers, strict=True):
        offsets[mine] = appended.offsets
        if appended.is_new is not None:
            is_new[mine] = appended.is_new
    return Published(
        len(where),
        int(where[0]),
        int(offsets[0]),
        offsets=offsets,
        partitions=where,
        duplicates=None if bool(is_new.all()) else np.flatnonzero(~is_new),
    )
