"""Raw JSON in, checked rows out: a stream that sorts messages into good ones and bad ones.

Good rows go to a topic, as they came, and/or to Parquet, parsed, in a folder for each day. Bad rows
go to the dead letters of the source with the reason, where `waterclock dlq` and `pipeline redrive`
find them. Each is written once: Spark's checkpoint knows which offsets a micro-batch has, the
node's write registry which micro-batches were stored, and a micro-batch that comes again after a
crash overwrites its own Parquet files.

It takes what is there and ends, or with `is_following` goes on until it is stopped; run again, it
goes on where it was.
"""

import os
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import StorageLevel
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from waterclock.model.errors import BadInput
from waterclock.spark.jobs.job import (
    FORMAT,
    JobOptions,
    Reporter,
    Summary,
    append,
    connector,
    derived_id,
    digest,
    make_topic,
)
from waterclock.spark.jobs.json_rules import JsonRules, load_rules

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamReader

DEAD_LETTERS = ".dlq"
SLICE_S = 1
"""How often a run that waits for its query lets Ctrl-C through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestOptions(JobOptions):
    """Where rows come from, how they are checked, and where they go."""

    source: str
    """A topic; with `kafka` one of Kafka's; with `files` a name for what comes from them."""
    schema: str
    """A file: Spark's DDL, Spark's JSON, or JSON Schema."""
    files: str | None = None
    """Read JSON lines from these files instead of a topic; new files are found."""
    kafka: str | None = None
    """Read from Kafka at these servers instead."""
    to_topic: str | None = None
    to_parquet: str | None = None
    dlq: str | None = None
    """For bad rows; without, the dead letters of the source."""
    day_field: str | None = None
    """A field with a time by which rows are put into days; without, when they were published."""
    checkpoint: str | None = None
    """Where the stream keeps how far it is; without, a folder of the user's."""
    is_following: bool = False
    """Go on with what comes, until stopped."""
    batch_rows_max: int = 1_000_000
    """Rows of one micro-batch. More cost less for each; fewer repeat less after a crash."""
    trigger: str = "1 second"

    @property
    def dead_letter_topic(self) -> str:
        """Where bad rows go."""
        return self.dlq or self.source + DEAD_LETTERS

    def check(self) -> None:
        """Raise BadInput if these do not go together."""
        if self.to_topic is None and self.to_parquet is None:
            raise BadInput("ingest: say where good rows go: --to-topic, --to-parquet, or both")
        if self.files is not None and self.kafka is not None:
            raise BadInput("ingest: rows come from --files or from --kafka, not both")
        if self.to_topic == self.source and self.files is None and self.kafka is None:
            raise BadInput(f"ingest: {self.source} would be read and written for ever")


def run(spark: "SparkSession", options: IngestOptions, reporter: Reporter) -> Summary:
    """Check all rows there are, or that come, and write each to where it belongs."""
    options.check()
    rules = load_rules(options.schema)
    if options.day_field is not None and options.day_field not in rules.struct.names:
        raise BadInput(f"--day-field {options.day_field}: the schema has no such field")
    if options.is_dry_run:
        return _dry_run(spark, options, rules, reporter)
    sorting = _Sorting(options, rules)
    is_topic = options.files is None and options.kafka is None
    for target in (options.to_topic, options.dead_letter_topic):
        if target is not None:
            make_topic(options, target, like=options.source if is_topic else None)
    name = digest("ingest", options.source, options.files, options.kafka, options.to_topic,
                  options.to_parquet)  # fmt: skip
    folder = options.checkpoint or str(state_folder() / f"ingest-{name}")
    writer = _source(spark, options).writeStream.foreachBatch(sorting.write)
    writer = writer.option("checkpointLocation", folder).queryName(f"ingest {options.source}")
    paced = (
        writer.trigger(processingTime=options.trigger)
        if options.is_following
        else writer.trigger(availableNow=True)
    )
    with reporter.stage(f"ingesting {options.source}"):
        sorting.begin(paced.start())
        sorting.wait()
    facts = {
        "source": options.source,
        "to_topic": options.to_topic,
        "to_parquet": options.to_parquet,
        "dead_letters": options.dead_letter_topic,
        "batches": sorting.batches,
        "checkpoint": folder,
    }
    return Summary(job="ingest", rows=sorting.good, rejected=dict(sorting.rejected), facts=facts)


