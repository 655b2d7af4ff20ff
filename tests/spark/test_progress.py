"""The bar of a job: Spark's own count of tasks, on a terminal; nothing at all in a pipe."""

import threading
from io import StringIO
from types import SimpleNamespace
from typing import Any

from pyspark.errors import PySparkRuntimeError
from rich.console import Console

from waterclock.spark.jobs.progress import BarReporter, SilentReporter, reporter_of, tasks_of


class Tracker:
    """Tells of two stages at work and one that is gone; notes that it was asked."""

    def __init__(self):
        self.asked = threading.Event()

    def getActiveStageIds(self):
        return [1, 2, 3]

    def getStageInfo(self, stage):
        self.asked.set()
        return SimpleNamespace(numCompletedTasks=stage, numTasks=10) if stage < 3 else None


def session(tracker):
    return SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))


def test_tasks_of_all_stages_at_work_are_added_up():
    assert tasks_of(session(Tracker()).sparkContext) == (3, 20)


def test_a_terminal_sees_what_is_done_and_how_far_it_is():
    out, tracker = StringIO(), Tracker()
    reporter = BarReporter(Console(file=out, force_terminal=True, width=100), session(tracker))

    with reporter.stage("reading", rows=1_000):
        tracker.asked.wait()
    reporter.note("[all] there is")

    assert "reading (1,000 rows): done" in out.getvalue()
    assert "[all] there is" in out.getvalue()


def test_a_connect_session_tells_no_tasks_and_needs_none():
    class Attached:
        @property
        def sparkContext(self):
            raise PySparkRuntimeError("not there")

    out = StringIO()
    attached: Any = Attached()
    reporter = BarReporter(Console(file=out, force_terminal=True), attached)

    with reporter.stage("reading"):
        pass

    assert "reading: done" in out.getvalue()


def test_a_pipe_is_told_nothing():
    assert isinstance(reporter_of(session(Tracker()), is_wanted=True), SilentReporter)
