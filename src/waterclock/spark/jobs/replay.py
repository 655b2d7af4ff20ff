"""The past once more: a stretch of a topic, perhaps filtered, to a topic, Parquet, a stream or a
group.

What is replayed is pinned when a replay is first run. Where it ends is noted by the node under the
replay's name, so that running it again means the same stretch, and every message has an id made
from where it came from: what an earlier run has stored is not stored again. Another `name` replays
anew.

**Pace.** To a topic, gaps are kept by due times: message by message the distance to the first one,
divided by `speed`, is added to now, and the node does the waiting. The job itself ends as soon as
all is stored. To a stream the job sends, and waits, itself.
"""

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from waterclock.client._sync.client import BlockingClient
from waterclock.model.errors import BadInput
from waterclock.model.views import WriteState
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

OFFSET_MAX = (1 << 62) - 1

_EVERYWHERE = re.compile(r"[0-9]{1,19}", re.ASCII)
_PLACE = re.compile(r"([0-9]{1,9}):([0-9]{1,19})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Stretch:
    """The offsets [start, end) of each partition."""

    starts: Mapping[int, int]
    ends: Mapping[int, int]


def offsets_of(option: str, text: str | None, whole: Stretch) -> dict[int, int]:
    """Return offsets written `120`, for all partitions, or `0:120,1:95`; none for None."""
    if text is None:
        return {}
    if _EVERYWHERE.fullmatch(text.strip()):
        return {partition: _offset(option, text) for partition in whole.starts}
    found: dict[int, int] = {}
    for each in text.split(","):
        match = _PLACE.fullmatch(each.strip())
        if match is None:
            raise BadInput(f"{option} {text!r}: write one offset for all partitions, or 0:120,1:95")
        if int(match[1]) not in whole.starts:
            raise BadInput(f"{option}: the topic has no partition {match[1]}")
        found[int(match[1])] = _offset(option, match[2])
    return found


def narrowed(whole: Stretch, starts: Mapping[int, int], ends: Mapping[int, int]) -> Stretch:
    """Return the part of the log within these bounds; where there is none, all or none of it."""
    made_starts, made_ends = {}, {}
    for partition, first in whole.starts.items():
        last = whole.ends[partition]
        made_starts[partition] = min(max(starts.get(partition, first), first), last)
        made_ends[partition] = min(max(ends.get(partition, last), made_starts[partition]), last)
    return Stretch(made_starts, made_ends)


def offsets_json(offsets: Mapping[int, int]) -> str:
    """Return offsets as the connector takes them."""
    return json.dumps({str(partition): offset for partition, offset in sorted(offsets.items())})


def _offset(option: str, text: str) -> int:
    if int(text) > OFFSET_MAX:
        raise BadInput(f"{option} {text}: an offset is at most {OFFSET_MAX}")
    return int(text)


TASK_ROWS = 500_000
"""Offsets of one task. The write registry notes tasks, so this must not depend on the machine."""
SPEED_MAX = 1_000_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions(JobOptions):
    """Which messages, where to, and how fast."""

    topic: str
    since: str | None = None
    """Published then or later: `-1h`, `2026-12-24T18:00Z`."""
    until: str | None = None
    """Published before then."""
    from_offsets: str | None = None
    """`120` in all partitions, or `0:120,1:95`."""
    to_offsets: str | None = None
    """The first that is not replayed, written the same way."""
    where: str | None = None
    """A condition in SQL over the columns of a topic."""
    to_topic: str | None = None
    to_parquet: str | None = None
    to_stream: str | None = None
    to_group: str | None = None
    """A group of the topic that is set back; it then gets all from there on."""
    speed: float | None = None
    """1 keeps the original gaps, 10 makes them ten times shorter; without, as fast as it goes."""
    is_stored: bool = False
    """To a stream: store each message, once, however often this is run, rather than send it to
    whoever listens now."""
    name: str | None = None
    """Without, made from the other options."""

    def check(self) -> None:
        """Raise BadInput if these do not go together."""
        targets = [self.to_topic, self.to_parquet, self.to_stream, self.to_group]
        if sum(target is not None for target in targets) != 1:
            raise BadInput(
                "replay: give one target: --to-topic, --to-parquet, --to-stream or --to-group"
            )
        if (self.since or self.until) and (self.from_offsets or self.to_offsets):
            raise BadInput("replay: give times or offsets, not both")
        if self.to_group is not None and (self.where or self.until or self.to_offsets):
            raise BadInput("replay: a group is set back to a place; it takes no end and no filter")
        if self.speed is not None and not 0 < self.speed <= SPEED_MAX:
            raise BadInput(f"--speed must be over 0 and at most {SPEED_MAX:,.0f}")
        if self.speed is not None and (self.to_parquet or self.to_group):
            raise BadInput("--speed is for topics and streams: files and groups have no pace")
        if self.is_stored and self.to_stream is None:
            raise BadInput("--store is for --to-stream: topics always store")

    @property
    def run_name(self) -> str:
        """The name of this replay, the same for the same options."""
        chosen = (
            self.topic, self.since, self.until, self.from_offsets, self.to_offsets, self.where,
            self.to_topic, self.to_parquet, self.to_stream, self.speed,
        )  # fmt: skip
        return self.name or digest("replay", *chosen)


def run(spark: "SparkSession", options: ReplayOptions, reporter: Reporter) -> Summary:
    """Replay the stretch to where it is wanted."""
    options.check()
    with node_client(options) as client:
        stretch = _stretch(client, options)
        if options.to_group is not None:
            return _seek(client, options, stretch)
    within: dict[str, Any] = {
        "topic": options.topic,
        "startingOffsets": offsets_json(stretch.starts),
        "endingOffsets": offsets_json(stretch.ends),
        "maxRowsPerPartition": TASK_ROWS,
    }
    rows = read(spark, options, **within)
    counted = read(spark, options, schema="append_time timestamp", **within)
    if options.where is not None:
        counted = rows = typed("--where", options.where, rows.where)
    with reporter.stage(f"counting {options.topic}"):
        found = counted.agg(F.count("*").alias("rows"), F.min("append_time").alias("first")).first()
    assert found is not None
    count = int(found["rows"])
    is_done = not options.is_dry_run and _is_done(options)
    if count and not options.is_dry_run and not is_done:
        with reporter.stage(f"replaying {options.topic}", rows=count):
            count = _write(rows, options, found["first"], count)
    return Summary(
        job="replay",
        rows=0 if is_done else count,
        facts={
            "topic": options.topic,
            "to": _target(options),
            "name": options.run_name,
            "from_offsets": _plain(stretch.starts),
            "to_offsets": _plain(stretch.ends),
            "already_replayed": count if is_done else 0,
        },
        is_dry_run=options.is_dry_run,
    )


def _stretch(client: BlockingClient, options: ReplayOptions) -> Stretch:
    """Return what is replayed, by offsets; where it ends is pinned by the first run of its name."""
    partitions = client.topics.get(options.topic).partitions
    whole = Stretch(
        {each.partition: each.start_offset for each in partitions},
        {each.partition: each.end_offset for each in partitions},
    )
    starts = offsets_of("--from-offsets", options.from_offsets, whole)
    ends: Mapping[int, int] = offsets_of("--to-offsets", options.to_offsets, whole)
    if options.since is not None:
        starts = client.topics.find_offsets(options.topic, options.since)
    if options.until is not None:
        ends = client.topics.find_offsets(options.topic, options.until)
    if options.until is None and options.to_offsets is None and not options.is_dry_run:
        # Kept by the node as a task that begins: asked again, it tells where the log ended then.
        begun = client.write_registry.begin(options.topic, f"replay-{options.run_name}", 0, 0)
        if begun.state in (WriteState.NEW, WriteState.BEGUN):
            ends = begun.positions
    return narrowed(whole, starts, ends)


def _is_done(options: ReplayOptions) -> bool:
    """Ask the node if this replay was stored whole before."""
    if options.to_topic is None:
        return False
    make_topic(options, options.to_topic, like=options.topic)
    with node_client(options) as client:
        writers = client.write_registry.list(options.to_topic)
    name = _writer(options)
    return any(each.name == name and each.committed is not None for each in writers)


def _writer(options: ReplayOptions) -> str:
    return f"replayed-{options.run_name}"


def _write(rows: DataFrame, options: ReplayOptions, first: datetime, count: int) -> int:
    """Write to whichever target was given; return how many rows went there."""
    if options.to_topic is not None:
        append(_messages(rows, options, first), options, topic=options.to_topic,
               writeId=_writer(options))  # fmt: skip
    elif options.to_parquet is not None:
        # A folder of its own: run again, it is overwritten, and what else lies there is not.
        rows.write.mode("overwrite").parquet(f"{options.to_parquet}/replay={options.run_name}")
    else:
        assert options.to_stream is not None
        return send_rows(
            rows, options, options.to_stream, tag=options.run_name, speed=options.speed,
            is_stored=options.is_stored,
        )  # fmt: skip
    return count


def _messages(rows: DataFrame, options: ReplayOptions, first: datetime) -> DataFrame:
    """Return rows as messages to be published, with the gaps kept by due times if wanted."""
    columns = [
        F.col("key"),
        F.col("value"),
        F.col("headers"),
        derived_id(f"replay-{options.run_name}").alias("message_id"),
    ]
    if options.speed is not None:
        now_ms = int(time.time() * 1_000)
        first_ms = F.lit(int(first.astimezone(UTC).timestamp() * 1_000))
        gap = (F.unix_millis("append_time") - first_ms) / options.speed
        columns.append(F.timestamp_millis(F.lit(now_ms) + gap.cast("bigint")).alias("due_time"))
    return rows.select(*columns)


def _seek(client: BlockingClient, options: ReplayOptions, stretch: Stretch) -> Summary:
    """Set a group back; a group that is at work is not disturbed (Busy)."""
    assert options.to_group is not None
    behind = sum(stretch.ends[each] - start for each, start in stretch.starts.items())
    if not options.is_dry_run:
        client.groups.seek(options.topic, options.to_group, stretch.starts)
    return Summary(
        job="replay",
        rows=behind,
        facts={
            "topic": options.topic,
            "to": _target(options),
            "from_offsets": _plain(stretch.starts),
        },
        is_dry_run=options.is_dry_run,
    )


def _target(options: ReplayOptions) -> str:
    kinds = {
        "topic": options.to_topic,
        "parquet": options.to_parquet,
        "stream": options.to_stream,
        "group": options.to_group,
    }
    return next(f"{kind} {name}" for kind, name in kinds.items() if name is not None)


def _plain(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): offset for partition, offset in sorted(offsets.items())}


