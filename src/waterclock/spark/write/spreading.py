"""Rows that belong to several partitions, taken apart by the task and not by the node.

The node would do the same: it is part of the product which partition a key belongs to
(`log/partitioner.py`). But there it is one turn of the only loop, for which everyone else waits,
and what it takes apart must be encoded anew; a batch for one partition is stored as it came. Where
a partition would get few rows the node does better: one request brings them all.
"""

import math
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.log.partitioner import partitions_of_messages
from waterclock.model.errors import Forbidden

ROWS_EACH_MIN = 256
"""Rows for each partition, on average, that are worth a request of their own."""
KNOWN_S = 1.0
"""How long a topic is taken to have as many partitions as it had."""

Int64s = npt.NDArray[np.int64]


class Part(NamedTuple):
    """Rows of one partition, in the order they had."""

    partition: int
    rows: pa.RecordBatch
    order: Int64s
    """Which rows of the whole these were."""


class PartitionCount:
    """How many partitions a topic has, asked again now and then: it may get more.

    Who may publish need not be allowed to ask. Then it is one for all that is known here.
    """

    def __init__(
        self, ask: Callable[[], int], *, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask = ask
        self._now_s = now_s
        self._asked_s = -math.inf
        self._count = 0

    def __repr__(self) -> str:
        return f"<PartitionCount {self._count}>"

    def get(self) -> int:
        """Return how many there are, or were a moment ago."""
        now_s = self._now_s()
        if now_s >= self._asked_s + KNOWN_S:
            try:
                self._count, self._asked_s = self._ask(), now_s
            except Forbidden:
                self._count, self._asked_s = 1, math.inf
        return self._count


def parts_of(messages: pa.RecordBatch, partitions: int) -> Iterator[Part] | None:
    """Return the rows of each partition; None where it is better left to the node."""
    if partitions == 1 or len(messages) < partitions * ROWS_EACH_MIN:
        return None
    keys, ids = messages.column("key"), messages.column("message_id")
    where = partitions_of_messages(keys, ids, partitions)
    return _parts(messages, where, np.bincount(where, minlength=partitions))


def _parts(
    messages: pa.RecordBatch, where: npt.NDArray[np.int32], counts: Int64s
) -> Iterator[Part]:
    # Those of a partition stay in their order.
    order = where.argsort(kind="stable")
    ordered = messages.take(pa.array(order))
    start = 0
    for partition, count in enumerate(counts.tolist()):
        if count:
            yield Part(partition, ordered.slice(start, count), order[start : start + count])
            start += count
