"""`waterclock pipeline`: bulk jobs on Spark, which the command starts by itself.

The same commands run on a cluster: `--master spark://…` or `sc://…`, or by spark-submit (see
docs/spark.md). They end with 0; 1 if something failed; 2 if an option is nonsense; 3 if all is
done but some rows were refused.
"""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from waterclock.cli.commands.pipeline_run import Launch, run
from waterclock.cli.local_zone import here
from waterclock.cli.node_call import call
from waterclock.cli.options import Address, AsJson, Topic
from waterclock.cli.output.messages import view_json
from waterclock.cli.output.terminal import (
    console,
    one_line,
    print_json,
    say,
    size_text,
    table,
    time_text,
)
from waterclock.model.errors import BadInput
from waterclock.model.names import DEAD_LETTERS

if TYPE_CHECKING:
    from rich.console import Console

    from waterclock.cli.commands.pipeline_run import Job
    from waterclock.model.views import JobRun

app = typer.Typer(
    help="Bulk jobs on Spark: ingest, compact, replay, schedule, redrive, report.",
    no_args_is_help=True,
)

DryRun = Annotated[bool, typer.Option("--dry-run", help="Check and count; change nothing.")]
Master = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        envvar="WATERCLOCK_SPARK_MASTER",
        help="Where Spark runs: local[4], spark://host:7077, sc://host:15002.",
        show_default="this machine, all cores",
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark; may be given again."),
]
Since = Annotated[
    str | None, typer.Option(metavar="TIME", help="From then on: -1h, 2026-12-24T18:00Z.")
]
Until = Annotated[str | None, typer.Option(metavar="TIME", help="Before then.")]
Where = Annotated[
    str | None, typer.Option(metavar="SQL", help="Only these: a condition over the columns.")
]


