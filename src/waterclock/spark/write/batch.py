"""Writing a DataFrame: `df.write.format("waterclock").mode("append").save("orders")`.

Every task writes its rows once, however often it is tried (`task.py`). With `writeId` that
holds for the whole write: run again after a failure it goes on where it was; run again after it
succeeded it writes nothing. Without, each run is a write of its own, under a name made here.

A write that fails has written a part: a log takes nothing back. Run it again under its `writeId`.
"""

import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from waterclock.model.errors import TimedOut, Unavailable
from waterclock.spark.options import BadOption
from waterclock.spark.write.commit import TaskWritten, commit, summaries_of, tell
from waterclock.spark.write.options import WriteOptions
from waterclock.spark.write.schema import check_columns
from waterclock.spark.write.sender import BatchSender, TaskKey
from waterclock.spark.write.task import write_task


class BatchWriter(DataSourceArrowWriter):
    """Made on the driver, sent to the tasks, and asked to commit on the driver."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        check_append(overwrite)
        check_columns(schema.fields)
        check_topic(options)
        self._options = options
        self._is_named = options.write_id is not None
        self._writer = options.write_id or f"write-{uuid.uuid4()}"
        self._batch = options.write_batch

    def __repr__(self) -> str:
        return f"<BatchWriter {self._writer} to {self._options.topic}>"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task."""
        context = TaskContext.get()
        assert context is not None
        place = TaskKey(self._writer, self._batch, context.partitionId())
        return TaskWritten(write_task(self._options, place, iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Note that all tasks are done."""
        if messages:
            commit(self._options, writer=self._writer, batch=self._batch, is_named=self._is_named)
        tell(self._options, summaries_of(messages), writer=self._writer, batch=self._batch)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Leave what is written: the write registry knows it when the same name is run again."""


def check_topic(options: WriteOptions) -> None:
    """Raise UnknownTopicToWrite on the driver, before tasks fail of it one try after the other."""
    if options.create_partitions is None:
        # A node that is away is left to the tasks, which wait for it.
        sender = BatchSender(options.servers, options.topic, credential=options.credential)
        with suppress(Unavailable, TimedOut), sender:
            sender.check_topic()


def check_append(overwrite: bool) -> None:
    """Raise BadOption if what is there is to be replaced."""
    if overwrite:
        raise BadOption("mode", "a topic can only be added to: use .mode('append')")
