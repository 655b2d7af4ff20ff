"""Reading a topic on and on: micro-batches are planned on the driver and read in tasks.

Spark logs the range of each batch before it reads it, and after a crash asks for exactly that range
again; the log does not change, so it gets the same rows. Nothing is kept here that a restart would
miss. `commit` comes late, and not at all for the last batch: it is no acknowledgement, and ignored.

While there is no news, `latestOffset` waits on the node instead of being asked every few
milliseconds.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from waterclock.spark.options import ReadOptions
from waterclock.spark.read.batch import read_ranges, tasks_of
from waterclock.spark.read.http_node import HttpNode
from waterclock.spark.read.ranges import Extent, chosen
from waterclock.spark.read.stream_offsets import (
    between,
    capped,
    checked,
    from_json,
    limited,
    reached,
    to_json,
)

UNWATCHED = 10**15
"""No log gets so far: of a partition known to be there, nothing is news."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what is in the log, and what comes."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        # It travels to the tasks before it is first used, and must hold nothing that lives.
        self._address = ""
        self._node: HttpNode | None = None
        self._seen: set[int] = set()
        self._target: dict[int, int] | None = None

    def initialOffset(self) -> dict[str, int]:
        """Return where a new query begins."""
        from waterclock.spark.read.planning import starts_of

        return to_json(starts_of(self._options, self._connected(), self._extents()))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return how much a micro-batch may be."""
        most = self._options.trigger_offsets_max
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Note what there is now: the query ends when it has read that."""
        self._target = {each: extent.end for each, extent in self._extents().items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, int]:
        """Return where the next micro-batch ends; wait a while for something to come."""
        known = from_json(start)
        target, extents = self._target, self._extents(known)
        checked(known, extents, fail_on_data_loss=self._options.fail_on_data_loss)
        ends = reached(known, extents)
        if target is not None:
            ends = capped(ends, target)
        if isinstance(limit, ReadMaxRows):
            ends = limited(known, ends, limit.max_rows)
        # What the target, or a smaller topic of the same name, has not, stays where it stands.
        return to_json({**known, **ends})

    def reportLatestOffset(self) -> dict[str, int]:
        """Return how far the log goes, for Spark's progress reports."""
        return to_json({each: extent.end for each, extent in self._extents().items()})

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the ranges of a micro-batch."""
        options, extents = self._options, self._extents()
        ranges = between(
            from_json(start),
            from_json(end),
            extents,
            fail_on_data_loss=options.fail_on_data_loss,
        )
        return tasks_of(self._address, ranges, extents, options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        return read_ranges(partition, self._options, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: see above."""

    def stop(self) -> None:
        """Hang up."""
        if self._node is not None:
            self._node.close()

    def _connected(self) -> HttpNode:
        from waterclock.spark.read.planning import http_address

        if self._node is None:
            credential = self._options.credential
            self._address = http_address(self._options.servers, credential)
            self._node = HttpNode(self._address, credential=credential)
        return self._node

    def _extents(self, known: dict[int, int] | None = None) -> dict[int, Extent]:
        """Return what each partition has; with `known`, wait for more or for a new one."""
        node, options = self._connected(), self._options
        watched = options.partitions
        if known is None or self._target is not None:
            extents = node.ends(options.topic, needed=watched)
        else:
            beyond = {
                each: known.get(each, 0) if watched is None or each in watched else UNWATCHED
                for each in sorted(self._seen | set(known))
            }
            extents = node.ends(options.topic, beyond, wait_ms=options.wait_ms, needed=watched)
        self._seen.update(extents)
        return chosen(extents, watched)
