"""A run of a job tells the node of itself: that it has begun, how far it is, and how it ended.

A thread tells every few seconds, each time over a connection of its own, so that the job waits for
nothing and a node that was restarted hears of the run again. It is best effort: a node that does
not answer, or refuses, is named once in the log, and the job goes on as if it had been told. Only
the end is waited for, and not for long.
"""

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec import structs

from waterclock.client.settings import ClientSettings
from waterclock.client.unary.client import UnaryClient
from waterclock.client.unary.connection import finished
from waterclock.model.errors import WaterclockError
from waterclock.model.views import JobRun

if TYPE_CHECKING:
    from waterclock.spark.jobs.job import Reporter, Summary

log = logging.getLogger(__name__)

TELL_EVERY_S = 10.0
"""How often a run that goes on says so. The node takes it for silent after six times as long."""
ANSWER_MS = 5_000
"""How long the node may take to be found, and again to answer."""
END_S = 2 * ANSWER_MS / 1_000 + 1
"""How long a job that has ended waits until the node knows."""
CHARS_MAX = 1_000
REPORT_CHARS_MAX = 8_192
"""What the node takes."""
COUNTS_ALL_ROWS = ("ingest", "schedule")
"""Jobs each of whose rows is either written or refused."""

Tell = Callable[[JobRun], object]
Tasks = Callable[[], tuple[int, int]]


class RunTelling:
    """Tells of one run, from `begin` to `end`; without `tell`, nothing."""

    def __init__(self, job: str, topic: str, tell: Tell | None) -> None:
        self._run = JobRun(name=f"{job}-{os.urandom(8).hex()}", job=job, topic=topic)
        self._began = time.monotonic()
        self._tell = tell
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        self._was_refused = False
        self._tasks: Tasks = lambda: (0, 0)

    def __repr__(self) -> str:
        return f"<RunTelling {self._run.name} {self._run.state}>"

    def begin(self) -> None:
        """Start to tell."""
        if self._tell is not None:
            self._thread = threading.Thread(
                target=self._go_on, args=(self._tell,), name="run-telling", daemon=True
            )
            self._thread.start()

    def reporter(self, shown: "Reporter", tasks: Tasks) -> "Reporter":
        """Return a reporter whose stages the node hears of, too; `tasks` returns how many of
        Spark's tasks are done, and how many there are."""
        self._tasks = tasks
        return TellingReporter(shown, self)

    def stage(self, what: str) -> None:
        """Note what the run is doing, to be told with the next report."""
        self._run = structs.replace(self._run, stage=what[:CHARS_MAX])

    def end(self, summary: "Summary | None", error: str = "") -> None:
        """Tell how it ended, done or failed; return once the node knows, or does not answer."""
        run = structs.replace(self._run, stage="", tasks=0, tasks_done=0)
        if summary is None:
            self._run = structs.replace(run, state="failed", error=error[:CHARS_MAX])
        else:
            summary = replace(summary, seconds=time.monotonic() - self._began)
            self._run = structs.replace(run, state="done", **counts_of(summary))
        self._is_over.set()
        if self._thread is not None:
            self._thread.join(END_S)

    def _go_on(self, tell: Tell) -> None:
        while True:
            is_last = self._is_over.is_set()
            self._tell_once(tell)
            if is_last:
                return
            self._is_over.wait(TELL_EVERY_S)

    def _tell_once(self, tell: Tell) -> None:
        run = self._run
        if run.state == "running":
            done, tasks = self._tasks()
            run = structs.replace(run, tasks_done=done, tasks=tasks)
        try:
            tell(run)
        except (WaterclockError, OSError) as error:
            if not self._was_refused:
                self._was_refused = True
                log.warning(
                    "the node was not told of run %s, which goes on all the same: %s",
                    run.name, error,
                )  # fmt: skip


class TellingReporter:
    """A reporter whose stages the node hears of, too."""

    def __init__(self, shown: "Reporter", telling: RunTelling) -> None:
        self._shown = shown
        self._telling = telling

    def stage(self, what: str, *, rows: int | None = None) -> AbstractContextManager[None]:
        """Show what is being done, and have it told."""
        self._telling.stage(what if rows is None else f"{what} ({rows:,} rows)")
        return self._shown.stage(what, rows=rows)

    def note(self, text: str) -> None:
        """Tell a person something that is no result."""
        self._shown.note(text)


def counts_of(summary: "Summary") -> dict[str, int | str | None]:
    """Return the fields of a run that come from what the job did."""
    plain, rejected = summary.plain(), sum(summary.rejected.values())
    read = summary.facts.get("offsets_read")
    if read is None and summary.job in COUNTS_ALL_ROWS:
        read = summary.rows + rejected
    size = summary.facts.get("bytes")
    report = json.dumps(plain, default=str)
    if len(report) > REPORT_CHARS_MAX:
        # Samples and plots make it long: the plain figures are what a list is for.
        flat = {k: v for k, v in plain.items() if isinstance(v, int | float | bool)}
        report = json.dumps({**flat, "shortened": True})
    return {
        "rows": summary.rows,
        "rejected": rejected,
        "rows_read": read if isinstance(read, int) else None,
        "size_bytes": size if isinstance(size, int) else None,
        "report": report if len(report) <= REPORT_CHARS_MAX else "",
    }


def node_teller(address: str | None) -> Tell:
    """Return what tells a node of a run, or raises within a few seconds."""
    settings = ClientSettings(connect_timeout_ms=ANSWER_MS, call_timeout_ms=ANSWER_MS)

    def tell(run: JobRun) -> None:
        with UnaryClient(address, settings) as client:
            finished(client.job_runs.put(run))

    return tell


@contextmanager
def telling(
    of: tuple[str, str] | None, address: str | None, line_of: Callable[[BaseException], str]
) -> Iterator[RunTelling]:
    """Have the node told of a run, of this job and topic, while the block runs; None: nothing.

    If it fails, `line_of` says why in a line; if not, the block is to `end` it."""
    job, topic = of or ("", "")
    run = RunTelling(job, topic, None if of is None else node_teller(address))
    run.begin()
    try:
        yield run
    except BaseException as error:
        run.end(None, line_of(error))
        raise
