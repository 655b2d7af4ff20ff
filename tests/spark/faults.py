"""`format("waterclock_faulty")`: the sink, with a catastrophe planted in it that happens once.

The option `fault` says which, `faultFile` names a file that notes that it happened:

    kill-worker     the Python worker of a task kills itself in the middle
    fail-task       every attempt fails in the middle, as long as there is no such file
    kill-driver     Spark (the process group `faultGroup`) dies right after the sink has committed,
                    before it noted so itself

An attempt that comes after a fault gets its rows in another order, cut another way, as a shuffle
may hand them over.
"""

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from waterclock.spark.source import WaterclockSource
from waterclock.spark.write.batch import BatchWriter
from waterclock.spark.write.options import WriteOptions
from waterclock.spark.write.stream import StreamWriter

BATCHES_BEFORE = 8
"""Batches that a task gets before it dies: more than are on their way at once."""


class Fault:
    """What is to happen, and whether it did."""

    def __init__(self, options: Any) -> None:
        self.kind = options.pop("fault", "")
        self.file = Path(options.pop("faultFile", "/nowhere"))
        self.group = int(options.pop("faultGroup", 0))

    def strikes(self) -> bool:
        """Tell whether it is to happen now; it does so once."""
        try:
            os.close(os.open(self.file, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def troubled(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield batches, until it happens; all of them, shuffled, if it did before."""
        context = TaskContext.get()
        assert context is not None
        if self.file.exists() or (context.attemptNumber() and self.kind != "fail-task"):
            yield from shuffled(batches)
            return
        for number, batch in enumerate(batches):
            if number == BATCHES_BEFORE and context.partitionId() == 0:
                if self.kind == "kill-worker" and self.strikes():
                    os.kill(os.getpid(), signal.SIGKILL)
                if self.kind == "fail-task":
                    raise RuntimeError("planted: the task fails")
            yield batch

    def after_commit(self, batch: int) -> None:
        """Happen after a commit, if it is to, but not after the first."""
        if self.kind == "kill-driver" and batch > 0 and self.strikes():
            os.killpg(self.group, signal.SIGKILL)
            os._exit(1)  # without an answer: whoever it was for is gone


def shuffled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of batches backwards, cut another way."""
    kept = list(batches)
    if not kept:
        return
    table = pa.Table.from_batches(kept)
    backwards = table.take(pa.array(range(table.num_rows - 1, -1, -1)))
    yield from backwards.combine_chunks().to_batches(max_chunksize=77)


class FaultyBatchWriter(BatchWriter):
    """A batch writer with a fault."""

    def __init__(self, fault: Fault, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._fault = fault

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return super().write(self._fault.troubled(iterator))


class FaultyStreamWriter(StreamWriter):
    """A stream writer with a fault."""

    def __init__(self, fault: Fault, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._fault = fault

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return super().write(self._fault.troubled(iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        super().commit(messages, batchId)
        self._fault.after_commit(batchId)


class FaultySource(WaterclockSource):
    """The source whose writers have faults."""

    @classmethod
    def name(cls) -> str:
        return "waterclock_faulty"

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        fault = Fault(self.options)
        options = WriteOptions.parse(self.options)
        return FaultyBatchWriter(fault, options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        fault = Fault(self.options)
        options = WriteOptions.parse(self.options)
        return FaultyStreamWriter(fault, options, schema)


def register(spark: Any) -> None:
    """Have a session know it, and workers, which cannot import the tests."""
    import sys

    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark.dataSource.register(FaultySource)
