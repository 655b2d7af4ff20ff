"""A run tells the node of itself, and a node that does not listen is no reason to fail."""

import threading

import pytest

from waterclock.model.errors import Unreachable
from waterclock.model.views import JobRun
from waterclock.spark.jobs import run_telling
from waterclock.spark.jobs.job import Summary
from waterclock.spark.jobs.progress import SilentReporter
from waterclock.spark.jobs.run_telling import RunTelling, counts_of, telling


class Listener:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.heard_of: list[JobRun] = []
        self.heard = threading.Condition()

    def __call__(self, run: JobRun) -> None:
        with self.heard:
            self.heard_of.append(run)
            self.heard.notify_all()

    def wait_for(self, stage: str) -> JobRun:
        with self.heard:
            self.heard.wait_for(lambda: any(each.stage == stage for each in self.heard_of))
        return next(each for each in self.heard_of if each.stage == stage)


def test_a_run_tells_that_it_began_how_far_it_is_and_what_came_of_it(monkeypatch):
    monkeypatch.setattr(run_telling, "TELL_EVERY_S", 0.001)
    listener = Listener()
    run = RunTelling("compact", "orders", listener)
    run.begin()
    reporter = run.reporter(SilentReporter(), lambda: (3, 8))
    with reporter.stage("reading", rows=1_000):
        seen = listener.wait_for("reading (1,000 rows)")
    run.end(Summary(job="compact", rows=7, facts={"offsets_read": 9, "bytes": 4_096}))

    last = listener.heard_of[-1]
    assert (seen.job, seen.topic, seen.state) == ("compact", "orders", "running")
    assert (seen.tasks_done, seen.tasks) == (3, 8)
    assert {each.name for each in listener.heard_of} == {last.name}
    assert (last.state, last.rows_read, last.rows, last.size_bytes) == ("done", 9, 7, 4_096)
    assert '"offsets_read": 9' in last.report


def test_a_failure_is_told_with_its_reason(monkeypatch):
    listener = Listener()
    monkeypatch.setattr(run_telling, "node_teller", lambda address: listener)
    with (
        pytest.raises(ZeroDivisionError),
        telling(("report", ""), None, lambda error: f"because {error}"),
    ):
        raise ZeroDivisionError("of that")

    assert listener.heard_of[-1].state == "failed"
    assert listener.heard_of[-1].error == "because of that"


def test_a_node_that_does_not_answer_is_named_once_and_the_job_goes_on(monkeypatch, caplog):
    monkeypatch.setattr(run_telling, "TELL_EVERY_S", 0.001)
    tried = threading.Semaphore(0)

    def tell(run: JobRun) -> None:
        tried.release()
        raise Unreachable("no node answers at localhost:9000")

    run = RunTelling("report", "", tell)
    run.begin()
    for _ in range(3):
        tried.acquire()
    run.end(Summary(job="report", rows=1))

    assert [record.getMessage() for record in caplog.records] == [
        f"the node was not told of run {run._run.name}, which goes on all the same: "
        "no node answers at localhost:9000"
    ]


def test_rows_read_are_told_where_the_job_counts_them_and_a_long_report_is_shortened():
    schedule = counts_of(Summary(job="schedule", rows=3, rejected={"late": 2}))
    replay = counts_of(Summary(job="replay", rows=3))
    long = counts_of(Summary(job="report", rows=3, facts={"topics": "x" * 10_000}))

    assert (schedule["rows_read"], schedule["rejected"]) == (5, 2)
    assert replay["rows_read"] is None
    assert '"shortened": true' in str(long["report"])
    assert '"rows": 3' in str(long["report"])
