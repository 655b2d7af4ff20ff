"""Dead letters once more: looked at by reason, picked, mended by SQL, and sent back.

A letter is taken off the list only after its message is stored. If the job dies in between, the
next run finds the letter still there and sends it under the same id, made from the letter, which
the topic knows: nothing is sent twice, and nothing is lost. What is picked is fixed before the
first is sent, so dead letters that come meanwhile wait for the next run.
"""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.window import Window

from waterclock.client.due import instant_ms, span_ms
from waterclock.model.errors import BadInput
from waterclock.model.views import Position
from waterclock.spark.jobs.job import (
    JobOptions,
    Reporter,
    Summary,
    append,
    derived_id,
    digest,
    make_topic,
    node_client,
    read,
)
from waterclock.spark.jobs.tables import typed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHANGEABLE = ("value", "key", "headers", "due_time")
PURGED_AT_ONCE = 5_000
REASONS_SHOWN = 100
SAMPLES = 5
SAMPLE_CHARS = 80

_SET = re.compile(r"\s*([a-z_]+)\s*=(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveOptions(JobOptions):
    """Which dead letters, and what becomes of them."""

    topic: str
    """The topic they came from."""
    reasons: Sequence[str] = ()
    """Only these; `%` stands for anything."""
    where: str | None = None
    """A condition in SQL over the columns of view=dlq."""
    changes: Sequence[str] = ()
    """`column=expression`, of value, key, headers or due_time."""
    due: str | None = None
    """When all are due: `+10m`, `2026-12-24T18:00Z`."""
    spread: str | None = None
    """Due over this long, one after the other, rather than all at once."""
    to_topic: str | None = None
    """Without, where they came from."""
    keeps_dead_letters: bool = False
    """Send copies, and leave the dead letters on the list."""
    limit: int | None = None

    def check(self) -> None:
        """Raise BadInput if these do not go together."""
        for text in self.changes:
            change_of(text)
        if self.due is not None and any(change_of(text)[0] == "due_time" for text in self.changes):
            raise BadInput("redrive: due_time is set twice: by --due and by --set")
        if self.limit is not None and self.limit < 1:
            raise BadInput("--limit must be at least 1")


def run(spark: "SparkSession", options: RedriveOptions, reporter: Reporter) -> Summary:
    """Send the dead letters that are picked, then take them off the list."""
    options.check()
    dead_letters = read(spark, options, topic=options.topic, view="dlq")
    with reporter.stage(f"reading the dead letters of {options.topic}"):
        picked = _picked(dead_letters, options).localCheckpoint()
        counts = _by_reason(picked)
    messages = _messages(picked, options)
    count = sum(counts.values())
    purged = 0
    if count and not options.is_dry_run:
        target = options.to_topic or options.topic
        make_topic(options, target, like=options.topic)
        with reporter.stage(f"sending to {target}", rows=count):
            append(messages, options, topic=target, writeId=_writer(picked, options))
        if not options.keeps_dead_letters:
            with reporter.stage("taking them off the list", rows=count):
                purged = _purge(picked, options)
    return Summary(
        job="redrive",
        rows=count,
        facts={
            "topic": options.topic,
            "to_topic": options.to_topic or options.topic,
            "reasons": dict(list(counts.items())[:REASONS_SHOWN]),
            "taken_off": purged,
            "sample": _sample(messages) if options.is_dry_run else None,
        },
        is_dry_run=options.is_dry_run,
    )


def change_of(text: str) -> tuple[str, str]:
    """Return the column and the expression of `column=expression`."""
    match = _SET.fullmatch(text)
    if match is None or match[1] not in CHANGEABLE:
        raise BadInput(f"--set {text!r}: write one of {', '.join(CHANGEABLE)} = an expression")
    return match[1], match[2].strip()


def _picked(dead_letters: DataFrame, options: RedriveOptions) -> DataFrame:
    picked = dead_letters
    if options.reasons:
        likes = [F.col("reason").like(reason) for reason in options.reasons]
        either = likes[0]
        for like in likes[1:]:
            either = either | like
        picked = picked.where(either)
    if options.where is not None:
        picked = typed("--where", options.where, picked.where)
    if options.limit is not None:
        picked = picked.orderBy("dead_lettered_time", "partition", "offset").limit(options.limit)
    return picked


def _by_reason(picked: DataFrame) -> dict[str, int]:
    rows = picked.groupBy("reason").agg(F.count("*").alias("rows")).collect()
    most_first = sorted(rows, key=lambda row: (-row["rows"], row["reason"]))
    return {row["reason"]: row["rows"] for row in most_first}


def _messages(picked: DataFrame, options: RedriveOptions) -> DataFrame:
    """Return dead letters as messages, mended and with new times."""
    due = F.lit(None).cast("timestamp") if options.due is None else _due(options.due)
    rows = picked.withColumn("due_time", due)
    made: dict[str, Column] = {name: F.col(name) for name in CHANGEABLE}
    for text in options.changes:
        column, expression = change_of(text)
        made[column] = _change(rows, column, expression)
    if options.spread is not None:
        made["due_time"] = _spread(made["due_time"], options.spread, rows.count())
    return rows.select(
        *[column.alias(name) for name, column in made.items()],
        derived_id("redrive").alias("message_id"),
    )


def _change(rows: DataFrame, column: str, expression: str) -> Column:
    tried = typed("--set", expression, lambda text: rows.select(F.expr(text).alias("it")))
    kind, made = tried.schema["it"].dataType, F.expr(expression)
    if column == "due_time":
        if not isinstance(kind, T.TimestampType | T.TimestampNTZType):
            raise BadInput(f"--set due_time: is {kind.simpleString()}, not a timestamp")
        return made.cast("timestamp")
    if column == "headers":
        if not isinstance(kind, T.MapType):
            raise BadInput(f"--set headers: is {kind.simpleString()}, not a map<string,binary>")
        return made.cast("map<string,binary>")
    if not isinstance(kind, T.BinaryType | T.StringType | T.NullType):
        raise BadInput(f"--set {column}: is {kind.simpleString()}, not text or binary")
    return made.cast("binary")


def _due(text: str) -> Column:
    return F.timestamp_millis(F.lit(instant_ms(text, int(time.time() * 1_000), field="--due")))


def _spread(due: Column, text: str, count: int) -> Column:
    """Return due times that lie evenly over a span, in the order in which they failed."""
    over_ms = span_ms(text)
    place = F.row_number().over(Window.orderBy("dead_lettered_time", "partition", "offset")) - 1
    start = F.coalesce(due, F.timestamp_millis(F.lit(int(time.time() * 1_000))))
    added = (place * F.lit(over_ms) / F.lit(max(count, 1))).cast("bigint")
    return F.timestamp_millis(F.unix_millis(start) + added)


def _writer(picked: DataFrame, options: RedriveOptions) -> str:
    """Return a name for what is picked: the same pick, sent before, is not sent again."""
    place = F.xxhash64("partition", "offset", "message_id")
    row = picked.agg(F.count("*"), F.bit_xor(place), F.sum(place.cast("decimal(38,0)"))).first()
    assert row is not None
    counts = [str(each) for each in row]
    return f"redrive-{digest(options.topic, options.to_topic, counts)}"


def _purge(picked: DataFrame, options: RedriveOptions) -> int:
    """Take dead letters off the list, some thousands at a time."""
    purged = 0
    waiting: list[Position] = []
    with node_client(options) as client:
        for row in picked.select("partition", "offset").toLocalIterator():
            waiting.append(Position(row["partition"], row["offset"]))
            if len(waiting) == PURGED_AT_ONCE:
                purged += client.dead_letters.purge(options.topic, waiting)
                waiting.clear()
        if waiting:
            purged += client.dead_letters.purge(options.topic, waiting)
    return purged


def _sample(messages: DataFrame) -> list[dict[str, str | None]]:
    """Return a few messages as they would be sent, as text."""
    shown = messages.select(
        F.substring(F.col("key").cast("string"), 1, SAMPLE_CHARS).alias("key"),
        F.substring(F.col("value").cast("string"), 1, SAMPLE_CHARS).alias("value"),
        F.date_format("due_time", "yyyy-MM-dd'T'HH:mm:ss'Z'").alias("due_time"),
    )
    return [row.asDict() for row in shown.take(SAMPLES)]