class _Sorting:
    """One run of the stream: what is done with each micro-batch, and the counts."""

    def __init__(self, options: IngestOptions, rules: JsonRules) -> None:
        self._options = options
        self._rules = rules
        self._begun = threading.Event()
        self._query: StreamingQuery | None = None
        self.good = 0
        self.rejected: Counter[str] = Counter()
        self.batches = 0

    def begin(self, query: "StreamingQuery") -> None:
        """Take the query, whose id names the writer: another checkpoint is another writer."""
        self._query = query
        self._begun.set()

    def wait(self) -> None:
        """Return when the stream has ended; Ctrl-C ends it after the micro-batch at hand."""
        assert self._query is not None
        try:
            while not self._query.awaitTermination(SLICE_S):
                pass
        except KeyboardInterrupt:
            self._query.stop()

    def write(self, batch: DataFrame, number: int) -> None:
        """Write the good rows of a micro-batch, then the bad ones."""
        self._begun.wait()
        assert self._query is not None
        writer = f"ingest-{self._query.id}"
        checked = batch.withColumn("reason", self._rules.reason(F.col("value")))
        checked = checked.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            counts = _counts(checked)
            good = checked.where(F.col("reason").isNull())
            if None in counts and self._options.to_topic is not None:
                append(good.select("key", "value", "headers", _id("ingest")), self._options,
                       topic=self._options.to_topic, writeId=writer, writeBatch=number)  # fmt: skip
            if None in counts and self._options.to_parquet is not None:
                self._write_parquet(good, number)
            if counts.keys() - {None}:
                append(_bad_rows(checked), self._options,
                       topic=self._options.dead_letter_topic, writeId=writer,
                       writeBatch=number)  # fmt: skip
        finally:
            checked.unpersist()
        self.good += counts.get(None, 0)
        self.rejected.update(_rejected(counts))
        self.batches += 1

    def _write_parquet(self, good: DataFrame, number: int) -> None:
        """Write parsed rows into `day=…/batch=…`; the same micro-batch overwrites what it wrote."""
        parsed = F.from_json(F.col("value").cast("string"), self._rules.struct)
        fields = [F.col(f"parsed.`{name}`") for name in self._rules.struct.names]
        field = self._options.day_field
        when = F.col("append_time") if field is None else F.col(f"parsed.`{field}`")
        rows = good.withColumn("parsed", parsed).select(
            *fields,
            F.col("key").alias("_key"),
            F.col("partition").alias("_partition"),
            F.col("offset").alias("_offset"),
            F.col("append_time").alias("_time"),
            F.to_date(when).alias("day"),
            F.lit(number).alias("batch"),
        )
        writer = rows.write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
        assert self._options.to_parquet is not None
        writer.partitionBy("day", "batch").parquet(self._options.to_parquet)


def _dry_run(
    spark: "SparkSession", options: IngestOptions, rules: JsonRules, reporter: Reporter
) -> Summary:
    """Check all there is now, and write nothing."""
    reason = rules.reason(F.col("value")).alias("reason")
    with reporter.stage(f"checking {options.source}"):
        counts = _counts(_all(spark, options).select(reason))
    return Summary(
        job="ingest",
        rows=counts.get(None, 0),
        rejected=_rejected(counts),
        facts={"source": options.source},
        is_dry_run=True,
    )


def _counts(checked: DataFrame) -> dict[str | None, int]:
    """Return how many rows there are by reason, the good ones under None."""
    rows = checked.groupBy("reason").agg(F.count("*").alias("rows")).collect()
    return {row["reason"]: row["rows"] for row in rows}


def _rejected(counts: Mapping[str | None, int]) -> dict[str, int]:
    return {reason: count for reason, count in counts.items() if reason is not None}


