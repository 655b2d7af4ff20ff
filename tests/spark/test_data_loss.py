"""Retention overtakes a reader: it fails and says so, or goes on behind the gap if told to."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from tests.spark.spark_node import SparkNode, running
from tests.spark.test_stream_reader import Run
from waterclock.spark.read.http_node import HttpNode

ROWS = 40
SMALL = {"log": {"segment_bytes": 4 << 10, "preallocate_bytes": 0}}


@pytest.fixture
def forgetful(tmp_path: Path) -> Iterator[SparkNode]:
    """Return a node with a topic in small segments, whose retention looks all the time."""
    (tmp_path / "node").mkdir()
    with running(tmp_path / "node", SMALL, cleaner_ms=20) as node:
        node.client.topics.create("orders", partitions=1)
        fill(node, 0)
        yield node


def fill(node: SparkNode, first: int) -> None:
    for number in range(first, first + ROWS):
        node.fill("orders", 0, 1, first=number, value=[b"x" * 1_000])


def forget(node: SparkNode, beyond: int) -> None:
    """Have retention take what is below, and a little more: it may still be at it."""
    node.client.topics.update("orders", retention_bytes=8 << 10)
    with closing(HttpNode(f"http://127.0.0.1:{node.http_port}")) as said:
        while said.ends("orders")[0].retained <= beyond:
            pass
    node.client.topics.update("orders", retention_bytes=0)


def loaded(spark: Any, node: SparkNode, **options: object) -> Any:
    frame = spark.read.format("waterclock").option("servers", node.servers)
    return frame.options(topic="orders", **options).load()


def offsets(table: Any) -> list[int]:
    return sorted(row.offset for row in table.select("offset").collect())


def is_the_end(found: list[int], *, beyond: int, end: int) -> bool:
    """Say if these are all offsets from one on, and that is beyond what was taken at least."""
    return beyond < found[0] and found == list(range(found[0], end))


def test_a_planned_read_fails_when_its_rows_are_gone(spark, forgetful):
    strict = loaded(spark, forgetful)
    lenient = loaded(spark, forgetful, failOnDataLoss=False)
    assert offsets(strict) == offsets(lenient) == list(range(ROWS))

    forget(forgetful, 5)

    with pytest.raises(PySparkException, match=r"is gone: retention.*failOnDataLoss=false"):
        offsets(strict)
    assert is_the_end(offsets(lenient), beyond=5, end=ROWS)
    with pytest.raises(PySparkException, match="offset 3 of partition 0 is gone"):
        offsets(loaded(spark, forgetful, startingOffsets='{"0": 3}'))
    assert is_the_end(offsets(loaded(spark, forgetful)), beyond=5, end=ROWS)


def test_a_stream_that_was_overtaken_fails_or_goes_on_behind(spark, forgetful, tmp_path):
    run = Run(spark, forgetful, tmp_path / "checkpoint")
    run.all_there_is("orders")
    fill(forgetful, ROWS)
    forget(forgetful, ROWS)

    with pytest.raises(StreamingQueryException, match=rf"offset {ROWS} of partition 0 is gone"):
        run.all_there_is("orders")
    assert run.places == [(0, offset) for offset in range(ROWS)]

    run.all_there_is("orders", failOnDataLoss=False)
    found = [offset for _, offset in run.places]
    assert found[:ROWS] == list(range(ROWS))
    assert is_the_end(found[ROWS:], beyond=ROWS, end=2 * ROWS)
