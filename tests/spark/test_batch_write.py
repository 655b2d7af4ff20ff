"""Writing DataFrames: what arrives, what is refused and in which words, and writing once."""

import json
from datetime import UTC, datetime

import pytest

from tests.spark.spark_node import SparkNode
from tests.spark.stored import check_once, stored

LATER = datetime(2100, 1, 2, 3, 4, 5, 678_901, UTC)


@pytest.fixture
def write(node: SparkNode):
    """Return a function that appends a DataFrame to a topic."""

    def append(rows, topic, **options):
        writer = rows.write.format("waterclock").mode("append").option("servers", node.servers)
        writer.options(**options).save(topic)

    return append


@pytest.fixture
def made(node: SparkNode, topic):
    """Return a topic with three partitions."""
    node.client.topics.create(topic, partitions=3)
    return topic


def values(count, start=0):
    return [b"%d" % number for number in range(start, start + count)]


def texts(spark, count, tasks=2):
    return spark.range(0, count, 1, tasks).selectExpr("cast(id as string) as value")


def test_every_column_arrives_as_it_was_given(spark, node, write, made):
    rows = spark.createDataFrame(
        [
            (b"v1", b"k1", {"a": b"1", "b": b""}, b"id-1", LATER, 2),
            (b"", b"", {}, None, None, None),
            (None, b"k3", None, None, None, 0),
        ],
        "value binary, key binary, headers map<string,binary>, message_id binary, "
        "due_time timestamp, partition int",
    )

    write(rows, made)

    found = {row["key"]: row for row in stored(node, made).to_pylist()}
    derived = [found[key].pop("message_id") for key in (b"", b"k3")]
    assert [len(id_) for id_ in derived] == [32, 32]
    assert found.pop(b"k1") == {
        "message_id": b"id-1",
        "key": b"k1",
        "value": b"v1",
        "headers": [("a", b"1"), ("b", b"")],
        "due_ms": int(LATER.timestamp()) * 1_000 + 679,  # not a microsecond early
        "partition": 2,
    }
    plain = {"headers": None, "due_ms": None}
    assert found.pop(b"k3") == {"key": b"k3", "value": None, "partition": 0, **plain}
    where = found[b""].pop("partition")
    assert where == node.client.publish(made, b"", key=b"").partition
    assert found == {b"": {"key": b"", "value": b"", "headers": [], "due_ms": None}}


def test_text_becomes_bytes(spark, node, write, made):
    rows = spark.sql(
        "select 'süß' as value, 'k' as KEY, map('h', 'ü') as headers, 'id' as message_id, "
        "4102444800000L as due_ms, cast(1 as tinyint) as partition"
    )

    write(rows, made)

    (row,) = stored(node, made).to_pylist()
    assert row == {
        "value": "süß".encode(),
        "key": b"k",
        "headers": [("h", "ü".encode())],
        "message_id": b"id",
        "due_ms": 4_102_444_800_000,
        "partition": 1,
    }


def test_rows_without_ids_all_arrive_also_where_they_say_the_same(spark, node, write, made):
    same = spark.range(0, 5_000, 1, 3).selectExpr("cast(id % 7 as string) as value")

    write(same, made)

    check_once(node, made, [b"%d" % (n % 7) for n in range(5_000)], "equal rows")


def test_rows_go_to_the_partition_that_is_named(spark, node, write, made):
    write(texts(spark, 10), made, partition=2)

    assert set(stored(node, made).column("partition").to_pylist()) == {2}


def test_a_named_write_run_again_writes_nothing(spark, node, write, made, tmp_path):
    said = tmp_path / "told.jsonl"
    for _ in range(2):
        write(texts(spark, 1_000), made, writeId="nightly", summaryFile=said)

    check_once(node, made, values(1_000), "the same write twice")
    first, again = map(json.loads, said.read_text().splitlines())
    assert (first["rows"], first["stored"], first["tasks"]) == (1_000, 1_000, 2)
    assert (again["rows"], again["stored"], again["found"]) == (1_000, 0, 0)


def test_writes_without_a_name_are_writes_of_their_own_and_leave_no_trace(spark, node, write, made):
    write(texts(spark, 100), made)
    write(texts(spark, 100), made)

    check_once(node, made, values(100) * 2, "two writes")
    assert node.client.write_registry.list(made) == []


def test_batches_of_a_named_write_are_written_once_each(spark, node, write, made):
    for batch in (0, 1, 1, 0, 2):
        rows = spark.range(batch * 10, batch * 10 + 10).selectExpr("cast(id as string) as value")
        write(rows, made, writeId="each", writeBatch=batch)

    check_once(node, made, values(30), "batches 0, 1, 1, 0, 2")


def test_an_empty_dataframe_is_written_without_ado(spark, node, write, made):
    write(texts(spark, 0), made)
    write(texts(spark, 0), made, writeId="empty")

    assert stored(node, made).num_rows == 0


def test_a_topic_that_is_not_there_is_made_only_if_told_so(spark, node, write, topic):
    with pytest.raises(Exception, match=rf"no topic '{topic}' to write to: create it first"):
        write(texts(spark, 10), topic)

    write(texts(spark, 10), topic, createPartitions=2)

    assert stored(node, topic).num_rows == 10
    assert len(node.client.topics.get(topic).partitions) == 2


def test_a_bad_row_fails_the_write_and_is_named(spark, node, write, made):
    rows = spark.range(0, 40, 1, 1).selectExpr(
        "cast(id as string) as value", "if(id = 17, repeat('k', 65537), 'k') as key"
    )

    with pytest.raises(Exception, match="row 17 of task 0 cannot be written: key bytes exceeds"):
        write(rows, made)


def test_bad_rows_are_skipped_counted_and_told_of(spark, node, write, made, tmp_path):
    said = tmp_path / "told.jsonl"
    rows = spark.range(0, 3_000, 1, 2).selectExpr(
        "cast(id as string) as value",
        "if(id % 100 = 7, repeat('k', 70000), 'k') as key",
        "if(id % 100 = 8, -5L, null) as due_ms",
    )

    write(rows, made, onBadRow="skip", summaryFile=said)

    good = [b"%d" % n for n in range(3_000) if n % 100 not in (7, 8)]
    check_once(node, made, good, "60 bad rows of 3000 skipped")
    summary = json.loads(said.read_text())
    assert (summary["rows"], summary["stored"], summary["skipped"]) == (3_000, 2_940, 60)
    assert len(summary["problems"]) == 10
    assert "row 8 of task 0: due time is before 1970 (got -5 ms) (its key is b'k')" in str(summary)


def test_a_wrong_write_says_what_is_wrong_before_anything_is_written(spark, node, write, made):
    with pytest.raises(Exception, match=r"column value: must be binary or string, not bigint"):
        write(spark.range(1).selectExpr("id as value"), made)
    with pytest.raises(Exception, match=r"option 'topc': is unknown; did you mean topic"):
        write(texts(spark, 1), made, topc="x")

    assert stored(node, made).num_rows == 0


def test_a_topic_cannot_be_overwritten(spark, node, made):
    with pytest.raises(Exception, match=r"a topic can only be added to: use .mode\('append'\)"):
        texts(spark, 1).write.format("waterclock").mode("overwrite").option(
            "servers", node.servers
        ).save(made)
