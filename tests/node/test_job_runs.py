"""Runs of jobs: what they tell stays, within bounds, and silence is told from going on."""

import pytest

from tests.kit.clock import ManualClock
from tests.server.served import running_server
from waterclock.model.errors import AlreadyExists, BadInput, LimitExceeded
from waterclock.model.views import JobRun
from waterclock.node import job_runs as module
from waterclock.node.job_runs import SILENT_MS


async def test_a_run_is_told_from_its_beginning_to_its_end_and_is_there_after_a_restart(tmp_path):
    clock = ManualClock(now_ms=1_000)
    run = JobRun(name="compact-1", job="compact", topic="orders", stage="reading")
    async with running_server(tmp_path, clock=clock) as it:
        runs = it.node.job_runs
        await runs.put(run)
        clock.advance(500)
        # What it says of times does not count: its clock may be wrong.
        await runs.put(JobRun(name="compact-1", job="compact", topic="orders", started_ms=7))
        clock.advance(500)
        done = await runs.put(
            JobRun(name="compact-1", job="compact", topic="orders", state="done", rows=3)
        )
        late = await runs.put(run)
    async with running_server(tmp_path, clock=clock) as it:
        found = it.node.job_runs.list()

    assert (done.started_ms, done.heard_ms, done.ended_ms, done.rows) == (1_000, 2_000, 2_000, 3)
    assert late == done
    assert found == [done]


async def test_a_run_whose_driver_died_does_not_go_on_for_ever(tmp_path):
    clock = ManualClock(now_ms=1_000)
    async with running_server(tmp_path, clock=clock) as it:
        runs = it.node.job_runs
        await runs.put(JobRun(name="a", job="ingest"))
        clock.advance(SILENT_MS)
        at_first = runs.list()
        clock.advance(1)
        silent = runs.list()
        await runs.put(JobRun(name="a", job="ingest"))
        again = runs.list()

    assert [each.state for each in (*at_first, *silent, *again)] == ["running", "silent", "running"]
    assert silent[0].heard_ms == 1_000


async def test_the_busiest_topic_makes_room_first(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "RUNS_MAX", 4)
    clock = ManualClock(now_ms=1_000)
    async with running_server(tmp_path, clock=clock) as it:
        runs = it.node.job_runs
        for name, topic in (("night", "b"), ("1", "a"), ("2", "a"), ("3", "a"), ("4", "a")):
            await runs.put(JobRun(name=name, job="compact", topic=topic, state="done"))
            clock.advance(1)
        found = [each.name for each in runs.list()]
    async with running_server(tmp_path, clock=clock) as it:
        kept = [each.name for each in it.node.job_runs.list()]

    assert found == kept == ["4", "3", "2", "night"]


async def test_a_tenant_takes_the_place_of_no_other_however_many_topics_it_has(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(module, "RUNS_MAX", 4)
    clock = ManualClock(now_ms=1_000)
    async with running_server(tmp_path, clock=clock) as it:
        runs = it.node.job_runs
        for name, topic in (
            ("night", "b.x"), ("day", "b.x"),
            *((str(number), f"a.{number}") for number in range(6)),
        ):  # fmt: skip
            await runs.put(JobRun(name=name, job="compact", topic=topic, state="done"))
            clock.advance(1)
        found = [each.name for each in runs.list()]

    assert found == ["5", "4", "day", "night"]


async def test_a_run_that_goes_on_makes_room_last(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "RUNS_MAX", 2)
    clock = ManualClock(now_ms=1_000)
    async with running_server(tmp_path, clock=clock) as it:
        runs = it.node.job_runs
        await runs.put(JobRun(name="long", job="ingest", topic="a"))
        for name in ("1", "2", "3"):
            clock.advance(1)
            await runs.put(JobRun(name=name, job="compact", topic="a", state="done"))
        at_first = [each.name for each in runs.list()]
        clock.advance(SILENT_MS)
        await runs.put(JobRun(name="4", job="compact", topic="a", state="done"))
        later = [each.name for each in runs.list()]

    assert (at_first, later) == (["3", "long"], ["4", "3"])


async def test_what_cannot_be_is_refused_by_name(tmp_path):
    async with running_server(tmp_path) as it:
        runs = it.node.job_runs
        await runs.put(JobRun(name="a", job="ingest", topic="orders"))
        for given, error, words in (
            (JobRun(name="a/b", job="ingest"), BadInput, "run"),
            (JobRun(name="a", job=""), BadInput, "job"),
            (JobRun(name="a", job="ingest", topic="x y"), BadInput, "topic"),
            (JobRun(name="a", job="ingest", state="silent"), BadInput, "running, done, failed"),
            (JobRun(name="a", job="ingest", rows=-1), BadInput, "rows must not be negative"),
            (JobRun(name="a", job="ingest", error="x" * 1_001), LimitExceeded, "error characters"),
            (JobRun(name="a", job="ingest", report="x" * 8_193), LimitExceeded, "report"),
            (JobRun(name="a", job="ingest", topic="other"), AlreadyExists, "run"),
        ):
            with pytest.raises(error, match=words):
                await runs.put(given)
