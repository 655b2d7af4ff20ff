"""Ingesting: good rows where they belong, bad ones with a reason, each once."""

import json
from collections import Counter
from datetime import UTC, datetime

import pyarrow.parquet as pq
import pytest

from waterclock.model.errors import BadInput
from waterclock.spark.jobs import ingest
from waterclock.spark.jobs.ingest import IngestOptions
from waterclock.spark.jobs.job import EXIT_REJECTED
from waterclock.spark.jobs.json_rules import load_rules, parse_rules
from waterclock.spark.jobs.progress import SilentReporter

SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "minimum": 0},
        "amount": {"type": "number", "maximum": 1000},
        "at": {"type": "string", "format": "date-time"},
        "state": {"type": "string", "enum": ["paid", "open"]},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["id"],
    "additionalProperties": False,
}
GOOD = {"id": 1, "amount": 2.5, "at": "2026-05-01T10:00:00Z", "state": "paid", "tags": ["a"]}
BAD = {
    "there is no value": None,
    "not UTF-8": b'{"id": "\xff"}',
    "not JSON": b'{"id": 1',
    "not a JSON object": b"[1]",
    "field id: is missing": b'{"amount": 1}',
    "field id: is not a whole number": b'{"id": "1"}',
    "field id: is below 0": b'{"id": -1}',
    "field amount: is not a number": b'{"id": 1, "amount": "much"}',
    "field amount: is above 1000": b'{"id": 1, "amount": 1e9}',
    "field at: is not a time": b'{"id": 1, "at": "yesterday"}',
    "field state: is none of its values": b'{"id": 1, "state": "lost"}',
    "field tags: is not an array as described": b'{"id": 1, "tags": 3}',
    "fields that are not described": b'{"id": 1, "more": 3}',
}


@pytest.fixture
def schema(tmp_path):
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA))
    return str(path)


@pytest.fixture
def run(spark, node, topic, tmp_path, schema):
    """Return a function that ingests the test's topic, which has every kind of bad row."""
    node.client.topics.create(topic, partitions=2)
    fill(node, topic, [json.dumps({"id": 1}).encode(), json.dumps(GOOD).encode(), *BAD.values()])

    def run_job(**options):
        shown = {"servers": node.servers, "source": topic, "schema": schema, **options}
        shown.setdefault("checkpoint", str(tmp_path / "checkpoint"))
        return ingest.run(spark, IngestOptions(**shown), SilentReporter())

    return run_job


def fill(node, topic, values):
    start = node.client.topics.get(topic).partitions[0].end_offset
    ids = [f"{topic}-{start + n}".encode() for n in range(len(values))]
    node.fill(topic, 0, len(values), value=list(values), message_id=ids)


def values(node, topic):
    return [each.value for each in node.client.replay(topic)]


def test_every_row_goes_where_it_belongs_and_a_second_run_finds_nothing_new(run, node, topic):
    first = run(to_topic=f"{topic}-good")
    again = run(to_topic=f"{topic}-good")

    assert (first.rows, first.rejected) == (2, dict.fromkeys(BAD, 1))
    assert first.exit_code == EXIT_REJECTED
    assert (again.rows, again.rejected) == (0, {})
    assert sorted(map(json.loads, values(node, f"{topic}-good")), key=len) == [{"id": 1}, GOOD]
    dead_letters = list(node.client.dead_letters.list(topic))
    assert {each.reason: each.value for each in dead_letters} == BAD
    assert {each.origin_offset for each in dead_letters} == set(range(2, 2 + len(BAD)))


def test_a_second_run_goes_on_where_the_first_was(run, node, topic):
    run(to_topic=f"{topic}-good")
    fill(node, topic, [b'{"id": 5}', b"{}"])
    again = run(to_topic=f"{topic}-good")

    assert (again.rows, again.rejected) == (1, {"field id: is missing": 1})
    assert len(values(node, f"{topic}-good")) == 3


def test_a_lost_checkpoint_stores_nothing_twice(run, node, topic, tmp_path):
    run(to_topic=f"{topic}-good")
    again = run(to_topic=f"{topic}-good", checkpoint=str(tmp_path / "another"))

    assert again.rows == 2
    assert len(values(node, f"{topic}-good")) == 2
    assert node.client.dead_letters.count(topic) == len(BAD)


