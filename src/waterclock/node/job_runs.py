"""The last runs of jobs: what each told of itself, and when it was last heard from.

A job that runs elsewhere, on Spark, tells the node that it has begun, again and again how far it
is, and how it ended. Each is a record, `run/<name>`. All times are the node's, so that the clock of
a driver's machine does not matter. A driver that died tells nothing: its run is `silent` once it
was not heard from for as long as it would have told several times.

There is room for so many. If there are more, one of the tenant that has most of them makes room,
the new one counted: nobody takes the place of others. A tenant is what stands before the first dot
of a topic. Of theirs the oldest of the topic that has most goes first, and one that goes on last: a
job that is run every minute does not take the place of one that is run every night.
"""

from collections import Counter

import msgspec

from waterclock.model.clock import Clock
from waterclock.model.errors import AlreadyExists, BadInput, LimitExceeded
from waterclock.model.names import check_any_topic_name, check_name
from waterclock.model.views import RUN_STATES, JobRun
from waterclock.node.metadata import Metadata

RUN = "run/"
RUNS_MAX = 200
"""Runs that are remembered. More are more memory of the node, and of what leads its records."""
SILENT_MS = 60_000
"""A run that goes on tells so every ten seconds; without a word for so long it is silent."""
TEXT_CHARS_MAX = 1_000
"""Of what it is doing, and of why it failed."""
REPORT_CHARS_MAX = 8_192


class JobRuns:
    """The runs a node knows of."""

    def __init__(self, metadata: Metadata, clock: Clock) -> None:
        self._metadata = metadata
        self._clock = clock
        self._runs: dict[str, JobRun] = {}
        metadata.on_leading.append(lambda is_leading: self._load())
        self._load()

    def __repr__(self) -> str:
        return f"<JobRuns {len(self._runs)} of {RUNS_MAX}>"

    def _load(self) -> None:
        found = [msgspec.json.decode(v, type=JobRun) for _, v in self._metadata.items(RUN)]
        self._runs = {each.name: each for each in found}

    async def put(self, given: JobRun) -> JobRun:
        """Note what a run tells, durably; return it as it is known. One that has ended stays so:
        what was told before and comes late changes nothing."""
        _check(given)
        known, now_ms = self._runs.get(given.name), self._clock.now_ms()
        if known is not None and (known.job, known.topic) != (given.job, given.topic):
            raise AlreadyExists("run", given.name)
        if known is not None and known.state != "running":
            return known
        run = msgspec.structs.replace(
            given,
            started_ms=now_ms if known is None else known.started_ms,
            heard_ms=now_ms,
            ended_ms=0 if given.state == "running" else now_ms,
        )
        records: dict[str, bytes | None] = {RUN + run.name: msgspec.json.encode(run)}
        if known is None and len(self._runs) >= RUNS_MAX:
            records[RUN + self._spare(run).name] = None
        written = self._metadata.write(records)
        for key, value in records.items():
            if value is None:
                del self._runs[key.removeprefix(RUN)]
        self._runs[run.name] = run
        await self._metadata.wait_flushed(written)
        return run

    def _spare(self, new: JobRun) -> JobRun:
        """Return the run that makes room for another."""
        counts = Counter(_tenant(each) for each in (*self._runs.values(), new))
        most = max(counts[_tenant(each)] for each in self._runs.values())
        theirs = [each for each in self._runs.values() if counts[_tenant(each)] == most]
        limit_ms = self._clock.now_ms() - SILENT_MS
        over = [each for each in theirs if each.state != "running" or each.heard_ms < limit_ms]
        runs = Counter(each.topic for each in theirs)
        return min(over or theirs, key=lambda each: (-runs[each.topic], each.heard_ms, each.name))

    def topic_of(self, name: str) -> str | None:
        """Return the topic of the run of that name, empty if it is of several; None if there is
        none. By the records, as a node that only follows them has to know as well."""
        saved = self._metadata.get(RUN + name)
        return None if saved is None else msgspec.json.decode(saved, type=JobRun).topic

    def list(self) -> list[JobRun]:
        """Return all runs, the one that began last first."""
        limit_ms = self._clock.now_ms() - SILENT_MS
        runs = sorted(self._runs.values(), key=lambda each: (-each.started_ms, each.name))
        return [
            msgspec.structs.replace(each, state="silent")
            if each.state == "running" and each.heard_ms < limit_ms
            else each
            for each in runs
        ]


def _tenant(run: JobRun) -> str:
    return run.topic.partition(".")[0]


def _check(given: JobRun) -> None:
    check_name("run", given.name)
    check_name("job", given.job)
    if given.topic:
        check_any_topic_name(given.topic)
    if given.state not in RUN_STATES:
        raise BadInput(f"state must be one of {', '.join(RUN_STATES)}")
    for field in ("stage", "error"):
        if len(getattr(given, field)) > TEXT_CHARS_MAX:
            raise LimitExceeded(f"{field} characters", TEXT_CHARS_MAX)
    if len(given.report) > REPORT_CHARS_MAX:
        raise LimitExceeded("report characters", REPORT_CHARS_MAX)
    for field in ("tasks_done", "tasks", "rows_read", "rows", "rejected", "size_bytes"):
        if (getattr(given, field) or 0) < 0:
            raise BadInput(f"{field} must not be negative (got {getattr(given, field)})")
