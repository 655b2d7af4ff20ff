"""Reading topics in batch, through Spark and a real node."""

import datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import AnalysisException, PySparkException

from tests.spark.spark_node import SparkNode

EPOCH = datetime.datetime(1970, 1, 1)


def rows_of(frame: Any, *columns: str) -> list[tuple[Any, ...]]:
    """Return rows in the order of their places."""
    columns = columns or ("partition", "offset")
    found = [tuple(row) for row in frame.select("partition", "offset", *columns).collect()]
    return [row[2:] for row in sorted(found, key=lambda row: row[:2])]


def ms_of(time: datetime.datetime) -> int:
    return round((time - EPOCH).total_seconds() * 1_000)


def refusal(action: Any) -> str:
    """Return the last words of what Spark says when an action fails."""
    with pytest.raises(PySparkException) as refused:
        action()
    lines = [line for line in str(refused.value).splitlines() if line.startswith("waterclock.")]
    return lines[-1]


def test_a_topic_is_read_whole(node, read, topic):
    node.client.topics.create(topic, partitions=2)
    node.fill(topic, 0, 3, headers=[[("h", b"1")], None, None], value=[b"x", None, b""])
    node.fill(topic, 1, 2)

    found = rows_of(read(topic), "partition", "offset", "message_id", "key", "value", "headers")

    ids = [f"{topic}/{partition}/{n}".encode() for partition, n in _places(3, 2)]
    assert found == [
        (0, 0, ids[0], b"key-0", b"x", {"h": b"1"}),
        (0, 1, ids[1], b"key-1", None, None),
        (0, 2, ids[2], b"key-2", b"", None),
        (1, 0, ids[3], b"key-0", b"value 0", None),
        (1, 1, ids[4], b"key-1", b"value 1", None),
    ]


def _places(*counts: int) -> list[tuple[int, int]]:
    return [(partition, n) for partition, count in enumerate(counts) for n in range(count)]


def test_scheduled_messages_show_in_the_view_all_and_fire_once(node, read, topic):
    node.client.topics.create(topic, partitions=1)
    node.fill(topic, 0, 1)
    # Long enough that it is not due before it comes to a node that is busy: then none would fire.
    scheduled = node.client.publish(topic, b"later", key=b"k", at="+2s")
    # One that waits for the fired one: what comes behind it is in the log by then.
    with node.client.subscribe(topic, group="g") as messages:
        due_ms = ms_of(next(m.due for m in messages if m.due is not None).replace(tzinfo=None))

    delivered = rows_of(read(topic), "value", "due_time", "fire_time", "append_time")
    everything = rows_of(read(topic, view="all"), "kind", "value")

    assert [row[0] for row in delivered] == [b"value 0", b"later"]
    assert delivered[0][1:3] == (None, None)
    _, due, fired, appended = delivered[1]
    assert ms_of(due) == due_ms
    assert due <= fired == appended
    assert everything == [("data", b"value 0"), ("scheduled", b"later"), ("fired", b"later")]
    assert scheduled.offset == 1


def test_an_empty_topic_is_an_empty_table(node, read, topic):
    node.client.topics.create(topic, partitions=2)

    assert read(topic).count() == 0
    assert len(read(topic).columns) == 9


def test_a_loaded_table_is_a_snapshot(node, read, topic):
    node.client.topics.create(topic, partitions=1)
    node.fill(topic, 0, 3)
    table = read(topic)
    assert table.count() == 3

    node.fill(topic, 0, 2, first=3)

    assert table.count() == 3
    assert read(topic).count() == 5


def test_columns_are_left_out_by_the_schema(node, read, topic):
    node.client.topics.create(topic, partitions=1)
    node.fill(topic, 0, 2)

    table = read(topic, schema="value_bytes int, key binary, offset bigint not null")

    assert [tuple(row) for row in table.collect()] == [(7, b"key-0", 0), (7, b"key-1", 1)]


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("offset int", "column offset is bigint, not int"),
        ("offsets bigint", "has no column 'offsets'"),
        ("kind string", "view delivered has no column 'kind'"),
        ("value binary not null", "column value may be null"),
    ],
)
def test_a_schema_that_is_not_ours_is_refused(node, read, topic, schema, says):
    node.client.topics.create(topic, partitions=1)

    assert says in refusal(lambda: read(topic, schema=schema).collect())


def test_times_are_ranges_too(node, read, topic):
    node.client.topics.create(topic, partitions=2)
    node.fill(topic, 0, 2)
    node.fill(topic, 1, 2)
    between = 1 + max(_append_ms(node, topic, each, 0) for each in range(2))
    last = node.client.publish(topic, b"late", partition=0)
    while _append_ms(node, topic, 0, last.offset) < between:
        last = node.client.publish(topic, b"late", partition=0)

    early = rows_of(read(topic, endingTimestamp=between), "partition", "offset", "append_time")
    late = rows_of(read(topic, startingTimestamp=between), "partition", "offset", "append_time")

    assert {place[:2] for place in early} >= set(_places(2, 2))
    assert all(ms_of(time) < between for *_, time in early)
    assert late
    assert all(ms_of(time) >= between for *_, time in late)
    assert sorted(place[:2] for place in early + late) == rows_of(read(topic))
    assert read(topic, startingTimestamp=between, endingTimestamp=0).count() == 0


