"""Reading a topic in batch: planned once on the driver, read in tasks, each some ranges of offsets.

The reader itself travels to the tasks, so it holds options and nothing that lives. Spark plans a
loaded DataFrame once: used again, it reads the same offsets.
"""

import gc
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from functools import partial

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.taskcontext import TaskContext

from waterclock.spark.options import ReadOptions
from waterclock.spark.read.fetcher import Fetcher
from waterclock.spark.read.frame_rows import FrameRows
from waterclock.spark.read.http_node import PATIENCE_S, HttpNode
from waterclock.spark.read.ranges import Extent, Range, grouped, planned


class LogRanges(InputPartition):
    """What one task reads, and where."""

    def __init__(
        self, address: str, wanted: tuple[Range, ...], extents: Mapping[int, Extent]
    ) -> None:
        super().__init__(wanted)
        self.address = address
        self.wanted = wanted
        self.retained = [extents[each.partition].retained for each in wanted]
        """How far retention had come when this was planned: what it takes later is missed."""


def tasks_of(
    address: str, bounds: Iterable[Range], extents: Mapping[int, Extent], options: ReadOptions
) -> list[InputPartition]:
    """Share ranges out among tasks."""
    tasks_min = options.partitions_min
    pieces = planned(bounds, partitions_min=tasks_min, rows_max=options.partition_rows_max)
    return [LogRanges(address, each, extents) for each in grouped(pieces, tasks_min=tasks_min)]


class BatchReader(DataSourceReader):
    """Reads what is in the log."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Return the ranges to read; the driver asks the node where the log stands."""
        from waterclock.spark.read.planning import bounds, http_address

        options = self._options
        address = http_address(options.servers, options.credential)
        with closing(HttpNode(address, credential=options.credential)) as node:
            whole, extents = bounds(options, node)
        return tasks_of(address, whole, extents, options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        return read_ranges(partition, self._options, self._schema)


def read_ranges(
    task: InputPartition, options: ReadOptions, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task; none, if there was nothing to plan."""
    if not isinstance(task, LogRanges):
        return
    leave_imports_alone()
    keys = options.keys
    decrypt = None if keys is None else partial(keys.decrypt_all, options.topic)
    for wanted, retained in zip(task.wanted, task.retained, strict=True):
        rows = FrameRows(
            schema,
            wanted,
            with_scheduled=options.with_scheduled,
            key_prefix=options.key_prefix,
            batch_rows=options.batch_rows,
            decrypt=decrypt,
        )
        with Fetcher(
            task.address,
            options.topic,
            wanted,
            fetch_bytes=options.fetch_bytes,
            with_scheduled=options.with_scheduled,
            retained=retained,
            fail_on_data_loss=options.fail_on_data_loss,
            patience_s=PATIENCE_S,
            credential=options.credential,
        ) as replies:
            yield from rows.batches(replies)


def leave_imports_alone() -> None:
    """In a worker of Spark, have the garbage collector look at nothing that is there by now.

    Spark runs it after each task; over all modules that were imported it takes 25 ms, as long as
    reading a hundred thousand rows does.
    """
    if TaskContext.get() is not None and not gc.get_freeze_count():
        gc.freeze()
