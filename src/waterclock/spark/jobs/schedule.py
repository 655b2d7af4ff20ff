"""Bulk scheduling: millions of messages for later, all checked before the first is sent.

Each row becomes a message. All rows are looked at first: how many are good, and why the others are
not. The name under which the good ones are then written is made from the messages themselves, so
that the same input is written once, however often the job is run: the node's write registry knows
what was stored, and a run that was killed goes on where it was. To send the same rows once more on
purpose, give another `write_id`.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from waterclock.model.errors import BadInput, UnknownTopic
from waterclock.model.limits import Limits
from waterclock.spark.jobs.job import JobOptions, Reporter, Summary, append, digest, node_client
from waterclock.spark.jobs.message_rows import Mapped, message_rows
from waterclock.spark.jobs.tables import read_table

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

TASK_ROWS = 250_000
"""Rows of one task when a query's result is divided: more repeat more if a task fails."""
TASKS_MAX = 2_000
SAMPLES = 5
SAMPLE_CHARS = 80
PAST = "due: in the past"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOptions(JobOptions):
    """What to schedule, and how rows become messages."""

    topic: str
    source: str | None = None
    """A file or folder of Parquet, CSV or JSON lines."""
    sql: str | None = None
    """Or a query, over files (`parquet.`/data/x``) and whatever else Spark SQL reads."""
    format: str | None = None
    """parquet, csv or json; without, as the name of the source ends."""
    schema: str | None = None
    """Columns of CSV or JSON in DDL; without, those of CSV are text and those of JSON guessed."""
    mapped: Mapped = field(default_factory=Mapped)
    sends_late: bool = False
    """Send rows whose time has passed at once, rather than refuse them."""
    rejects: str | None = None
    """A folder for the rows that were refused, as JSON lines with the reason."""
    write_id: str | None = None
    """Names this write; without, the messages do."""

    def check(self) -> None:
        """Raise BadInput if these do not go together."""
        if (self.source is None) is (self.sql is None):
            raise BadInput("schedule: give either files or a query with --sql")


@dataclass(frozen=True, slots=True)
class _Found:
    """What looking at all rows has found."""

    good: int
    rejected: dict[str, int]
    first_due: datetime | None
    last_due: datetime | None
    content: str
    """Names the messages, in whatever order they come."""


def run(spark: "SparkSession", options: ScheduleOptions, reporter: Reporter) -> Summary:
    """Check all rows, and schedule those that are good."""
    options.check()
    size_max, is_missing = _looked_up(options)
    table = read_table(
        spark, source=options.source, sql=options.sql, format_name=options.format,
        schema=options.schema,
    )  # fmt: skip
    rows = message_rows(table, options.mapped)
    checked = rows.withColumn("reason", _reason(options, size_max))
    with reporter.stage("checking rows"):
        found = _look(checked)
    writer = options.write_id or f"schedule-{digest(options.topic, found.content)}"
    is_stored = not options.is_dry_run and not is_missing and _is_stored(options, writer)
    made_partitions = 0
    if not options.is_dry_run:
        if options.rejects is not None and found.rejected:
            _write_rejects(checked, options.rejects)
        if found.good and is_missing:
            made_partitions = _make_topic(options)
        if found.good and not is_stored:
            good = _divided(checked.where(F.col("reason").isNull()), options, found)
            with reporter.stage(f"scheduling to {options.topic}", rows=found.good):
                append(good.drop("reason"), options, topic=options.topic, writeId=writer)
    return Summary(
        job="schedule",
        rows=0 if is_stored else found.good,
        rejected=found.rejected,
        facts={
            "topic": options.topic,
            "made_partitions": made_partitions or None,
            "already_stored": found.good if is_stored else 0,
            "first_due": _time_text(found.first_due),
            "last_due": _time_text(found.last_due),
            "write_id": writer,
            "rejected_samples": _samples(checked, found.rejected),
        },
        is_dry_run=options.is_dry_run,
    )


