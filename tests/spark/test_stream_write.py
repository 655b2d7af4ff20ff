"""Streaming queries into a topic: each micro-batch once, under the query's own name."""

import json

import pytest

from tests.spark.spark_node import SparkNode
from tests.spark.stored import check_once, stored


@pytest.fixture
def copy(spark, node: SparkNode, tmp_path):
    """Return a function that copies a topic into another until it has all; in two or more batches.

    Queries under the same name go on from the same checkpoint.
    """

    def run(source, sink, *, name="query", **options):
        reader = spark.readStream.format("waterclock").option("servers", node.servers)
        rows = reader.options(topic=source, maxOffsetsPerTrigger=60).load()
        writer = rows.select("key", "value", "headers").writeStream.format("waterclock")
        writer = writer.options(servers=node.servers, topic=sink, **options)
        writer = writer.option("checkpointLocation", str(tmp_path / name))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return str(query.id)

    return run


@pytest.fixture
def source(node: SparkNode, topic):
    """Return a topic of a hundred messages in two partitions."""
    node.client.topics.create(f"{topic}-from", partitions=2)
    for partition in (0, 1):
        node.fill(f"{topic}-from", partition, 50, first=partition * 50)
    return f"{topic}-from"


@pytest.fixture
def sink(node: SparkNode, topic):
    node.client.topics.create(f"{topic}-to", partitions=3)
    return f"{topic}-to"


def values(count, start=0):
    return [b"value %d" % number for number in range(start, start + count)]


def test_a_query_writes_each_row_once_and_goes_on_where_it_was(node, copy, source, sink, tmp_path):
    said = tmp_path / "told.jsonl"
    writer = copy(source, sink, summaryFile=said)
    check_once(node, sink, values(100), "a query")
    node.fill(source, 0, 10, first=100)

    assert copy(source, sink, summaryFile=said) == writer

    check_once(node, sink, values(110), "the query, gone on")
    batches = [json.loads(line) for line in said.read_text().splitlines()]
    assert [batch["batch"] for batch in batches] == list(range(len(batches)))
    assert sum(batch["stored"] for batch in batches) == 110
    assert {batch["writer"] for batch in batches} == {writer}
    (noted,) = node.client.write_registry.list(sink)
    assert (noted.name, noted.committed, noted.open_tasks) == (writer, len(batches) - 1, 0)


def test_two_queries_write_the_same_rows_each_for_itself(node, copy, source, sink):
    copy(source, sink, name="one")
    copy(source, sink, name="other")

    check_once(node, sink, values(100) * 2, "two queries")


def test_a_stream_says_what_is_wrong_with_it(copy, source, sink, topic):
    with pytest.raises(Exception, match="option writeId: is the query's own"):
        copy(source, sink, writeId="mine")
    # Found before any task begins: Spark would try each of them three times.
    with pytest.raises(Exception, match=r"initialize.* writer(?s:.*)no topic '\S+' to write to"):
        copy(source, topic, name="nowhere")


@pytest.fixture
def count_values(spark, node: SparkNode, tmp_path):
    """Return a function that counts a topic's rows by key in two batches, and writes them."""

    def run(source, sink, mode):
        reader = spark.readStream.format("waterclock").option("servers", node.servers)
        rows = reader.options(topic=source, maxOffsetsPerTrigger=60).load()
        counts = rows.groupBy("key").count().selectExpr("key", "cast(count as string) as value")
        writer = counts.writeStream.format("waterclock").outputMode(mode)
        writer = writer.options(servers=node.servers, topic=sink)
        writer = writer.option("checkpointLocation", str(tmp_path / mode))
        writer.trigger(availableNow=True).start().awaitTermination()

    return run


def test_complete_mode_adds_the_whole_result_of_each_batch(node, count_values, source, sink):
    count_values(source, sink, "complete")

    said = [(message.key, message.value) for message in node.client.replay(sink)]
    assert dict(said) == {b"key-%d" % number: b"10" for number in range(10)}
    assert len(said) == 20


def test_spark_itself_refuses_update_mode(count_values, source, sink):
    """Once it does not, docs/spark.md is wrong, and so is the way around it that it shows."""
    with pytest.raises(Exception, match="waterclock does not support Update mode"):
        count_values(source, sink, "update")


def test_foreach_batch_writes_each_batch_once(spark, node, source, sink, tmp_path):
    """Spark repeats a batch whose end it did not note; here it is called twice each time."""

    def write(rows, batch):
        for _ in range(2):
            rows.select("key", "value").write.format("waterclock").mode("append").options(
                servers=node.servers, writeId="each-batch", writeBatch=batch
            ).save(sink)

    rows = spark.readStream.format("waterclock").option("servers", node.servers)
    rows = rows.options(topic=source, maxOffsetsPerTrigger=60).load()
    writer = rows.writeStream.foreachBatch(write)
    writer = writer.option("checkpointLocation", str(tmp_path / "each"))
    writer.trigger(availableNow=True).start().awaitTermination()

    check_once(node, sink, values(100), "foreachBatch, each batch twice")
    assert stored(node, sink).num_rows == 100
