"""What Spark counts for a report: a pass each for times, keys, ids and dead letters.

Every query groups and counts in the executors; what comes to the driver is as many rows as the page
shows, whatever the size of the topic. Bodies are not read into the JVM: their sizes are enough.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from waterclock.spark.jobs.job import JobOptions, read
from waterclock.spark.jobs.report.figures import BIN_SQL, DeadReason, HotKey, SpreadRow
from waterclock.spark.jobs.report.number_text import key_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HOT_KEYS = 10
REASONS_MAX = 50
REASON_CHARS_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyCounts:
    keys: Mapping[int, int]
    """By partition."""
    keyless: int
    hot: tuple[HotKey, ...]


class Queries:
    """The questions about one topic, within given bounds."""

    def __init__(
        self, spark: "SparkSession", options: JobOptions, topic: str, bounds: Mapping[str, object]
    ) -> None:
        self._spark = spark
        self._options = options
        self._topic = topic
        self._bounds = bounds

    def spread(self, *, start_ms: int, step_ms: int) -> list[SpreadRow]:
        """Count messages by partition, span of time, and how late they fired."""
        slot = f"cast((unix_millis(append_time) - {start_ms}L) div {step_ms}L as int) as slot"
        late = "unix_millis(fire_time) - unix_millis(due_time) as ms"
        rows = (
            self._read("partition int, value_bytes int, append_time timestamp, "
                       "due_time timestamp, fire_time timestamp")
            .selectExpr("partition", "value_bytes", slot, late)
            .selectExpr("partition", "value_bytes", "slot", "ms",
                        f"case when ms is not null then {BIN_SQL} end as bin")
            .groupBy("partition", "slot", "bin")
            .agg(
                f.count("*"),
                f.coalesce(f.sum("value_bytes"), f.lit(0)),
                f.count_if(f.col("value_bytes").isNull()),
                f.count_if(f.col("ms") < 0),
                f.max("ms"),
            )
            .collect()
        )  # fmt: skip
        return [tuple(row) for row in rows]

    def keys(self) -> KeyCounts:
        """Count messages by key; return the hottest, and how many keys there are."""
        counted = self._read("partition int, key binary").groupBy("partition", "key").count()
        counted.persist()
        try:
            totals = (
                counted.groupBy("partition")
                .agg(
                    f.count("key").alias("keys"),
                    f.coalesce(f.sum(f.expr("if(key is null, count, 0)")), f.lit(0)).alias("none"),
                )
                .collect()
            )
            hottest = (
                counted.where("key is not null")
                .orderBy(f.desc("count"), "partition", "key")
                .limit(HOT_KEYS)
                .collect()
            )
        finally:
            counted.unpersist()
        return KeyCounts(
            keys={row["partition"]: row["keys"] for row in totals},
            keyless=sum(row["none"] for row in totals),
            hot=tuple(
                HotKey(
                    key=key_text(bytes(row["key"])),
                    partition=row["partition"],
                    messages=row["count"],
                )
                for row in hottest
            ),
        )

    def duplicates(self) -> int:
        """Count messages whose id another message of the partition has.

        Ids are compared by 64 bits of hash: among ten million, one is counted wrongly in every
        three hundred thousand reports.
        """
        row = (
            self._read("partition int, message_id binary")
            .groupBy("partition", f.xxhash64("message_id").alias("id"))
            .count()
            .agg(f.coalesce(f.sum(f.expr("count - 1")), f.lit(0)).alias("more"))
            .collect()[0]
        )
        return int(row["more"])

    def dead(self) -> tuple[DeadReason, ...]:
        """Count dead letters by group and reason, the most frequent first."""
        dead_letters = read(
            self._spark,
            self._options,
            schema="group string, reason string, attempts int, dead_lettered_time timestamp",
            topic=self._topic,
            view="dlq",
        )
        rows = (
            dead_letters.withColumn("reason", f.substring("reason", 1, REASON_CHARS_MAX))
            .groupBy("group", "reason")
            .agg(
                f.count("*").alias("dead_letters"),
                f.max("attempts").alias("attempts"),
                f.max(f.expr("unix_millis(dead_lettered_time)")).alias("newest"),
            )
            .orderBy(f.desc("dead_letters"), "group", "reason")
            .limit(REASONS_MAX)
            .collect()
        )
        return tuple(
            DeadReason(
                group=row["group"] or "",
                reason=row["reason"] or "",
                messages=row["dead_letters"],
                attempts_max=row["attempts"] or 0,
                newest_ms=row["newest"] or 0,
            )
            for row in rows
        )

    def _read(self, schema: str) -> "DataFrame":
        return read(
            self._spark,
            self._options,
            schema=schema,
            topic=self._topic,
            failOnDataLoss="false",
            **self._bounds,
        )