@app.command("ingest")
def ingest(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A topic of raw JSON.")],
    schema: Annotated[
        str, typer.Option(metavar="FILE", help="What rows must be: DDL, Spark's JSON, JSON Schema.")
    ],
    to_topic: Annotated[str | None, typer.Option(metavar="TOPIC", help="For good rows.")] = None,
    to_parquet: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="For good rows, parsed, by day.")
    ] = None,
    dlq: Annotated[
        str | None,
        typer.Option(metavar="TOPIC", help="For bad rows.", show_default="SOURCE.dlq"),
    ] = None,
    files: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Read JSON lines of files instead.")
    ] = None,
    kafka: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Read SOURCE from Kafka instead.")
    ] = None,
    day_field: Annotated[
        str | None,
        typer.Option(metavar="FIELD", help="The time that makes the day.", show_default="publish"),
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Where it keeps how far it is.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes.")] = False,
    dry_run: DryRun = False,
    address: Address = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Check raw JSON: good rows to a topic or Parquet, bad ones to dead letters, each once."""

    def prepare() -> "Job":
        from waterclock.spark.jobs import ingest as job

        options = job.IngestOptions(
            servers=address or "", is_dry_run=dry_run, source=source, schema=schema,
            to_topic=to_topic, to_parquet=to_parquet, dlq=dlq, files=files, kafka=kafka,
            day_field=day_field, checkpoint=checkpoint, is_following=follow,
        )  # fmt: skip
        options.check()
        return lambda spark, reporter: job.run(spark, options, reporter)

    reads = [source] if files is None and kafka is None else None
    run_of = None if dry_run else ("ingest", to_topic or dlq or source + DEAD_LETTERS)
    run(Launch(address, master, conf, as_json), prepare, reads=reads, run_of=run_of)


@app.command("compact")
def compact(
    topic: Topic,
    to: Annotated[
        str, typer.Option(metavar="FOLDER", help="For snapshots.", show_default="the node's")
    ] = "",
    keep: Annotated[int, typer.Option(min=0, metavar="N", help="Older snapshots that stay.")] = 1,
    full: Annotated[bool, typer.Option("--full", help="Use no earlier snapshot.")] = False,
    dry_run: DryRun = False,
    address: Address = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Write the latest value of each key as a snapshot, for fast replays."""

    def prepare() -> "Job":
        from waterclock.spark.jobs.compact import compact as job

        options = job.CompactOptions(
            servers=address or "", is_dry_run=dry_run, topic=topic, to=to, keep=keep, is_full=full
        )
        return lambda spark, reporter: job.run(spark, options, reporter)

    run_of = None if dry_run else ("compact", topic)
    run(Launch(address, master, conf, as_json), prepare, reads=[topic], run_of=run_of)


@app.command("replay")
def replay(
    topic: Topic,
    since: Since = None,
    until: Until = None,
    from_offsets: Annotated[
        str | None, typer.Option(metavar="OFFSETS", help="From there on: 120, or 0:120,1:95.")
    ] = None,
    to_offsets: Annotated[str | None, typer.Option(metavar="OFFSETS", help="Up to there.")] = None,
    where: Where = None,
    to_topic: Annotated[str | None, typer.Option(metavar="TOPIC", help="A topic.")] = None,
    to_parquet: Annotated[str | None, typer.Option(metavar="FOLDER", help="Files.")] = None,
    to_stream: Annotated[str | None, typer.Option(metavar="STREAM", help="A stream.")] = None,
    to_group: Annotated[
        str | None, typer.Option(metavar="GROUP", help="A group, which is set back.")
    ] = None,
    speed: Annotated[
        float | None,
        typer.Option(metavar="N", help="Keep gaps, N times shorter.", show_default="no gaps"),
    ] = None,
    store: Annotated[bool, typer.Option("--store", help="To a stream: store, once.")] = False,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Another name replays anew.", show_default="the options"),
    ] = None,
    dry_run: DryRun = False,
    address: Address = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Replay a stretch of the past to a topic, files, a stream or a group, at a pace."""

    def prepare() -> "Job":
        from waterclock.spark.jobs import replay as job

        options = job.ReplayOptions(
            servers=address or "", is_dry_run=dry_run, topic=topic,
            since=None if since is None else here(since),
            until=None if until is None else here(until), from_offsets=from_offsets,
            to_offsets=to_offsets, where=where, to_topic=to_topic, to_parquet=to_parquet,
            to_stream=to_stream, to_group=to_group, speed=speed, is_stored=store, name=name,
        )  # fmt: skip
        options.check()
        return lambda spark, reporter: job.run(spark, options, reporter)

    run_of = None if dry_run else ("replay", topic)
    run(Launch(address, master, conf, as_json), prepare, reads=[topic], run_of=run_of)


@app.command("schedule")
def schedule(
    topic: Topic,
    source: Annotated[
        str | None, typer.Argument(metavar="FILES", help="Parquet, CSV or JSON lines.")
    ] = None,
    sql: Annotated[str | None, typer.Option(metavar="QUERY", help="Or a query.")] = None,
    format_name: Annotated[
        str | None, typer.Option("--format", metavar="NAME", help="parquet, csv or json.")
    ] = None,
    schema: Annotated[
        str | None, typer.Option(metavar="DDL", help="Columns of CSV or JSON files.")
    ] = None,
    value: Annotated[str | None, typer.Option(metavar="SQL", help="What is sent.")] = None,
    key: Annotated[str | None, typer.Option(metavar="SQL", help="The key.")] = None,
    due: Annotated[str | None, typer.Option(metavar="SQL", help="When it is due.")] = None,
    message_id: Annotated[
        str | None, typer.Option("--id", metavar="SQL", help="The message's id.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=SQL", help="A header; may be given again."),
    ] = None,
    send_late: Annotated[
        bool, typer.Option("--send-late", help="Send what is overdue, rather than refuse it.")
    ] = False,
    rejects: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="For the rows that were refused.")
    ] = None,
    write_id: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Another name sends again.", show_default="the rows"),
    ] = None,
    dry_run: DryRun = False,
    address: Address = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Schedule millions of messages from files or a query, checked before any is sent."""

    def prepare() -> "Job":
        from waterclock.spark.jobs import schedule as job
        from waterclock.spark.jobs.message_rows import Mapped

        mapped = Mapped(value=value, key=key, due=due, message_id=message_id,
                        headers=_expressions(header))  # fmt: skip
        options = job.ScheduleOptions(
            servers=address or "", is_dry_run=dry_run, topic=topic, source=source, sql=sql,
            format=format_name, schema=schema, mapped=mapped, sends_late=send_late,
            rejects=rejects, write_id=write_id,
        )  # fmt: skip
        options.check()
        return lambda spark, reporter: job.run(spark, options, reporter)

    run_of = None if dry_run else ("schedule", topic)
    run(Launch(address, master, conf, as_json), prepare, reads=None, run_of=run_of)


@app.command("redrive")
def redrive(
    topic: Topic,
    reason: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Only these, % for anything; may be given again."),
    ] = None,
    where: Where = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="COLUMN=SQL", help="Mend value, key, headers or due_time."),
    ] = None,
    due: Annotated[str | None, typer.Option(metavar="TIME", help="When they are due.")] = None,
    spread: Annotated[
        str | None, typer.Option(metavar="SPAN", help="One after the other over so long: 1h.")
    ] = None,
    to_topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Elsewhere.", show_default="TOPIC")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave them on the list.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="So many at most.")] = None,
    dry_run: DryRun = False,
    address: Address = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Send dead letters back: picked by reason, mended by SQL, with new due times."""

    def prepare() -> "Job":
        from waterclock.spark.jobs import redrive as job

        options = job.RedriveOptions(
            servers=address or "", is_dry_run=dry_run, topic=topic, reasons=tuple(reason or ()),
            where=where, changes=tuple(change or ()), due=None if due is None else here(due),
            spread=spread, to_topic=to_topic, keeps_dead_letters=keep, limit=limit,
        )  # fmt: skip
        options.check()
        return lambda spark, reporter: job.run(spark, options, reporter)

    run_of = None if dry_run else ("redrive", topic)
    run(
        Launch(address, master, conf, as_json), prepare, reads=[topic + DEAD_LETTERS], run_of=run_of
    )


@app.command("report")
def report(
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="TOPIC...", help="Which topics.", show_default="all"),
    ] = None,
    since: Since = None,
    until: Until = None,
    out: Annotated[
        str, typer.Option("--out", "-o", metavar="FILE", help="The page.")
    ] = "waterclock-report.html",
    dry_run: DryRun = False,
    address: Address = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Write a page with plots: rates, lateness, lag, hot keys, duplicates, retention."""

    def prepare() -> "Job":
        from waterclock.spark.jobs.report import report as job

        options = job.ReportOptions(
            servers=address or "", is_dry_run=dry_run, topics=tuple(topics or ()),
            since=since or "", until=until or "", page=out,
        )  # fmt: skip
        return lambda spark, reporter: job.run(spark, options, reporter)

    run_of = None if dry_run else ("report", topics[0] if topics and len(topics) == 1 else "")
    run(Launch(address, master, conf, as_json), prepare, reads=topics or [], run_of=run_of)


