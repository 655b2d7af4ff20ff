"""What Spark does in a compaction: find out which messages live, and have tasks write them.

Only (partition, key, offset and whether it is a tombstone) enter the JVM: one number says the last
two, so one maximum for each key decides. Which chunks of offsets they are in is counted, the
files are planned from that, and offsets alone go on to the tasks that write.

Messages without a key all live. They would be as many groups as rows, so they are left out of the
grouping: what remains of them there is a mark that a partition has some, and only then are its
offsets read a second time.
"""

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as f

from waterclock.log.snapshot import CHUNK_BITS, Manifest
from waterclock.spark.jobs.compact.plan import ChunkCount, Layout, PartitionRange, Ranges
from waterclock.spark.jobs.compact.snapshot_writer import FORMAT, Bodies, SnapshotSink
from waterclock.spark.jobs.job import JobOptions, read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NEW = "partition int, offset bigint, key binary, value_bytes int"
OLD = "offset bigint, key binary, partition int"


class Shuffle:
    """One compaction's DataFrames."""

    def __init__(
        self,
        spark: "SparkSession",
        options: JobOptions,
        topic: str,
        ranges: Ranges,
        last: tuple[str, Manifest] | None,
    ) -> None:
        self._spark = spark
        self._options = options
        self._topic = topic
        self._ranges = ranges
        self._last = last if ranges.is_incremental else None
        self._live_rows: DataFrame | None = None
        self._kept: list[DataFrame] = []

    def __enter__(self) -> "Shuffle":
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._kept:
            each.unpersist()

    def count(self) -> list[ChunkCount]:
        """Find out which messages live; return how many there are in each chunk."""
        groups = (
            self._scan(self._ranges.partitions)
            .groupBy("partition", "key")
            .agg(f.max(f.expr("shiftleft(offset, 1) | int(is_tombstone)")).alias("last"))
            .where("key is null or (last & 1) = 0")
            .selectExpr("partition", "shiftright(last, 1) as offset", "key is null as is_mark")
        )
        self._kept.append(groups.persist())
        live_rows = groups.where("not is_mark").select("partition", "offset")
        marked = {row.partition for row in groups.where("is_mark").select("partition").collect()}
        if marked:
            some = [each for each in self._ranges.partitions if each.partition in marked]
            keyless = self._scan(some).where("key is null and not is_tombstone")
            live_rows = live_rows.union(keyless.select("partition", "offset"))
            self._kept.append(live_rows.persist())
        self._live_rows = live_rows
        return self._counts(live_rows)

    def write(self, layout: Layout, bodies: Bodies) -> None:
        """Have one task write the file of each slice; the sink tells what was written."""
        assert self._live_rows is not None
        self._spark.dataSource.register(SnapshotSink)
        slices = [
            (each.partition, chunk, each.number) for each in layout.slices for chunk in each.chunks
        ]
        columns = zip(*slices, strict=True)
        places = pa.table(
            [pa.array(column, kind) for column, kind in zip(columns, _PLACE.types, strict=True)],
            schema=_PLACE,
        )
        chunk = f.expr(f"shiftright(offset, {CHUNK_BITS})").alias("chunk")
        (
            self._live_rows.select("partition", "offset", chunk)
            .join(f.broadcast(self._spark.createDataFrame(places)), ["partition", "chunk"])
            .repartitionById(len(layout.slices), "slice")
            .select("partition", "offset")
            .sortWithinPartitions("offset")
            .write.format(FORMAT)
            .option("bodies", bodies.encode())
            .mode("append")
            .save()
        )

    def _counts(self, live_rows: "DataFrame") -> list[ChunkCount]:
        is_new = _in_each(self._ranges.partitions, "offset >= {from_offset}")
        chunk = f.expr(f"shiftright(offset, {CHUNK_BITS})")
        rows = (
            live_rows.groupBy("partition", chunk.alias("chunk"), f.expr(is_new).alias("is_new"))
            .count()
            .collect()
        )
        return [ChunkCount(*row) for row in rows]

    def _scan(self, partitions: "Iterable[PartitionRange]") -> "DataFrame":
        """Return (partition, offset, key, is_tombstone) of what the last snapshot has and of what
        came after it."""
        partitions = list(partitions)
        scanned = read(
            self._spark,
            self._options,
            schema=NEW,
            topic=self._topic,
            partitions=",".join(str(each.partition) for each in partitions),
            startingOffsets=json.dumps({each.partition: each.from_offset for each in partitions}),
            endingOffsets=json.dumps({each.partition: each.end_offset for each in partitions}),
            # What retention takes meanwhile need not be compacted.
            failOnDataLoss="false",
        ).selectExpr("partition", "offset", "key", "value_bytes is null as is_tombstone")
        old = self._old(partitions)
        return scanned if old is None else scanned.union(old)

    def _old(self, partitions: "list[PartitionRange]") -> "DataFrame | None":
        if self._last is None:
            return None
        folder, manifest = self._last
        wanted = {each.partition for each in partitions}
        paths = [
            f"{folder}/{file.path}"
            for each in manifest.partitions
            if each.partition in wanted
            for file in each.files
        ]
        if not paths:
            return None
        rows = self._spark.read.schema(OLD).option("basePath", folder).parquet(*paths)
        still_there = _in_each(partitions, "offset >= {start_offset}")
        return rows.where(still_there).selectExpr(
            "partition", "offset", "key", "false as is_tombstone"
        )


_PLACE = pa.schema([("partition", pa.int32()), ("chunk", pa.int64()), ("slice", pa.int32())])


def _in_each(partitions: "Iterable[PartitionRange]", claim: str) -> str:
    """Return an expression that holds a claim about each partition's own offsets."""
    cases = (f"when {each.partition} then {claim.format(**each._asdict())}" for each in partitions)
    return f"case partition {' '.join(cases)} else false end"
