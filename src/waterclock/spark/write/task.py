"""One task of a write, from Spark's batches to the write registry, in batch and in streams.

    begin ──▶ done before? ──▶ nothing is written
      │
      ├─ begun before: read back the ids it stored (`stored_ids.py`)
      ▼
    rows ─▶ columns of a message ─▶ bad ones out ─▶ ids ─▶ stored ones out ─▶ node (`sender.py`)
      │
      ▼
    finish: only when every row is durable

Three nets, each for what the one before lets through: the write registry (a task done is not done
again), the reading back (whatever was stored before this attempt began, however long ago), and the
node's dedup (two attempts at once, a request sent twice).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from waterclock.log.schema import MESSAGES
from waterclock.model.views import WriteState
from waterclock.spark.options import BadOption
from waterclock.spark.write.options import WriteOptions
from waterclock.spark.write.row_ids import RowIds
from waterclock.spark.write.schema import BadRow, Rows, problems_of, rows_of
from waterclock.spark.write.sender import BatchSender, TaskKey
from waterclock.spark.write.spreading import ROWS_EACH_MIN, PartitionCount, parts_of
from waterclock.spark.write.stored_ids import StoredIds, read_back

PROBLEMS_SHOWN = 10
"""Bad rows that are named in words; the others are counted."""

Int64s = npt.NDArray[np.int64]


@dataclass(slots=True)
class TaskSummary:
    """What became of a task's rows."""

    place: TaskKey
    state: str = "new"
    """How the write registry knew the task when it began."""
    rows: int = 0
    """Rows that Spark handed over."""
    stored: int = 0
    """Rows stored by this attempt."""
    found: int = 0
    """Rows that an attempt before had stored."""
    repeated: int = 0
    """Rows whose ids the node knew already."""
    skipped: int = 0
    size_bytes: int = 0
    problems: list[str] = field(default_factory=list)

    def note_bad(self, row: int, reason: str) -> None:
        """Count a row that is left out."""
        self.skipped += 1
        if len(self.problems) < PROBLEMS_SHOWN:
            self.problems.append(f"row {row} of task {self.place.task}: {reason}")


def write_task(
    options: WriteOptions, place: TaskKey, batches: Iterable[pa.RecordBatch]
) -> TaskSummary:
    """Write a task's rows so that each is stored once, whatever happened to attempts before."""
    return _TaskWrite(options, place).run(batches)


