"""`report`: how the messages of topics flow, as one HTML page and as JSON.

Spark counts what is in the log (rates, lateness, keys, ids) and among the dead letters; the node is
asked for what it knows itself: groups, what is scheduled, sizes and settings. The report reads and
changes nothing, so it can be made as often as one likes.
"""

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from waterclock.client._sync.client import BlockingClient
from waterclock.client.due import span_ms
from waterclock.model.errors import BadInput, WaterclockError
from waterclock.model.names import INTERNAL
from waterclock.model.views import GroupInfo, PartitionInfo, TopicInfo
from waterclock.spark.jobs.job import JobOptions, Reporter, Summary, node_client
from waterclock.spark.jobs.report.advice import advise
from waterclock.spark.jobs.report.figures import (
    DeadReason,
    Figures,
    GroupFigures,
    Growth,
    Horizon,
    PartitionFigures,
    TopicFigures,
    lateness_of,
    slots_of,
    step_of,
)
from waterclock.spark.jobs.report.page import page

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from waterclock.spark.jobs.report.queries import Queries

DEAD_SUFFIX = ".dlq"
PAGE = "waterclock-report.html"
TOPICS_MAX = 100
PLACES_ASKED_MAX = 200
"""Partitions of groups whose oldest unread message is looked up; of the rest, only the lag is."""
GROWTH_SPAN_MS_MIN = 10 * 60_000
"""Growth over less time than this says nothing about a day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions(JobOptions):
    """What a report is about, and where it goes."""

    topics: tuple[str, ...] = ()
    """None: all topics, dead letter topics aside."""
    since: str = ""
    """ISO 8601 with a zone, or a span back from now such as `24h`; none: from the beginning."""
    until: str = ""
    """The same; none: until now."""
    page: str = PAGE
    """The file to write; in a dry run none is."""


def run(spark: "SparkSession", options: ReportOptions, reporter: Reporter) -> Summary:
    made_ms = time.time_ns() // 1_000_000
    since_ms = moment_ms("since", options.since, made_ms)
    until_ms = moment_ms("until", options.until, made_ms)
    if since_ms is not None and until_ms is not None and since_ms >= until_ms:
        raise BadInput("since: must be before until")
    folder = Path(options.page).absolute().parent
    if not folder.is_dir():
        raise BadInput(f"page: there is no folder {folder}: create it first")
    with node_client(options) as client:
        node = client.node()
        topics = chosen_topics(client, options.topics)
        made = []
        for topic in topics:
            subject = Subject(
                spark, options, reporter, client, topic, (since_ms, until_ms, made_ms)
            )
            made.append(subject.figures(node.data_folder))
    figures = Figures(
        node=node.name,
        version=node.version,
        made_ms=made_ms,
        since_ms=since_ms,
        until_ms=until_ms,
        topics=tuple(made),
    )
    if not options.is_dry_run:
        Path(options.page).write_text(page(figures), encoding="utf-8")
    return Summary(
        job="report",
        rows=sum(topic.messages for topic in made),
        facts={
            "page": None if options.is_dry_run else str(Path(options.page).absolute()),
            "report": asdict(figures),
        },
        is_dry_run=options.is_dry_run,
    )


def moment_ms(field: str, text: str, now_ms: int) -> int | None:
    """Return the moment a text means: a time, or a span back from now; None for no text."""
    text = text.strip()
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        try:
            return max(now_ms - span_ms(text.removeprefix("-")), 0)
        except (WaterclockError, ValueError) as error:
            raise BadInput(
                f"{field}: {text[:60]!r} is neither a time such as 2026-01-31T12:00Z nor a span "
                "back from now such as 24h"
            ) from error
    if moment.tzinfo is None:
        raise BadInput(f"{field}: {text[:60]!r} has no zone: write 2026-01-31T12:00Z")
    return max((moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1), 0)


def chosen_topics(client: BlockingClient, names: tuple[str, ...]) -> list[TopicInfo]:
    """Return the topics to report on; raise if one is not there, or there are too many."""
    if names:
        found = [client.topics.get(name) for name in dict.fromkeys(names)]
    else:
        found = [
            topic
            for topic in client.topics.list()
            if not topic.name.endswith(DEAD_SUFFIX) and not topic.name.startswith(INTERNAL)
        ]
    if len(found) > TOPICS_MAX:
        raise BadInput(f"{len(found)} topics; a report has at most {TOPICS_MAX}: name those wanted")
    return found


@dataclass(frozen=True, slots=True)
class Subject:
    """One topic that is reported on."""

    spark: "SparkSession"
    options: ReportOptions
    reporter: Reporter
    client: BlockingClient
    topic: TopicInfo
    times: tuple[int | None, int | None, int]
    """Since, until, now."""

    def figures(self, data_folder: str) -> TopicFigures:
        from waterclock.spark.jobs.report.queries import Queries

        since_ms, until_ms, now_ms = self.times
        start_ms, end_ms = self._span()
        step_ms = step_of(max(end_ms - start_ms, 1))
        start_ms -= start_ms % step_ms
        count = (end_ms - start_ms) // step_ms + 1
        bounds: dict[str, object] = {
            "startingTimestamp": since_ms,
            "endingTimestamp": until_ms if until_ms is not None else now_ms + 1,
        }
        queries = Queries(self.spark, self.options, self.topic.name, bounds)
        with self._stage("counting messages"):
            spread = queries.spread(start_ms=start_ms, step_ms=step_ms)
        with self._stage("counting keys"):
            keys = queries.keys()
        with self._stage("looking for repeated ids"):
            duplicates = queries.duplicates()
        messages = sum(row[3] for row in spread)
        by_partition: dict[int, int] = {}
        for row in spread:
            by_partition[row[0]] = by_partition.get(row[0], 0) + row[3]
        made = TopicFigures(
            topic=self.topic.name,
            messages=messages,
            value_bytes=sum(row[4] for row in spread),
            tombstones=sum(row[5] for row in spread),
            keyless=keys.keyless,
            keys=sum(keys.keys.values()),
            duplicates=duplicates,
            step_ms=step_ms,
            slots=slots_of(spread, start_ms=start_ms, step_ms=step_ms, count=count),
            lateness=lateness_of(spread),
            partitions=tuple(
                _partition(each, by_partition.get(each.partition, 0), keys.keys)
                for each in self.topic.partitions
            ),
            hot_keys=keys.hot,
            groups=self._groups(),
            scheduled=self._scheduled(),
            dead=self._dead(queries),
            growth=self._growth(messages, end_ms - start_ms, data_folder),
        )
        return replace(made, advice=advise(made))

    @contextmanager
    def _stage(self, what: str) -> Iterator[None]:
        with self.reporter.stage(f"{self.topic.name}: {what}"):
            yield

    def _span(self) -> tuple[int, int]:
        """Return from when to when there are messages to look at."""
        since_ms, until_ms, now_ms = self.times
        firsts = [
            first
            for each in self.topic.partitions
            if (first := self._append_ms(each, each.start_offset)) is not None
        ]
        begins_ms = min(firsts, default=now_ms)
        start_ms = begins_ms if since_ms is None else max(since_ms, begins_ms)
        end_ms = now_ms if until_ms is None else until_ms
        return min(start_ms, end_ms), end_ms

    def _append_ms(self, partition: PartitionInfo, offset: int) -> int | None:
        """Return when the first deliverable message from an offset on was appended."""
        while offset < partition.end_offset and not partition.problem:
            fetched = self.client.fetch(
                self.topic.name, partition.partition, offset, bytes_max=1, deliverable_only=True
            )
            for frame in fetched.frames():
                return frame.header.append_ms
            if fetched.next_offset <= offset:
                return None
            offset = fetched.next_offset
        return None

    def _groups(self) -> tuple[GroupFigures, ...]:
        asked = PLACES_ASKED_MAX
        made = []
        for group in self.client.groups.list(self.topic.name):
            made.append(self._group(group, asked))
            asked -= len(group.partitions)
        return tuple(made)

    def _group(self, group: GroupInfo, asked: int) -> GroupFigures:
        partitions = {each.partition: each for each in self.topic.partitions}
        now_ms = self.times[2]
        behind_ms = 0
        for place in group.partitions[: max(asked, 0)]:
            partition = partitions.get(place.partition)
            if place.lag and partition is not None:
                at = max(place.committed, partition.start_offset)
                oldest_ms = self._append_ms(partition, at)
                if oldest_ms is not None:
                    behind_ms = max(behind_ms, now_ms - oldest_ms)
        return GroupFigures(
            group=group.name,
            members=len(group.members),
            lag=sum(place.lag for place in group.partitions),
            unacked=sum(place.unacked for place in group.partitions),
            waiting=sum(place.waiting for place in group.partitions),
            behind_ms=behind_ms,
        )

    def _scheduled(self) -> tuple[Horizon, ...]:
        return tuple(
            Horizon(
                within_ms=None if each.within is None else each.within // timedelta(milliseconds=1),
                messages=each.count,
            )
            for each in self.client.count_scheduled(self.topic.name)
        )

    def _dead(self, queries: "Queries") -> tuple[DeadReason, ...]:
        if not self.client.dead_letters.count(self.topic.name):
            return ()
        with self._stage("counting dead letters"):
            return queries.dead()

    def _growth(self, messages: int, span: int, data_folder: str) -> Growth:
        topic = self.topic
        size = sum(each.size_bytes for each in topic.partitions)
        offsets = sum(each.end_offset - each.start_offset for each in topic.partitions)
        a_day = None
        if span >= GROWTH_SPAN_MS_MIN and offsets:
            a_day = size / offsets * messages / (span / 86_400_000)
        settles = []
        if topic.retention is not None and a_day is not None:
            settles.append(a_day * (topic.retention / timedelta(days=1)))
        whole_bytes = None
        if topic.retention_bytes is not None:
            whole_bytes = topic.retention_bytes * len(topic.partitions)
            settles.append(float(whole_bytes))
        folder = Path(data_folder)
        free = shutil.disk_usage(folder).free if folder.is_dir() else None
        return Growth(
            size_bytes=size,
            bytes_per_day=a_day,
            retention_ms=(
                None if topic.retention is None else topic.retention // timedelta(milliseconds=1)
            ),
            retention_bytes=whole_bytes,
            is_compacted=topic.is_compacted,
            settled_bytes=min(settles, default=None),
            disk_free_bytes=free,
            disk_full_days=free / a_day if free is not None and a_day else None,
        )


def _partition(info: PartitionInfo, messages: int, keys: Mapping[int, int]) -> PartitionFigures:
    return PartitionFigures(
        partition=info.partition,
        messages=messages,
        keys=keys.get(info.partition, 0),
        size_bytes=info.size_bytes,
        offsets=info.end_offset - info.start_offset,
        scheduled=info.scheduled,
        problem=info.problem,
    )
