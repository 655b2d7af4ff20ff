"""Rows are taken apart by the task as the node would, and left to it where few go together."""

import pyarrow as pa
import pytest

from waterclock.log.partitioner import partition_of_key
from waterclock.log.schema import MESSAGES
from waterclock.model.errors import Forbidden
from waterclock.spark.write.spreading import KNOWN_S, ROWS_EACH_MIN, PartitionCount, parts_of


def messages(count: int) -> pa.RecordBatch:
    """Return messages of which every third has no key."""
    rows = [
        {
            "message_id": b"id-%d" % number,
            "key": None if number % 3 == 0 else b"key-%d" % (number % 50),
            "value": b"%d" % number,
            "headers": [("a", b"b")] if number % 2 else None,
            "due_ms": 4_102_444_800_000 + number,
        }
        for number in range(count)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=MESSAGES)


@pytest.mark.parametrize("partitions", [2, 3, 7])
def test_each_message_is_in_the_part_of_its_key_or_id_and_in_order(partitions):
    whole = messages(2 * partitions * ROWS_EACH_MIN)

    parts = list(parts_of(whole, partitions) or ())

    for part in parts:
        assert part.order.tolist() == sorted(part.order.tolist())
        assert part.rows.equals(whole.take(pa.array(part.order)))
        for row in part.rows.to_pylist():
            place = row["message_id"] if row["key"] is None else row["key"]
            assert partition_of_key(place, partitions) == part.partition
    assert sorted(row for part in parts for row in part.order.tolist()) == list(range(len(whole)))


def test_few_rows_for_each_and_a_single_partition_are_left_to_the_node():
    whole = messages(4 * ROWS_EACH_MIN)

    assert parts_of(whole, 1) is None
    assert parts_of(whole, 5) is None
    assert parts_of(whole, 4) is not None


def test_partitions_that_are_added_are_known_a_moment_later():
    now_s, counts = 10.0, iter([3, 4])
    count = PartitionCount(lambda: next(counts), now_s=lambda: now_s)

    assert [count.get(), count.get()] == [3, 3]
    now_s += KNOWN_S

    assert count.get() == 4


def test_who_may_not_ask_leaves_all_to_the_node():
    asked: list[None] = []

    def ask() -> int:
        asked.append(None)
        raise Forbidden("read", "topic orders", principal="ada")

    count = PartitionCount(ask, now_s=lambda: 10.0)

    assert [count.get(), count.get()] == [1, 1]
    assert len(asked) == 1