class _TaskWrite:
    def __init__(self, options: WriteOptions, place: TaskKey) -> None:
        self._options = options
        self._place = place
        self._summary = TaskSummary(place)
        self._ids = RowIds(writer=place.writer, batch=place.batch, task=place.task)
        self._written: StoredIds | None = None
        self._positions: dict[int, int] | None = None
        self._message_bytes_max = 0
        self._partitions: int | None = None
        self._partition_count: PartitionCount | None = None

    def run(self, batches: Iterable[pa.RecordBatch]) -> TaskSummary:
        options, summary = self._options, self._summary
        sender = BatchSender(
            options.servers,
            options.topic,
            credential=options.credential,
            keys=options.keys,
            in_flight=options.in_flight,
            rate_limit=options.rate_limit,
            on_bad_row=self._bad_row,
        )
        with sender:
            begun = sender.begin(self._place, create_partitions=options.create_partitions)
            summary.state = begun.state.name.lower()
            if begun.state in (WriteState.DONE, WriteState.COMMITTED):
                # Spark wants its rows taken all the same.
                summary.rows = sum(batch.num_rows for batch in batches)
                return summary
            if begun.state is WriteState.BEGUN:
                self._positions = dict(begun.positions)
            self._message_bytes_max = sender.message_bytes_max()
            if options.partition is not None:
                self._check_partition(sender, options.partition)
            for batch in batches:
                if batch.num_rows:
                    self._write(sender, batch)
            sender.flush()
            sender.finish(self._place, sender.new + sender.repeated + summary.found)
        summary.stored, summary.repeated = sender.new, sender.repeated
        return summary

    def _check_partition(self, sender: BatchSender, partition: int) -> None:
        self._partitions = sender.partitions()
        if partition >= self._partitions:
            raise BadOption(
                "partition", f"must be from 0 to {self._partitions - 1}, not {partition}"
            )

    def _write(self, sender: BatchSender, batch: pa.RecordBatch) -> None:
        numbers = np.arange(self._summary.rows, self._summary.rows + batch.num_rows)
        self._summary.rows += batch.num_rows
        rows, numbers = self._good(sender, rows_of(batch), numbers)
        messages = self._messages(rows)
        partition = rows.content.column("partition")
        if self._positions is not None:
            if self._written is None:
                prefix = self._ids.prefix if rows.ids is None else None
                self._written = read_back(sender.fetch, self._positions, prefix)
            is_new = ~self._written.contain(messages.column(0))
            self._summary.found += int(np.count_nonzero(~is_new))
            kept = pa.array(is_new)
            messages, partition = messages.filter(kept), partition.filter(kept)
            numbers = numbers[is_new]
        self._summary.size_bytes += messages.nbytes
        self._send(sender, messages, numbers, partition)

    def _good(self, sender: BatchSender, rows: Rows, numbers: Int64s) -> tuple[Rows, Int64s]:
        """Return the rows that can be messages, and their numbers."""
        if self._partitions is None and rows.content.column("partition").null_count < len(numbers):
            self._partitions = sender.partitions()
        is_good = np.ones(len(numbers), np.bool_)
        for row, reason in problems_of(
            rows,
            topic=self._options.topic,
            message_bytes_max=self._message_bytes_max,
            partitions=self._partitions,
        ):
            self._bad_row(int(numbers[row]), reason)
            is_good[row] = False
        return (rows, numbers) if bool(is_good.all()) else (rows.keep(is_good), numbers[is_good])

    def _messages(self, rows: Rows) -> pa.RecordBatch:
        """Return rows as messages, each with an id."""
        ids = rows.ids
        if ids is None:
            ids = self._ids.of(rows.content)
        elif ids.null_count:
            # Only for those that need one: others must not be counted among their equals.
            is_null = ids.is_null()
            ids = pc.replace_with_mask(ids, is_null, self._ids.of(rows.content.filter(is_null)))
        columns = [ids, *(rows.content.column(name) for name in MESSAGES.names[1:])]
        return pa.RecordBatch.from_arrays(columns, schema=MESSAGES)

    def _send(
        self, sender: BatchSender, messages: pa.RecordBatch, numbers: Int64s, partition: pa.Array
    ) -> None:
        if partition.null_count == len(partition):
            self._send_where_they_belong(sender, messages, numbers)
            return
        for place in partition.unique().to_pylist():
            mine = pc.is_null(partition) if place is None else pc.equal(partition, place)
            is_mine = np.asarray(mine.fill_null(False))
            some = messages.filter(pa.array(is_mine))
            sender.send(some, numbers[is_mine], self._options.partition if place is None else place)

    def _send_where_they_belong(
        self, sender: BatchSender, messages: pa.RecordBatch, numbers: Int64s
    ) -> None:
        given = self._options.partition
        parts = None
        if given is None and len(messages) > ROWS_EACH_MIN:
            if self._partition_count is None:
                self._partition_count = PartitionCount(sender.partitions)
            parts = parts_of(messages, self._partition_count.get())
        if parts is None:
            sender.send(messages, numbers, given)
            return
        for part in parts:
            sender.send(part.rows, numbers[part.order], part.partition)

    def _bad_row(self, row: int, reason: str) -> None:
        if self._options.on_bad_row == "fail":
            raise BadRow(task=self._place.task, row=row, reason=reason)
        self._summary.note_bad(row, reason)