def _append_ms(node: SparkNode, topic: str, partition: int, offset: int) -> int:
    return next(node.client.fetch(topic, partition, offset).frames()).header.append_ms


def test_small_pieces_are_the_same_table(node, read, topic):
    node.client.topics.create(topic, partitions=2)
    for part in range(5):
        node.fill(topic, part % 2, 7, first=part * 7)

    pieces = read(topic, minPartitions=6, batchRows=3, fetchBytes=1)

    assert pieces.rdd.getNumPartitions() >= 6
    assert rows_of(pieces, "message_id") == rows_of(read(topic), "message_id")


# Any mix equals the plain read, filtered


@pytest.fixture(scope="module")
def mixed(shared_node: SparkNode) -> tuple[str, list[dict[str, Any]]]:
    """Return a topic of three partitions in small frames, and its rows as they were published."""
    topic = "mixed"
    rows: list[dict[str, Any]] = []
    shared_node.client.topics.create(topic, partitions=3)
    for number in range(12):
        partition, count = number % 3, 5 + number
        first = len([row for row in rows if row["partition"] == partition])
        keys = [[None, b"a", b"ab", b"b"][n % 4] for n in range(first, first + count)]
        shared_node.fill(topic, partition, count, first=first, key=keys)
        rows += [
            {"partition": partition, "offset": n, "key": key, "value": b"value %d" % n}
            for n, key in zip(range(first, first + count), keys, strict=True)
        ]
    return topic, rows


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_mix_of_options_equals_the_plain_read_filtered(read, mixed, data):
    topic, rows = mixed
    counts = [len([row for row in rows if row["partition"] == each]) for each in range(3)]
    chosen = data.draw(st.sets(st.integers(0, 2), min_size=1))
    starts = {each: data.draw(st.integers(0, counts[each])) for each in chosen}
    ends = {each: data.draw(st.integers(starts[each], counts[each])) for each in chosen}
    prefix = data.draw(st.sampled_from(["", "a", "ab", "c"]))
    names = data.draw(st.permutations(["partition", "offset", "key", "value"]))
    types = {"partition": "int", "offset": "bigint", "key": "binary", "value": "binary"}
    columns = names[: data.draw(st.integers(1, 4))]

    table = read(
        topic,
        schema=", ".join(f"{name} {types[name]}" for name in columns),
        partitions=",".join(map(str, chosen)),
        startingOffsets=_json(starts),
        endingOffsets=_json(ends),
        keyPrefix=prefix,
        minPartitions=data.draw(st.integers(1, 4)),
        batchRows=data.draw(st.sampled_from([1, 7, 65_536])),
    )

    wanted = [
        tuple(row[name] for name in columns)
        for row in rows
        if row["partition"] in chosen
        and starts[row["partition"]] <= row["offset"] < ends[row["partition"]]
        and (not prefix or (row["key"] or b"").startswith(prefix.encode()))
    ]
    assert sorted(map(repr, map(tuple, table.collect()))) == sorted(map(repr, wanted))


def _json(offsets: dict[int, int]) -> str:
    return "{" + ", ".join(f'"{each}": {offset}' for each, offset in offsets.items()) + "}"


# What goes wrong is said in Spark's terms


def test_an_unknown_topic_is_named(read):
    words = refusal(read("nowhere").collect)

    assert "there is no topic 'nowhere'" in words
    assert "create it first" in words


def test_an_offset_that_is_not_there_is_named_with_what_is(node, read, topic):
    node.client.topics.create(topic, partitions=1)
    node.fill(topic, 0, 3)

    words = refusal(read(topic, startingOffsets='{"0": 9}').collect)
    assert "offset 9 of partition 0 is beyond the log's end 3" in words
    words = refusal(read(topic, startingOffsets='{"0": 2}', endingOffsets='{"0": 1}').collect)
    assert "option endingOffsets: partition 0 ends at 1, before 2" in words
    words = refusal(read(topic, startingOffsets='{"4": 2}').collect)
    assert "names partition 4" in words


def test_a_node_that_is_not_there_is_named_with_what_to_do(spark):
    table = spark.read.format("waterclock").option("servers", "127.0.0.1:1")

    words = refusal(table.load("orders").collect)

    assert "no Waterclock node answers at 127.0.0.1:1" in words
    assert "waterclock up" in words


def test_an_unknown_option_is_refused_when_the_table_is_loaded(spark):
    table = spark.read.format("waterclock").option("startingOffset", "latest")

    with pytest.raises(AnalysisException, match="did you mean startingOffsets"):
        table.load("orders")


def test_a_topic_is_a_view_in_sql(spark, node, topic):
    node.client.topics.create(topic, partitions=1)
    node.fill(topic, 0, 3)

    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW dead_letters USING waterclock "
        f"OPTIONS (servers '{node.servers}', topic '{topic}')"
    )

    assert spark.sql("SELECT max(offset) FROM dead_letters").collect()[0][0] == 2