def test_a_crash_in_the_middle_of_a_batch_writes_each_row_once(
    run, node, topic, tmp_path, monkeypatch
):
    target = {"to_topic": f"{topic}-good", "to_parquet": str(tmp_path / "lake")}

    def crash(checked):
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(ingest, "_bad_rows", crash)
        with pytest.raises(Exception, match="killed"):
            run(**target)
    assert len(values(node, f"{topic}-good")) == 2
    run(**target)

    assert len(values(node, f"{topic}-good")) == 2
    assert node.client.dead_letters.count(topic) == len(BAD)
    assert pq.read_table(tmp_path / "lake").num_rows == 2


def test_parquet_has_parsed_columns_in_a_folder_for_each_day(run, topic, tmp_path):
    run(to_parquet=str(tmp_path / "lake"), day_field="at")

    folders = sorted(path.name for path in (tmp_path / "lake").glob("day=*"))
    assert folders == ["day=2026-05-01", "day=__HIVE_DEFAULT_PARTITION__"]
    (row,) = pq.read_table(tmp_path / "lake/day=2026-05-01").to_pylist()
    at = row["at"] if row["at"].tzinfo else row["at"].replace(tzinfo=UTC)
    assert (row["id"], row["amount"], row["tags"]) == (1, 2.5, ["a"])
    assert at == datetime(2026, 5, 1, 10, tzinfo=UTC)


def test_lines_of_files_are_taken_too_and_new_files_found(run, node, topic, tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    (source / "one.jsonl").write_text('{"id": 7}\n{"id": 7}\nnonsense\n')
    target = {"files": str(source), "to_topic": f"{topic}-good"}
    first = run(**target)
    (source / "two.jsonl").write_text('{"id": 8}\n')
    again = run(**target)

    assert (first.rows, first.rejected, again.rows) == (2, {"not JSON": 1}, 1)
    found = Counter(values(node, f"{topic}-good"))
    assert found == {b'{"id": 7}': 2, b'{"id": 8}': 1}


def test_a_dry_run_counts_and_writes_nothing(run, node, topic):
    summary = run(to_topic=f"{topic}-good", is_dry_run=True)

    assert (summary.rows, summary.rejected, summary.is_dry_run) == (2, dict.fromkeys(BAD, 1), True)
    names = [each.name for each in node.client.topics.list()]
    assert f"{topic}-good" not in names
    assert f"{topic}.dlq" not in names


def test_a_schema_can_be_written_in_ddl_and_as_sparks_json(spark, node, run, tmp_path, topic):
    ddl = tmp_path / "schema.ddl"
    ddl.write_text("id bigint not null, -- a number\namount double\n")
    shown = load_rules(str(ddl))

    assert [(each.name, each.is_required) for each in shown.fields] == [
        ("id", True),
        ("amount", False),
    ]
    assert parse_rules(shown.struct.json()).struct == shown.struct
    summary = run(schema=str(ddl), to_topic=f"{topic}-good", is_dry_run=True)
    assert summary.rejected["field id: is not a whole number"] == 1
    assert summary.rows == 8


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id bigintt", "DDL"),
        ("{", "not JSON"),
        ("{}", "neither"),
        ('{"properties": {"a": {"type": "strange"}}}', "field a: type is 'strange'"),
        ('{"properties": {"a": {"type": "string", "oneOf": []}}}', "'oneOf' is not supported"),
        ('{"properties": {"a": {"type": "string"}}, "required": ["b"]}', "required names 'b'"),
        ('{"properties": {"a\'b": {"type": "string"}}}', "quotes"),
        ('{"properties": {}}', "1 to 1000 fields"),
    ],
)
def test_a_wrong_schema_says_what_is_wrong_with_it(spark, text, said):
    with pytest.raises(BadInput, match=said):
        parse_rules(text)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "--to-topic"),
        ({"to_topic": "a"}, "for ever"),
        ({"to_topic": "b", "files": "x", "kafka": "y"}, "not both"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, said):
    with pytest.raises(BadInput, match=said):
        IngestOptions(source="a", schema="s", **options).check()


@pytest.mark.parametrize("is_dry_run", [True, False])
def test_what_reads_from_kafka_is_named_if_it_is_not_loaded(spark, node, tmp_path, is_dry_run):
    schema = tmp_path / "schema.ddl"
    schema.write_text("id bigint")
    options = IngestOptions(
        source="orders", schema=str(schema), to_parquet=str(tmp_path / "out"),
        kafka="localhost:9092", servers=node.servers, is_dry_run=is_dry_run,
    )  # fmt: skip

    with pytest.raises(BadInput, match=rf"spark-sql-kafka-0-10_2\.13:{spark.version}"):
        ingest.run(spark, options, SilentReporter())