def _reason(options: ScheduleOptions, size_max: int) -> "Column":
    """Return why a row cannot be a message; null if it can."""
    limits = Limits()
    now_ms = int(time.time() * 1_000)
    due_ms = F.unix_millis("due_time")
    size = sum(
        (F.coalesce(F.length(name), F.lit(0)) for name in ("value", "key", "message_id")),
        F.lit(0),
    )
    chain = (
        F.when(F.col("broken").isNotNull(), "the row is malformed")
        .when(F.col("due_time").isNull(), "due: missing, or not a time")
        .when(due_ms > now_ms + limits.due_horizon_ms_max,
              f"due: over {limits.due_horizon_ms_max // 86_400_000:,} days ahead")
        .when(size > size_max, f"message: over {size_max:,} bytes")
        .when(F.length("key") > limits.key_bytes_max, f"key: over {limits.key_bytes_max:,} bytes")
        .when(F.length("message_id") == 0, "message_id: empty")
        .when(F.length("message_id") > limits.message_id_bytes_max,
              f"message_id: over {limits.message_id_bytes_max:,} bytes")
        .when(F.col("repeat") > 1, "message_id: repeated in the input")
    )  # fmt: skip
    return chain if options.sends_late else chain.when(due_ms <= now_ms, PAST)


def _look(checked: DataFrame) -> _Found:
    """Count rows by reason; add up what they are in a way that does not depend on their order."""
    entries = F.array_sort(F.map_entries("headers"))
    content = F.xxhash64("value", "key", "message_id", "due_time", entries)
    groups = (
        checked.groupBy("reason")
        .agg(
            F.count("*").alias("rows"),
            F.bit_xor(content).alias("mixed"),
            F.sum(content.cast("decimal(38,0)")).alias("total"),
            F.min("due_time").alias("first_due"),
            F.max("due_time").alias("last_due"),
        )
        .collect()
    )
    good = next((row for row in groups if row["reason"] is None), None)
    mixed, total = 0, 0
    for row in groups:
        mixed ^= row["mixed"]
        total += int(row["total"])
    return _Found(
        good=0 if good is None else good["rows"],
        rejected={row["reason"]: row["rows"] for row in groups if row["reason"] is not None},
        first_due=None if good is None else good["first_due"],
        last_due=None if good is None else good["last_due"],
        content=digest(sum(row["rows"] for row in groups), mixed, total),
    )


def _divided(good: DataFrame, options: ScheduleOptions, found: _Found) -> DataFrame:
    """Return the rows in tasks that are the same in every run, as the write registry notes tasks.

    Files are cut alike whatever the cores (see `tables.py`). What a query gives is divided by
    content.
    """
    columns = good.drop("broken", "repeat")
    if options.sql is None:
        return columns
    total = found.good + sum(found.rejected.values())
    tasks = min(max(total // TASK_ROWS, 1), TASKS_MAX)
    return columns.repartition(tasks, F.xxhash64("value", "key", "due_time", "message_id"))


def _is_stored(options: ScheduleOptions, writer: str) -> bool:
    """Ask the node if an earlier run has stored all of this."""
    with node_client(options) as client:
        writers = client.write_registry.list(options.topic)
    return any(each.name == writer and each.committed is not None for each in writers)


def _looked_up(options: ScheduleOptions) -> tuple[int, bool]:
    """Return the node's limit of a message, and whether the topic is missing and will be made.

    As for everyone who publishes, the node's `topics.auto_create` says which; if it is off,
    UnknownTopic is raised before anything is read.
    """
    with node_client(options) as client:
        node = client.node()
        try:
            client.topics.get(options.topic)
        except UnknownTopic:
            if not node.auto_create:
                raise
            return node.message_bytes_max, True
        return node.message_bytes_max, False


def _make_topic(options: ScheduleOptions) -> int:
    """Make the topic as the node would; return its partitions."""
    with node_client(options) as client:
        return len(client.topics.create(options.topic, if_absent=True).partitions)


def _write_rejects(checked: DataFrame, folder: str) -> None:
    shown = [
        F.col("reason"),
        F.col("value").cast("string").alias("value"),
        F.col("key").cast("string").alias("key"),
        F.hex("message_id").alias("message_id"),
        F.col("due_time"),
    ]
    rejected = checked.where(F.col("reason").isNotNull()).select(*shown)
    rejected.write.mode("overwrite").json(folder)


def _samples(checked: DataFrame, reasons: Iterable[str]) -> dict[str, list[str]]:
    """Return the beginnings of a few values for each reason."""
    text = F.substring(F.col("value").cast("string"), 1, SAMPLE_CHARS).alias("text")
    return {
        reason: [
            row["text"]
            for row in checked.where(F.col("reason") == reason).select(text).take(SAMPLES)
        ]
        for reason in reasons
    }


def _time_text(when: datetime | None) -> str | None:
    """Return a time as text; collected timestamps are naive, in the zone of this machine."""
    return None if when is None else when.astimezone(UTC).isoformat()
