"""`waterclock pipeline`: what jobs are told, how they end, and how little is said meanwhile."""

import asyncio
import json
import os
import subprocess
import sys
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkException
from rich.console import Console

from waterclock.cli.commands import pipeline_run
from waterclock.cli.commands.pipeline import tell_runs
from waterclock.cli.commands.pipeline_run import Launch, tell
from waterclock.model.errors import BadInput, Unreachable
from waterclock.model.views import JobRun
from waterclock.spark import session as sessions
from waterclock.spark.jobs import redrive, replay, run_telling, schedule
from waterclock.spark.jobs.job import Summary
from waterclock.spark.jobs.report import report

JOB_S_MAX = 300.0


@pytest.fixture
def no_spark(monkeypatch):
    """Let jobs run without Spark and without a node; return the sessions asked for."""
    asked, offsets = [], 5

    def session(**shown):
        asked.append(shown)
        return SimpleNamespace(stop=lambda: None, sparkContext=None)

    monkeypatch.setattr(sessions, "session", session)
    monkeypatch.setattr(pipeline_run, "call", lambda address, work: offsets)
    monkeypatch.setattr(run_telling, "node_teller", lambda address: lambda run: None)
    return asked


@pytest.fixture
def ran(monkeypatch, no_spark):
    """Return a function that has a job answer with something, and the options it was run with."""

    def answer(job, with_what):
        options = []

        def run(spark, given, reporter):
            options.append(given)
            if isinstance(with_what, Exception):
                raise with_what
            return with_what

        monkeypatch.setattr(job, "run", run)
        return options

    return answer


def test_a_job_is_told_what_was_typed(waterclock, ran, no_spark):
    shown = ran(schedule, Summary(job="schedule", rows=3))
    result = waterclock(
        "pipeline", "schedule", "later", "rows.csv", "--due", "at", "-H", "kind=upper(kind)",
        "--id", "uuid", "--send-late", "--dry-run", "--json", "--address", "h:1",
        "--master", "local[4]", "--conf", "spark.x=a=b",
    )  # fmt: skip

    assert result.exit_code == 0, result.output
    (options,) = shown
    assert (options.topic, options.source, options.servers) == ("later", "rows.csv", "h:1")
    assert (options.is_dry_run, options.sends_late) == (True, True)
    assert options.mapped.headers == {"kind": "upper(kind)"}
    assert (options.mapped.due, options.mapped.message_id) == ("at", "uuid")
    assert no_spark[0]["master"] == "local[4]"
    assert no_spark[0]["settings"] == {"spark.x": "a=b"}
    assert json.loads(result.stdout)["rows"] == 3


def test_a_job_with_little_to_read_has_a_jvm_for_short_work(waterclock, ran, no_spark, monkeypatch):
    for job in (report, schedule):
        ran(job, Summary(job="job", rows=1))
    waterclock("pipeline", "report")
    waterclock("pipeline", "schedule", "later", "rows.csv")
    monkeypatch.setattr(pipeline_run, "SHORT_OFFSETS_MAX", 4)
    waterclock("pipeline", "report")

    assert [shown["is_short"] for shown in no_spark] == [True, False, False]


@pytest.mark.parametrize(
    "line",
    [
        ("report", "nope"),
        ("report", "orders", "nope"),
        ("replay", "nope", "--to-topic", "again"),
        ("compact", "nope"),
        ("redrive", "nope"),
        ("ingest", "nope", "--schema", "s.ddl", "--to-topic", "good"),
    ],
)
def test_a_topic_that_is_not_there_is_told_before_spark_starts(
    waterclock, no_spark, monkeypatch, line
):
    orders = SimpleNamespace(name="orders", partitions=[])

    async def listed():
        return [orders]

    client = SimpleNamespace(topics=SimpleNamespace(list=listed))
    monkeypatch.setattr(pipeline_run, "call", lambda address, work: asyncio.run(work(client)))
    result = waterclock("pipeline", *line)

    assert (result.exit_code, result.stderr) == (1, "error: there is no topic 'nope'\n")
    assert no_spark == []


def test_the_exit_code_says_how_it_ended(waterclock, ran):
    line = ("pipeline", "replay", "orders", "--to-topic", "again")
    for answer, code in [
        (Summary(job="replay", rows=1), 0),
        (Summary(job="replay", rows=1, rejected={"no due": 0}), 0),
        (Summary(job="replay", rows=1, rejected={"no due": 2}), 3),
        (BadInput("wrong"), 2),
        (Unreachable("gone"), 1),
        (PySparkException("it broke\nat length"), 1),
    ]:
        ran(replay, answer)
        assert waterclock(*line).exit_code == code, answer


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["replay", "orders"], "one target"),
        (["schedule", "orders"], "either files or a query"),
        (["schedule", "orders", "x.csv", "-H", "kind"], "name=expression"),
        (["redrive", "orders", "--set", "offset=1"], "--set"),
        (["ingest", "orders", "--schema", "x"], "--to-topic"),
        (["report", "--conf", "x"], "--conf 'x'"),
    ],
)
def test_nonsense_is_told_before_spark_is_started(waterclock, no_spark, line, said):
    result = waterclock("pipeline", *line)

    assert (result.exit_code, no_spark) == (2, [])
    assert said in result.stderr


def test_without_a_node_nobody_waits_for_spark(waterclock):
    result = waterclock("pipeline", "report", "--address", "127.0.0.1:1")

    assert result.exit_code == 1
    assert "no node answers at 127.0.0.1:1" in result.stderr


