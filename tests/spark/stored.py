"""What is in a topic, counted: the judge of every test that something is stored once."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from tests.spark.spark_node import SparkNode
from waterclock.log.frame import FrameType
from waterclock.log.schema import MESSAGES, decode

ACCEPTED = (FrameType.DATA, FrameType.SCHEDULED)
"""What was published; a scheduled message that fired is written again, and is no second message."""


def stored(node: SparkNode, topic: str) -> pa.Table:
    """Return all messages of a topic with their partitions, those for later too."""
    schema = MESSAGES.append(pa.field("partition", pa.int32()))
    batches = []
    for partition in node.client.topics.get(topic).partitions:
        offset, number = partition.start_offset, partition.partition
        while offset < partition.end_offset:
            fetched = node.client.fetch(topic, number, offset, deliverable_only=False)
            for frame in fetched.frames():
                if frame.header.type in ACCEPTED:
                    rows = decode(frame.header, frame.body)
                    place = pa.array([number] * rows.num_rows, pa.int32())
                    columns = [*(rows.column(name) for name in MESSAGES.names), place]
                    batches.append(pa.RecordBatch.from_arrays(columns, schema=schema))
            offset = fetched.next_offset
    return pa.Table.from_batches(batches, schema)


def rows_stored(node: SparkNode, topic: str) -> int:
    """Return how many messages a topic has, cheaply."""
    return sum(each.end_offset for each in node.client.topics.get(topic).partitions)


def check_once(node: SparkNode, topic: str, expected: Iterable[Any], what: str) -> None:
    """See that each value is stored as often as it is expected; print the count."""
    wanted = Counter(expected)
    found = Counter(stored(node, topic).column("value").to_pylist())
    lost, doubled = wanted - found, found - wanted
    print(
        f"\n{what}: {wanted.total()} rows written, {found.total()} stored, "
        f"{lost.total()} lost, {doubled.total()} duplicated"
    )
    assert lost == Counter()
    assert doubled == Counter()