def send_rows(
    rows: DataFrame, options: JobOptions, stream: str, *, tag: str, speed: float | None,
    is_stored: bool,
) -> int:  # fmt: skip
    """Send all rows; return how many. Stored ones have ids, and are stored once."""
    ordered = rows.orderBy("append_time", "partition", "offset").select(
        "partition",
        "offset",
        "value",
        F.unix_millis("append_time").alias("ms"),
        F.sha2(derived_id(f"replay-{tag}"), 256).alias("id"),
    )
    sent = 0
    began, first_ms = time.monotonic(), None
    with node_client(options) as client:
        for row in ordered.toLocalIterator():
            if speed is not None:
                first_ms = row["ms"] if first_ms is None else first_ms
                wait_s = began + (row["ms"] - first_ms) / 1_000 / speed - time.monotonic()
                if wait_s > 0:
                    time.sleep(wait_s)
            value = json_of(row["value"], f"{row['partition']}/{row['offset']}")
            if is_stored:
                client.streams.send_and_store(stream, value, message_id=row["id"])
            else:
                client.streams.send(stream, value)
            sent += 1
    return sent


def json_of(value: bytes | bytearray | None, place: str) -> Any:  # noqa: ANN401 - JSON is anything
    """Return a value as JSON: parsed if it is some, else as text; raise BadInput if it is none."""
    if value is None:
        return None
    try:
        text = bytes(value).decode()
    except UnicodeDecodeError as error:
        raise BadInput(f"the value at {place} is not text: a stream carries JSON") from error
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
