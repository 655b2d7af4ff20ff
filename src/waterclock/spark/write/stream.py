"""Writing a streaming query: `df.writeStream.format("waterclock").option("topic", "orders")`.

The write registry knows a micro-batch by the query's id, which lives in the checkpoint, and the
number of the batch. Spark repeats a batch whenever it is not sure that it was committed: after a
failed task, a killed driver, a crash between our commit and its own. All of these find their rows
in the write registry, and write what is missing and nothing else.

A topic is only ever added to, so in complete mode (`overwrite`) each micro-batch adds its whole
result, as Spark's Kafka sink does. Update mode never comes here: Spark refuses it to every sink
that is written in Python.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from waterclock.model.errors import BadInput
from waterclock.spark.write.batch import check_topic
from waterclock.spark.write.commit import TaskWritten, commit, summaries_of, tell
from waterclock.spark.write.options import WriteOptions
from waterclock.spark.write.schema import check_columns
from waterclock.spark.write.sender import TaskKey
from waterclock.spark.write.task import write_task

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


class StreamWriter(DataSourceStreamArrowWriter):
    """Made on the driver for each micro-batch, sent to its tasks, and asked to commit."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        options.check_stream()
        check_columns(schema.fields)
        check_topic(options)
        self._options = options

    def __repr__(self) -> str:
        return f"<StreamWriter to {self._options.topic}>"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task."""
        return TaskWritten(write_task(self._options, current_task(), iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Note that all tasks of a micro-batch are done."""
        summaries = summaries_of(messages)
        if not summaries:
            return  # a batch without tasks has written nothing
        writer = summaries[0].place.writer
        commit(self._options, writer=writer, batch=batchId, is_named=True)
        tell(self._options, summaries, writer=writer, batch=batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Leave what is written; the write registry knows it when Spark repeats the batch."""


def current_task() -> TaskKey:
    """Return which task of which micro-batch of which query this is."""
    context = TaskContext.get()
    assert context is not None
    query, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
    if query is None or batch is None:
        raise BadInput(
            "Spark does not say which query and batch this task belongs to: this connector needs "
            "PySpark 4.3 or newer, on executors as well"
        )
    return TaskKey(query, int(batch), context.partitionId())
