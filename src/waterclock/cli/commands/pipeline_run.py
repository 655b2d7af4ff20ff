"""Running a job of the pipeline: Spark started quietly, a summary shown, one line if it fails.

What Spark's JVM says goes to a file, which is removed if all went well and named if not. The node
is asked first: a user who forgot to start one need not wait for a JVM.
"""

import logging
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

import typer
from rich.console import Console

from waterclock.cli.connection import call
from waterclock.cli.node_call import EXIT_INTERRUPTED
from waterclock.cli.output.terminal import busy, console, counted, one_line, print_json, table
from waterclock.model.errors import BadConfig, BadInput, UnknownTopic, WaterclockError
from waterclock.model.names import DEAD_LETTERS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from waterclock.client.client import Client
    from waterclock.spark.jobs.job import Reporter, Summary

    Job = Callable[[SparkSession, Reporter], Summary]

EXIT_FAILED = 1
EXIT_USAGE = 2
SHOWN_MAX = 20
NICENESS = 10
SHORT_OFFSETS_MAX = 2_000_000
"""A job that reads no more is over before the JVM's better compiler has paid for itself."""
FAILURE_CHARS_MAX = 500

_NO_SPARK = "pip install 'waterclock[spark]'"
_OUR_ERROR = re.compile(r"^\s*waterclock\.[\w.]*?(\w+): (.+)$", re.MULTILINE)
_PYTHON_ERROR = re.compile(r"^\s*(\w+(?:Error|Exception|Exit)): (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Launch:
    """Where a job runs, and how its summary is printed."""

    address: str | None
    master: str | None
    conf: list[str] | None
    as_json: bool

    def settings(self) -> dict[str, str]:
        """Return Spark's settings as they were typed."""
        found = {}
        for text in self.conf or ():
            name, equals, value = text.partition("=")
            if not equals or not name.startswith("spark."):
                raise BadInput(f"--conf {text!r} is not of the form spark.name=value")
            found[name] = value
        return found


def run(
    launch: Launch,
    prepare: "Callable[[], Job]",
    *,
    reads: Sequence[str] | None,
    run_of: tuple[str, str] | None,
) -> None:
    """Run a job and end the command with its exit code; `prepare` imports what needs Spark.

    `reads` are the topics it reads, all if empty; None if it reads something else. One that is not
    there is an error before Spark is started. `run_of` is what the node is told of the run: the
    job, and the topic it is of, empty if it is of several; None: nothing, as of a dry run.
    """
    began = time.monotonic()
    try:
        settings = launch.settings()
        offsets = call(launch.address, lambda client: _offsets(client, reads))
        is_short = reads is not None and offsets <= SHORT_OFFSETS_MAX
        summary = _ran(launch, settings, prepare, is_short=is_short, run_of=run_of)
    except WaterclockError as error:
        print(f"error: {one_line(str(error))}", file=sys.stderr)
        raise typer.Exit(EXIT_USAGE if isinstance(error, BadInput) else EXIT_FAILED) from error
    summary = replace(summary, seconds=time.monotonic() - began)
    if launch.as_json:
        print_json(summary.plain())
    else:
        tell(console(), summary)
    raise typer.Exit(summary.exit_code)


async def _offsets(client: "Client", topics: Sequence[str] | None) -> int:
    """Return how much there is to read; raises UnknownTopic."""
    found = {topic.name: topic for topic in await client.topics.list()}
    for name in topics or ():
        _check_there(name, found)
    return sum(
        partition.end_offset - partition.start_offset
        for topic in found.values()
        if not topics or topic.name in topics
        for partition in topic.partitions
    )


def _check_there(name: str, found: Collection[str]) -> None:
    # A topic without dead letters has no topic of them yet.
    of = name.removesuffix(DEAD_LETTERS)
    if name not in found and of not in found:
        raise UnknownTopic(of)


def _ran(
    launch: Launch,
    settings: Mapping[str, str],
    prepare: "Callable[[], Job]",
    *,
    is_short: bool,
    run_of: tuple[str, str] | None,
) -> "Summary":
    try:
        from pyspark.errors import PySparkException

        from waterclock.spark.jobs import run_telling
        from waterclock.spark.jobs.progress import reporter_of, tasks_in
        from waterclock.spark.session import session
    except ImportError as error:
        raise BadConfig("spark", f"Spark is not installed: {_NO_SPARK}") from error
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    job = prepare()
    if (launch.master or "local").startswith("local"):
        # The JVM and its workers inherit it: a node on this machine keeps answering meanwhile.
        os.nice(NICENESS)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    with _ended_by_sigterm(), _log_file() as log:
        try:
            with run_telling.telling(run_of, launch.address, _why) as telling:
                with busy("Starting Spark"):
                    spark = session(
                        master=launch.master or "", app="waterclock pipeline", settings=settings,
                        log=log, is_short=is_short,
                    )  # fmt: skip
                try:
                    shown = reporter_of(spark, is_wanted=not launch.as_json)
                    summary = job(spark, telling.reporter(shown, tasks_in(spark)))
                    telling.end(summary)
                    return summary
                finally:
                    spark.stop()
        except (PySparkException, Py4JError) as error:
            print(f"error: {one_line(failure_line(error))}", file=sys.stderr)
            print(f"What Spark said is in {log.name}", file=sys.stderr)
            raise typer.Exit(EXIT_FAILED) from error
        except KeyboardInterrupt:
            raise typer.Exit(EXIT_INTERRUPTED) from None


def _why(error: BaseException) -> str:
    """Return the line that the node is told of why a run ended."""
    is_interrupted = isinstance(error, KeyboardInterrupt)
    return "interrupted" if is_interrupted else one_line(failure_line(error))


def failure_line(error: BaseException) -> str:
    """Return what a person should read of an error that came out of Spark.

    An error of a task comes inside Java's stack traces inside Python's. What a person can act on is
    the line of one of our own errors; without one, what Spark says first.
    """
    text = str(error)
    if ours := _OUR_ERROR.findall(text):
        line = ours[-1][1]
    elif pythons := _PYTHON_ERROR.findall(text):
        line = ": ".join(pythons[-1])
    else:
        line = text.strip().partition("\n")[0] or type(error).__name__
    return str(line).strip()[:FAILURE_CHARS_MAX]


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end a job as Ctrl-C does."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _log_file() -> Iterator[IO[bytes]]:
    """Lend a file for what the JVM says; it stays if there was trouble."""
    with tempfile.NamedTemporaryFile(
        prefix="waterclock-spark-", suffix=".log", delete=False
    ) as log:
        yield log
    Path(log.name).unlink(missing_ok=True)


def tell(out: Console, summary: "Summary") -> None:
    """Show a summary to people: its figures, then what was refused and why."""
    done = "would have been done" if summary.is_dry_run else "done"
    out.print(f"{summary.job}: {counted(summary.rows, 'row')} {done} in {summary.seconds:.1f} s")
    for name, fact in summary.facts.items():
        if shown := _shown(fact):
            out.print(f"  {name.replace('_', ' '):<16} {shown}")
    if summary.rejected:
        refused = table(out, ">refused", "~why")
        for reason, count in sorted(summary.rejected.items(), key=lambda each: -each[1]):
            refused.add_row(f"{count:,}", one_line(reason))
        out.print(refused)


def _shown(fact: object) -> str:
    """Return a fact in a line: a plain one, or a few of them by name; nothing if there is more."""
    if isinstance(fact, Mapping):
        plain = {one_line(str(name)): _shown(each) for name, each in fact.items()}
        is_short = len(plain) <= SHOWN_MAX and all(plain.values())
        is_flat = not any(isinstance(each, Mapping) for each in fact.values())
        if not (is_short and is_flat):
            return ""
        return ", ".join(f"{name}: {each}" for name, each in plain.items())
    if isinstance(fact, int) and not isinstance(fact, bool):
        return f"{fact:,}"
    return one_line(str(fact)) if isinstance(fact, str | float | bool) else ""
