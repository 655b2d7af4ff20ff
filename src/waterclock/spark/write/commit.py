"""What a driver does when all tasks of a write are done: tell the write registry, and tell people.

Spark calls this in a Python process beside the driver, which prints nothing; so what was written
can be had as a line of JSON in a file, and rows left out are a warning in Spark's log.
"""

import json
import logging
from collections.abc import Sequence
from typing import Any

from pyspark.sql.datasource import WriterCommitMessage

from waterclock.spark.write.options import WriteOptions
from waterclock.spark.write.sender import BatchSender
from waterclock.spark.write.task import PROBLEMS_SHOWN, TaskSummary

log = logging.getLogger(__name__)


class TaskWritten(WriterCommitMessage):
    """What a task tells the driver."""

    def __init__(self, summary: TaskSummary) -> None:
        self.summary = summary


def summaries_of(messages: Sequence[WriterCommitMessage | None]) -> list[TaskSummary]:
    """Return the summaries of the tasks; a task that failed has none."""
    return [message.summary for message in messages if isinstance(message, TaskWritten)]


def commit(options: WriteOptions, *, writer: str, batch: int, is_named: bool) -> None:
    """Note that a batch is whole. A write without a name can never come again: it is forgotten."""
    with BatchSender(options.servers, options.topic, credential=options.credential) as sender:
        if is_named:
            sender.commit(writer, batch)
        else:
            sender.abandon(writer)


def tell(
    options: WriteOptions, summaries: Sequence[TaskSummary], *, writer: str, batch: int
) -> None:
    """Say what was written, and what was left out."""
    total = summed(options, summaries, writer=writer, batch=batch)
    if total["skipped"]:
        log.warning(
            "rows_skipped topic=%s writer=%s batch=%d skipped=%d of=%d first=%s",
            *(options.topic, writer, batch, total["skipped"], total["rows"]),
            "; ".join(total["problems"]),
        )
    if options.summary_file is not None:
        with open(options.summary_file, "a") as file:
            file.write(json.dumps(total) + "\n")


def summed(
    options: WriteOptions, summaries: Sequence[TaskSummary], *, writer: str, batch: int
) -> dict[str, Any]:
    """Return the sum over all tasks."""
    problems = [problem for summary in summaries for problem in summary.problems]
    return {
        "topic": options.topic,
        "writer": writer,
        "batch": batch,
        "tasks": len(summaries),
        "rows": sum(summary.rows for summary in summaries),
        "stored": sum(summary.stored for summary in summaries),
        "found": sum(summary.found for summary in summaries),
        "repeated": sum(summary.repeated for summary in summaries),
        "skipped": sum(summary.skipped for summary in summaries),
        "bytes": sum(summary.size_bytes for summary in summaries),
        "problems": problems[:PROBLEMS_SHOWN],
    }