@app.command("runs")
def runs(address: Address = None, as_json: AsJson = False) -> None:
    """Show the last runs of these jobs: when, how far, what came of it."""
    found = call(address, lambda client: client.job_runs.list())
    if as_json:
        print_json({"runs": [_run_json(each) for each in found]})
    elif found:
        tell_runs(console(), found)
    else:
        say("No runs: `waterclock pipeline report` makes one.")


def _run_json(run: "JobRun") -> dict[str, object]:
    """Return a run for machines, its report as the object it is: whoever told of it may have sent
    any text."""
    try:
        report = json.loads(run.report or "null")
    except (ValueError, RecursionError):
        report = run.report
    return {**view_json(run), "report": report}


def tell_runs(out: "Console", found: "list[JobRun]") -> None:
    """Show a line for each run."""
    lines = table(out, "job", "topic", "started", "state", ">rows", ">refused", ">bytes", "~what")
    for each in found:
        state = "not heard from" if each.state == "silent" else each.state
        what = f"since {time_text(each.heard_ms)}" if each.state == "silent" else each.error
        if each.state == "running":
            tasks = f" {each.tasks_done}/{each.tasks} tasks" if each.tasks else ""
            what = f"{each.stage}{tasks}"
        lines.add_row(
            each.job, each.topic or "all", time_text(each.started_ms), state,
            "" if each.rows is None else f"{each.rows:,}",
            "" if each.rejected is None else f"{each.rejected:,}",
            "" if each.size_bytes is None else size_text(each.size_bytes), one_line(what),
        )  # fmt: skip
    out.print(lines)


def _expressions(given: list[str] | None) -> dict[str, str]:
    found = {}
    for text in given or ():
        name, equals, expression = text.partition("=")
        if not name or not equals:
            raise BadInput(f"--header {text!r} is not of the form name=expression")
        found[name] = expression
    return found
