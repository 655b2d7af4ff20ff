"""Streaming queries over a topic, through Spark and a real node."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.spark.spark_node import SparkNode

QUERY_S_MAX = 120


class Run:
    """A query into memory, started again and again over one checkpoint."""

    def __init__(self, spark: Any, node: SparkNode, folder: Path) -> None:
        self._spark = spark
        self._node = node
        self._folder = folder
        self.batches: list[tuple[int, list[tuple[int, int]]]] = []

    def query(self, topic: str, trigger: dict[str, Any], **options: object) -> Any:
        """Start a query that notes the places of what it read, batch by batch."""
        frame = (
            self._spark.readStream.format("waterclock")
            .option("servers", self._node.servers)
            .options(topic=topic, **options)
            .load()
        )

        def note(rows: Any, batch: int) -> None:
            places = sorted((row.partition, row.offset) for row in rows.collect())
            self.batches.append((batch, places))

        writer = frame.select("partition", "offset").writeStream.foreachBatch(note)
        return writer.option("checkpointLocation", str(self._folder)).trigger(**trigger).start()

    def all_there_is(self, topic: str, **options: object) -> list[dict[str, Any]]:
        """Read what there is now, and end; return Spark's progress reports."""
        query = self.query(topic, {"availableNow": True}, **options)
        assert query.awaitTermination(QUERY_S_MAX)
        return [json.loads(each.json) for each in query.recentProgress]

    @property
    def places(self) -> list[tuple[int, int]]:
        """Everything read so far."""
        return sorted(place for _, places in self.batches for place in places)


@pytest.fixture
def run(spark: Any, node: SparkNode, tmp_path: Path) -> Run:
    """Return a runner of queries with a checkpoint of its own."""
    return Run(spark, node, tmp_path / "checkpoint")


def places_of(partition: int, count: int) -> list[tuple[int, int]]:
    return [(partition, offset) for offset in range(count)]


def test_available_now_reads_what_there_is_in_limited_batches_and_goes_on_later(node, run, topic):
    node.client.topics.create(topic, partitions=2)
    node.fill(topic, 0, 60)
    node.fill(topic, 1, 30)

    run.all_there_is(topic, maxOffsetsPerTrigger=40)
    assert [len(places) for _, places in run.batches] == [40, 40, 10]
    assert run.places == places_of(0, 60) + places_of(1, 30)

    node.fill(topic, 1, 5, first=30)
    run.all_there_is(topic, maxOffsetsPerTrigger=40)
    assert [len(places) for _, places in run.batches] == [40, 40, 10, 5]
    assert run.places == places_of(0, 60) + places_of(1, 35)


def test_a_query_without_news_plans_no_batch(node, run, topic):
    node.client.topics.create(topic, partitions=2)
    node.fill(topic, 0, 10)

    run.all_there_is(topic)
    run.all_there_is(topic)

    assert [batch for batch, _ in run.batches] == [0]


def test_a_partition_that_joins_is_read_from_its_first_message(node, run, topic):
    node.client.topics.create(topic, partitions=1)
    node.fill(topic, 0, 5)
    run.all_there_is(topic)

    node.client.topics.update(topic, partitions=3)
    node.fill(topic, 2, 4)
    run.all_there_is(topic)

    assert run.places == places_of(0, 5) + places_of(2, 4)


def test_a_running_query_sees_messages_and_partitions_as_they_come(node, run, topic):
    node.client.topics.create(topic, partitions=1)
    query = run.query(topic, {"processingTime": "0 seconds"}, waitMs=200)
    try:
        node.fill(topic, 0, 3)
        query.processAllAvailable()
        node.client.topics.update(topic, partitions=2)
        node.fill(topic, 1, 2)
        query.processAllAvailable()
        assert run.places == places_of(0, 3) + places_of(1, 2)
        assert json.loads(query.lastProgress.json)["sources"][0]["latestOffset"] is not None
    finally:
        query.stop()


def test_only_the_partitions_asked_for_are_followed(node, run, topic):
    node.client.topics.create(topic, partitions=2)
    node.fill(topic, 0, 5)
    node.fill(topic, 1, 5)

    run.all_there_is(topic, partitions="1")

    assert run.places == places_of(1, 5)


def test_a_query_may_begin_at_the_end_or_at_an_offset(node, run, topic, spark, tmp_path):
    node.client.topics.create(topic, partitions=2)
    node.fill(topic, 0, 5)
    node.fill(topic, 1, 5)

    run.all_there_is(topic, startingOffsets='{"0": 3, "1": "latest"}')
    node.fill(topic, 1, 1, first=5)
    run.all_there_is(topic)

    assert run.places == [(0, 3), (0, 4), (1, 5)]


def test_a_node_that_restarts_is_waited_for(spark, own_node, tmp_path):
    run = Run(spark, own_node, tmp_path / "checkpoint")
    own_node.client.topics.create("orders", partitions=1)
    own_node.fill("orders", 0, 5)
    query = run.query("orders", {"processingTime": "0 seconds"})
    try:
        query.processAllAvailable()
        own_node.kill()
        own_node.start()
        own_node.fill("orders", 0, 5, first=5)
        query.processAllAvailable()
        assert run.places == places_of(0, 10)
    finally:
        query.stop()
