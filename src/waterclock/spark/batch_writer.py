"""Writing a DataFrame: `df.write.format("waterclock").mode("append").save("orders")`.

Every task writes its rows once, however often it is tried (`task_write.py`). With `writeId` that
holds for the whole write: run again after a failure it goes on where it was; run again after it
succeeded it writes nothing. Without, each run is a write of its own, under a name made here.

A write that fails has written a part: a log takes nothing back. Run it again under its `writeId`.
"""

import uuid
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from waterclock.spark.commits import TaskWritten, commit, summaries_of, tell
from waterclock.spark.options import BadOption
from waterclock.spark.outlet import WritePlace
from waterclock.spark.task_write import write_task
from waterclock.spark.write_options import WriteOptions
from waterclock.spark.write_schema import check_columns


class BatchWriter(DataSourceArrowWriter):
    """Made on the driver, sent to the tasks, and asked to commit on the driver."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        check_append(overwrite)
        check_columns(schema.fields)
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
        place = WritePlace(self._writer, self._batch, context.partitionId())
        return TaskWritten(write_task(self._options, place, iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Note that all tasks are done."""
        if messages:
            commit(self._options, writer=self._writer, batch=self._batch, is_named=self._is_named)
        tell(self._options, summaries_of(messages), writer=self._writer, batch=self._batch)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Leave what is written; the ledger knows it, for the next run under the same name."""


def check_append(overwrite: bool) -> None:
    """Raise BadOption if what is there is to be replaced."""
    if overwrite:
        raise BadOption("mode", "a topic can only be added to: use .mode('append')")