def _all(spark: "SparkSession", options: IngestOptions) -> DataFrame:
    if options.files is not None:
        return _lines(spark.read.text(options.files))
    if options.kafka is not None:
        return _from_kafka(spark.read.format("kafka").options(**_kafka(options)), spark.version)
    return spark.read.format(FORMAT).options(**connector(options, topic=options.source)).load()


def _source(spark: "SparkSession", options: IngestOptions) -> DataFrame:
    """Return the stream, with the columns of a topic wherever it comes from."""
    stream: DataStreamReader = spark.readStream
    if options.files is not None:
        return _lines(stream.text(options.files))
    if options.kafka is not None:
        limit = {"maxOffsetsPerTrigger": str(options.batch_rows_max)}
        reader = stream.format("kafka").options(**_kafka(options), **limit)
        return _from_kafka(reader, spark.version)
    return (
        stream.format(FORMAT)
        .options(
            **connector(options, topic=options.source, maxOffsetsPerTrigger=options.batch_rows_max)
        )
        .load()
    )


def _kafka(options: IngestOptions) -> dict[str, str]:
    assert options.kafka is not None
    return {
        "kafka.bootstrap.servers": options.kafka,
        "subscribe": options.source,
        "startingOffsets": "earliest",
        "includeHeaders": "true",
    }


def _from_kafka(reader: "DataFrameReader | DataStreamReader", version: str) -> DataFrame:
    try:
        rows = reader.load()
    except AnalysisException as error:
        if "find data source" not in str(error):
            raise
        raise BadInput(
            "--kafka: Spark's Kafka connector is not loaded; add --conf spark.jars.packages="
            f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version}"
        ) from None
    return rows.select(
        "partition",
        "offset",
        F.lit(None).cast("binary").alias("message_id"),
        "key",
        "value",
        F.map_from_entries("headers").alias("headers"),
        F.col("timestamp").alias("append_time"),
    )


def _lines(rows: DataFrame) -> DataFrame:
    """Return lines of files as rows; they have no place of their own, and ids by their content."""
    return rows.select(
        F.lit(None).cast("int").alias("partition"),
        F.lit(None).cast("bigint").alias("offset"),
        F.lit(None).cast("binary").alias("message_id"),
        F.lit(None).cast("binary").alias("key"),
        F.col("value").cast("binary").alias("value"),
        F.lit(None).cast("map<string,binary>").alias("headers"),
        F.current_timestamp().alias("append_time"),
    )


def _id(tag: str) -> Column:
    """Return an id by the place of the source; null, and so by the content, if it has none."""
    return F.when(F.col("offset").isNotNull(), derived_id(tag)).alias("message_id")


def _bad_rows(checked: DataFrame) -> DataFrame:
    """Return bad rows as dead letters, with the headers by which the node knows them."""
    headers = {
        "group": F.lit("ingest"),
        "reason": F.col("reason"),
        "attempts": F.lit("1"),
        "partition": F.col("partition").cast("string"),
        "offset": F.col("offset").cast("string"),
        "dead-lettered-ms": F.unix_millis(F.current_timestamp()).cast("string"),
        "id": F.col("message_id"),
    }
    pairs = [
        F.struct(F.lit(f"wc-dlq-{name}").alias("key"), value.cast("binary").alias("value"))
        for name, value in headers.items()
    ]
    facts = F.filter(F.array(*pairs), lambda pair: pair["value"].isNotNull())
    kept = F.filter(
        F.coalesce(
            F.map_entries("headers"), F.array().cast("array<struct<key:string,value:binary>>")
        ),
        lambda pair: ~pair["key"].startswith("wc-dlq-"),
    )
    return checked.where(F.col("reason").isNotNull()).select(
        F.col("key"),
        F.col("value"),
        F.map_from_entries(F.concat(kept, facts)).alias("headers"),
        _id("bad"),
    )


def state_folder() -> Path:
    """Return the folder; it is not made here."""
    home = os.environ.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local" / "state") / "waterclock"