def test_a_failure_leaves_the_log_of_spark_and_says_where(waterclock, ran, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ran(report, PySparkException("a\nwaterclock.model.errors.Unreachable: the node is gone\nb"))
    result = waterclock("pipeline", "report")

    (log,) = tmp_path.glob("waterclock-spark-*.log")
    assert result.stderr.splitlines() == [
        "error: the node is gone",
        f"What Spark said is in {log}",
    ]
    ran(report, Summary(job="report", rows=1))
    waterclock("pipeline", "report")
    assert list(tmp_path.glob("waterclock-spark-*.log")) == [log]


def test_redrive_takes_what_repeats(waterclock, ran):
    shown = ran(redrive, Summary(job="redrive", rows=0))
    waterclock("pipeline", "redrive", "orders", "--reason", "a%", "--reason", "b", "--set", "key=1")

    assert (shown[0].reasons, shown[0].changes) == (("a%", "b"), ("key=1",))


def test_people_see_plain_figures_and_why_rows_were_refused():
    out = StringIO()
    facts: dict[str, object] = {
        "topic": "orders",
        "none": None,
        "counts": {"a": 1_000},
        "big": {"x": [1]},
        "rows": [],
    }
    summary = Summary(
        job="schedule", rows=1, rejected={"due: in the past": 2}, facts=facts, seconds=1.25
    )
    tell(Console(file=out, width=100), summary)

    assert [line.strip() for line in out.getvalue().splitlines() if line.strip()] == [
        "schedule: 1 row done in 1.2 s",
        "topic            orders",
        "counts           a: 1,000",
        "refused  why",
        "2  due: in the past",
    ]


def test_settings_of_spark_are_named_so():
    assert Launch(None, None, ["spark.a=1"], False).settings() == {"spark.a": "1"}
    for wrong in ("a=1", "spark.a"):
        with pytest.raises(BadInput, match="--conf"):
            Launch(None, None, [wrong], False).settings()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("x\nTraceback\nwaterclock.model.errors.BadInput: ours\n SQLSTATE: 1", "ours"),
        ("x\nTraceback\nValueError: theirs\n\tat org.apache", "ValueError: theirs"),
        ("[SPARK] says this\nand that", "[SPARK] says this"),
        ("", "RuntimeError"),
    ],
)
def test_a_failure_is_the_line_a_person_can_act_on(text, line):
    assert pipeline_run.failure_line(RuntimeError(text)) == line


def test_a_real_job_starts_spark_by_itself_and_says_nothing_but_its_result(node, tmp_path):
    (tmp_path / "rows.csv").write_text(
        "value,due\nsoon,2099-01-01T00:00:00Z\nlate,2020-01-01T00:00:00Z\n"
    )
    command = [sys.executable, "-m", "waterclock"]
    where = ["--address", node.address]
    subprocess.run([*command, "topics", "create", "pipeline-e2e", *where], check=True)
    done = subprocess.run(
        [*command, "pipeline", "schedule", "pipeline-e2e", str(tmp_path / "rows.csv"), *where,
         "--master", "local[1]", "--json"],
        env={**os.environ}, capture_output=True, text=True, timeout=JOB_S_MAX, check=False,
    )  # fmt: skip

    assert (done.returncode, done.stderr) == (3, "")
    summary = json.loads(done.stdout)
    assert (summary["rows"], summary["rejected"]) == (1, {"due: in the past": 1})
    runs = subprocess.run(
        [*command, "pipeline", "runs", *where, "--json"], capture_output=True, text=True, check=True
    )
    (run,) = [one for one in json.loads(runs.stdout)["runs"] if one["topic"] == "pipeline-e2e"]
    assert (run["job"], run["state"], run["rows"], run["rejected"]) == ("schedule", "done", 1, 1)
    assert (run["rows_read"], run["report"]["rejected"]) == (2, summary["rejected"])


def test_a_dry_run_tells_the_node_nothing(waterclock, ran, monkeypatch):
    ran(report, Summary(job="report", rows=1))
    heard_of: list[JobRun] = []
    monkeypatch.setattr(run_telling, "node_teller", lambda address: heard_of.append)
    assert waterclock("pipeline", "report", "--dry-run").exit_code == 0
    assert heard_of == []
    assert waterclock("pipeline", "report", "orders").exit_code == 0
    assert [(each.job, each.topic, each.state) for each in heard_of[-1:]] == [
        ("report", "orders", "done")
    ]


def test_people_see_how_runs_got_on():
    out = StringIO()
    at: dict[str, Any] = {"started_ms": 1_800_000_000_000, "heard_ms": 1_800_000_060_000}
    tell_runs(
        Console(file=out, width=200),
        [
            JobRun(name="a", job="compact", topic="orders", state="done", rows=1_234, **at),
            JobRun(name="b", job="report", state="silent", **at),
            JobRun(name="c", job="ingest", stage="reading", tasks_done=3, tasks=8, **at),
            JobRun(name="d", job="ingest", state="failed", error="no\x1b[2Jroom", **at),
        ],
    )
    lines = out.getvalue().splitlines()[1:]
    assert "1,234" in lines[0]
    assert "not heard from" in lines[1]
    assert "since 2027-01-15" in lines[1]
    assert "reading 3/8 tasks" in lines[2]
    assert "\x1b" not in lines[3]
