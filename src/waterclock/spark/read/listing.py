"""What a node lists, as tables: the messages that wait for their time, and dead letters.

Both change as they are read: each page is what was there at that moment, so such a table is no
snapshot, and a task that is tried again may find other rows. Pages are asked for one after the
other, and each becomes one record batch.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from waterclock.spark.options import ReadOptions
from waterclock.spark.read.ranges import Extent, chosen
from waterclock.spark.schemas import TIMESTAMP

US_PER_MS = 1_000


class Listing(InputPartition):
    """What one task lists, and where."""

    def __init__(self, server: str, partitions: tuple[int, ...]) -> None:
        super().__init__(partitions)
        self.server = server
        self.partitions = partitions
        """None: all."""


class ListingReader(DataSourceReader):
    """Reads the views `scheduled` and `dlq`."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Return a task for each partition that has messages waiting; one for all dead letters."""
        from waterclock.spark.read.planning import first_answer

        options = self._options
        server, topic = first_answer(
            options.servers, lambda client: client.topics.get(options.topic)
        )
        extents = {each.partition: Extent(0, each.scheduled) for each in topic.partitions}
        wanted = chosen(extents, options.partitions)
        if options.view == "dlq":
            return [Listing(server, tuple(wanted) if options.partitions else ())]
        return [Listing(server, (each,)) for each, waiting in wanted.items() if waiting.end]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield what the node lists, page by page."""
        # gRPC is for these tasks alone; those that read the log do without.
        from waterclock.spark.read.listing_pages import dead_letter_pages, scheduled_pages

        if not isinstance(partition, Listing):
            return
        options = self._options
        pages = scheduled_pages if options.view == "scheduled" else dead_letter_pages
        for rows in pages(partition.server, partition.partitions, options):
            if rows:
                yield self._batch(rows)

    def _batch(self, rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
        columns = [_column(field, [row[field.name] for row in rows]) for field in self._schema]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _column(field: pa.Field, cells: list[Any]) -> pa.Array:
    if field.type == TIMESTAMP:
        return pa.array([ms * US_PER_MS for ms in cells], pa.int64()).view(TIMESTAMP)
    return pa.array(cells, field.type)
