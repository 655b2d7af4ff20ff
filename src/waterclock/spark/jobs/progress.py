"""How a job gets on, as Spark itself tells: a bar of the tasks that are done, on stderr.

A thread asks the status tracker a few times a second; the work waits for nothing. In a pipe, or
attached to a Connect server (which tells no tasks), there is no bar.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from pyspark.core.context import SparkContext
    from pyspark.sql import SparkSession

ASK_EVERY_S = 0.25


class SilentReporter:
    """Shows nothing: for pipes and tests."""

    @contextmanager
    def stage(self, what: str, *, rows: int | None = None) -> Iterator[None]:
        """Run the block."""
        yield

    def note(self, text: str) -> None:
        """Say nothing."""


class BarReporter:
    """Shows a bar on stderr for each stage of a job."""

    def __init__(self, console: Console, spark: "SparkSession") -> None:
        self._console = console
        self._context = _context_of(spark)

    @contextmanager
    def stage(self, what: str, *, rows: int | None = None) -> Iterator[None]:
        """Show the tasks of all Spark jobs that the block runs."""
        label = what if rows is None else f"{what} ({rows:,} rows)"
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[done]}"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self._console, transient=True) as bars:
            task = bars.add_task(label, total=None, done="")
            ended = threading.Event()
            watch = threading.Thread(
                target=self._watch, args=(bars, task, ended), name="progress", daemon=True
            )
            watch.start()
            try:
                yield
            finally:
                ended.set()
                watch.join()
        self._console.print(f"[dim]{label}: done[/dim]", highlight=False)

    def note(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, style="dim", markup=False, highlight=False)

    def _watch(self, bars: Progress, task: int, ended: threading.Event) -> None:
        from rich.progress import TaskID

        while self._context is not None and not ended.wait(ASK_EVERY_S):
            done, total = tasks_of(self._context)
            if total:
                bars.update(TaskID(task), completed=done, total=total, done=f"{done}/{total} tasks")


def tasks_of(context: "SparkContext") -> tuple[int, int]:
    """Return how many tasks of the stages at work are done, and how many there are."""
    tracker = context.statusTracker()
    stages = [tracker.getStageInfo(each) for each in tracker.getActiveStageIds()]
    found = [stage for stage in stages if stage is not None]
    return sum(s.numCompletedTasks for s in found), sum(s.numTasks for s in found)


def tasks_in(spark: "SparkSession") -> Callable[[], tuple[int, int]]:
    """Return what counts the tasks of a session, also while it ends: then there are none."""
    context = _context_of(spark)

    def count() -> tuple[int, int]:
        try:
            return (0, 0) if context is None else tasks_of(context)
        except (Py4JError, OSError):
            return 0, 0

    return count


def reporter_of(spark: "SparkSession", *, is_wanted: bool) -> "BarReporter | SilentReporter":
    """Return a reporter that shows a bar if stderr is a terminal."""
    console = Console(stderr=True)
    return BarReporter(console, spark) if is_wanted and console.is_terminal else SilentReporter()


def _context_of(spark: "SparkSession") -> "SparkContext | None":
    """Return the context, which a Connect session does not have."""
    from pyspark.errors import PySparkException

    try:
        return spark.sparkContext
    except PySparkException:
        return None
