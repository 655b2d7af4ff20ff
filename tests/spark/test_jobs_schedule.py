"""Bulk scheduling: every good row once, every bad one told, however often it is run."""

import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from waterclock.model.errors import BadInput
from waterclock.spark.jobs import schedule
from waterclock.spark.jobs.job import EXIT_OK, EXIT_REJECTED
from waterclock.spark.jobs.message_rows import Mapped
from waterclock.spark.jobs.progress import SilentReporter
from waterclock.spark.jobs.schedule import ScheduleOptions

TOMORROW = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)


@pytest.fixture
def run(spark, node, topic):
    """Return a function that schedules to the test's topic, which has two partitions."""
    node.client.topics.create(topic, partitions=2)

    def run_job(**options):
        shown = ScheduleOptions(servers=node.servers, **{"topic": topic, **options})
        return schedule.run(spark, shown, SilentReporter())

    return run_job


def parquet(folder, count, **columns):
    made = {
        "value": [f"reminder {n}".encode() for n in range(count)],
        "key": [f"user-{n % 7}" for n in range(count)],
        "due_time": pa.array([TOMORROW] * count, pa.timestamp("us", tz="UTC")),
    }
    path = folder / "reminders.parquet"
    pq.write_table(pa.table({**made, **columns}), path)
    return str(path)


def waiting(node, topic):
    return sorted(each.value for each in node.client.scheduled(topic, with_values=True))


def test_rows_of_parquet_wait_for_their_time(run, node, topic, tmp_path):
    summary = run(source=parquet(tmp_path, 1_000))

    assert (summary.rows, summary.rejected, summary.exit_code) == (1_000, {}, EXIT_OK)
    assert waiting(node, topic) == sorted(f"reminder {n}".encode() for n in range(1_000))
    assert {each.due for each in node.client.scheduled(topic)} == {TOMORROW}


def test_a_topic_that_is_not_there_is_made_and_told_but_not_by_a_dry_run(run, node, tmp_path):
    source = parquet(tmp_path, 10)

    dry = run(source=source, topic="brand-new", is_dry_run=True)
    assert dry.facts["made_partitions"] is None
    assert "brand-new" not in [each.name for each in node.client.topics.list()]
    made = run(source=source, topic="brand-new")
    again = run(source=source, topic="brand-new")

    assert (made.rows, made.facts["made_partitions"]) == (10, 1)
    assert (again.rows, again.facts["made_partitions"]) == (0, None)


def test_run_twice_the_same_input_is_stored_once(run, node, topic, tmp_path):
    source = parquet(tmp_path, 300)
    run(source=source)
    again = run(source=source)

    assert (again.rows, again.facts["already_stored"]) == (0, 300)
    assert len(waiting(node, topic)) == 300


def test_another_write_id_sends_the_same_rows_once_more(run, node, topic, tmp_path):
    source = parquet(tmp_path, 20)
    run(source=source)
    run(source=source, write_id="once-more")

    assert len(waiting(node, topic)) == 40


def test_a_dry_run_checks_all_and_sends_nothing(run, node, topic, tmp_path):
    summary = run(source=parquet(tmp_path, 50), is_dry_run=True)

    assert (summary.rows, summary.is_dry_run) == (50, True)
    assert waiting(node, topic) == []


def test_bad_rows_are_told_by_reason_and_kept(run, node, topic, tmp_path):
    path = tmp_path / "reminders.csv"
    soon = TOMORROW.isoformat()
    path.write_text(
        "value,due,message_id\n"
        f"good,{soon},a\n"
        f"twice,{soon},a\n"
        "never,someday,b\n"
        "none,,c\n"
        "late,2020-01-01T00:00:00Z,d\n"
        f"millis,{int(TOMORROW.timestamp() * 1_000)},e\n"
        "far,9999-01-01T00:00:00Z,f\n"
        f"long,{soon},{'x' * 300}\n"
    )

    summary = run(source=str(path), rejects=str(tmp_path / "rejects"))

    assert summary.exit_code == EXIT_REJECTED
    assert summary.rejected == {
        "message_id: repeated in the input": 1,
        "due: missing, or not a time": 2,
        "due: in the past": 1,
        "due: over 36,525 days ahead": 1,
        "message_id: over 255 bytes": 1,
    }
    assert waiting(node, topic) == [b"good", b"millis"]
    assert summary.facts["rejected_samples"]["due: in the past"] == ["late"]
    kept = [
        json.loads(line)
        for file in (tmp_path / "rejects").glob("*.json")
        for line in file.read_text().splitlines()
    ]
    assert len(kept) == 6


def test_late_rows_are_sent_at_once_if_wanted(run, node, topic, tmp_path):
    path = tmp_path / "late.json"
    path.write_text('{"value": "late", "due": "2020-01-01T00:00:00Z"}\n{"value": broken\n')

    summary = run(source=str(path), sends_late=True)

    assert (summary.rows, summary.rejected) == (1, {"the row is malformed": 1})
    assert [each.value for each in node.client.replay(topic)] == [b"late"]


def test_a_query_without_a_value_sends_rows_as_json_with_keys_and_headers(run, node, topic):
    sql = f"select id, timestamp'{TOMORROW:%Y-%m-%d %H:%M:%S}' as at from range(2)"
    mapped = Mapped(key="concat('user-', id)", headers={"kind": "'reminder'"})

    run(sql=sql, mapped=mapped)

    found = sorted(node.client.scheduled(topic, with_values=True), key=lambda each: each.key)
    assert [each.key for each in found] == [b"user-0", b"user-1"]
    assert [json.loads(each.value)["id"] for each in found] == [0, 1]
    assert found[0].headers == {"kind": b"reminder"}


def test_the_same_rows_cut_into_other_tasks_are_the_same_write(run, node, topic, tmp_path, spark):
    whole = parquet(tmp_path, 100)
    spark.read.parquet(whole).repartition(3).write.parquet(str(tmp_path / "cut.parquet"))
    run(source=whole)

    again = run(source=str(tmp_path / "cut.parquet"))

    assert (again.rows, len(waiting(node, topic))) == (0, 100)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "either files or a query"),
        ({"source": "/nowhere.parquet"}, "does not exist|PATH_NOT_FOUND"),
        ({"source": "/data/rows"}, "--format"),
        ({"sql": "select 1 as value"}, "say when rows are due"),
        ({"sql": "selec"}, "--sql"),
        ({"sql": "select 1 as value", "mapped": Mapped(due="nothing")}, "nothing"),
        ({"sql": "select 1 as headers, now() as due"}, "headers is int"),
    ],
)
def test_what_cannot_be_read_is_told_in_a_line(run, options, said):
    with pytest.raises(BadInput, match=said) as caught:
        run(**options)

    assert "\n" not in str(caught.value)
