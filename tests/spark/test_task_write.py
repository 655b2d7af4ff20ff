"""One task, tried again and again, without Spark: each row is stored once, whatever broke before.

The node forgets ids after a second, so that dedup cannot help where reading back must.
"""

import random
import time

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.spark.spark_node import SparkNode, running
from tests.spark.stored import check_once, stored
from waterclock.spark.write.options import WriteOptions
from waterclock.spark.write.row_ids import RowIds
from waterclock.spark.write.sender import BatchSender, TaskKey
from waterclock.spark.write.stored_ids import StoredIds, read_back
from waterclock.spark.write.task import write_task

ROWS = 2_000
EQUAL = 50
"""So many rows say the same."""


class Broken(Exception):
    """What a task dies of here."""


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory):
    """Return a node that knows an id for a second."""
    with running(tmp_path_factory.mktemp("forgetful"), {"dedup": {"window_ms": 1_000}}) as node:
        yield node


@pytest.fixture
def options(forgetful: SparkNode, topic):
    forgetful.client.topics.create(topic, partitions=3)
    return WriteOptions.parse({"servers": forgetful.servers, "topic": topic, "inFlight": "1"})


def rows_of_task(*, with_ids=False):
    numbers = [max(n, EQUAL) for n in range(ROWS)]
    return [
        {
            "value": b"%d" % n,
            "key": b"%d" % (n % 9) if n % 2 else None,
            "due_ms": 4_102_444_800_000 if n % 3 == 0 else None,
            **({"message_id": b"id-%d" % at} if with_ids else {}),
        }
        for at, n in enumerate(numbers)
    ]


def batches_of(rows, size):
    names = [*rows[0]]
    kinds = {"due_ms": pa.int64()}
    schema = pa.schema([(name, kinds.get(name, pa.binary())) for name in names])
    for start in range(0, len(rows), size):
        yield pa.RecordBatch.from_pylist(rows[start : start + size], schema=schema)


def breaking_after(batches, count):
    """Yield some batches, then break as a killed task does."""
    for number, batch in enumerate(batches):
        if number == count:
            raise Broken
        yield batch


def forget_ids(node: SparkNode):
    """Wait until the node knows no id any more that it knows now."""
    node.client.publish("probe", b"", message_id=b"probe")
    while not node.client.publish("probe", b"", message_id=b"probe").is_new:
        time.sleep(0.05)


@pytest.mark.parametrize("with_ids", [False, True], ids=["derived", "own"])
@pytest.mark.parametrize("is_forgotten", [False, True], ids=["within window", "after window"])
def test_a_task_tried_again_stores_what_is_missing(forgetful, options, with_ids, is_forgotten):
    place, rows = TaskKey("w", 7, 3), rows_of_task(with_ids=with_ids)
    with pytest.raises(Broken):
        write_task(options, place, breaking_after(batches_of(rows, 100), 11))
    before = stored(forgetful, options.topic).num_rows
    assert 900 <= before < ROWS
    if is_forgotten:
        forget_ids(forgetful)
    # Computed again, rows come in another order, and cut another way.
    shuffled = random.Random(4).sample(rows, len(rows))

    summary = write_task(options, place, batches_of(shuffled, 333))

    check_once(forgetful, options.topic, [row["value"] for row in rows], "task tried again")
    # What was on its way when the task broke may have been stored since.
    assert summary.state == "begun"
    assert summary.found >= before
    assert summary.found + summary.repeated + summary.stored == ROWS
    assert write_task(options, place, batches_of(rows, 100)).state == "done"


def test_large_batches_are_spread_by_the_task_as_the_node_spreads_small_ones(
    forgetful, options, monkeypatch
):
    rows, sent = rows_of_task(), []
    send = BatchSender.send

    def sending(self, messages, numbers, partition):
        sent.append(partition)
        send(self, messages, numbers, partition)

    monkeypatch.setattr(BatchSender, "send", sending)

    write_task(options, TaskKey("small", 0, 0), batches_of(rows, 100))
    by_node = stored(forgetful, options.topic)
    assert set(sent) == {None}
    sent.clear()
    write_task(options, TaskKey("large", 0, 0), batches_of(rows, ROWS))

    assert set(sent) == {0, 1, 2}
    both = stored(forgetful, options.topic).to_pylist()
    assert len(both) == 2 * ROWS
    keyed = {row["key"]: row["partition"] for row in by_node.to_pylist() if row["key"]}
    assert all(keyed[row["key"]] == row["partition"] for row in both if row["key"])


def test_a_task_that_breaks_many_times_stores_each_row_once(forgetful, options):
    place, rows = TaskKey("w", 0, 0), rows_of_task()
    for attempt in range(5):
        order = random.Random(attempt).sample(rows, len(rows))
        with pytest.raises(Broken):
            write_task(options, place, breaking_after(batches_of(order, 70), 3 * attempt))
        forget_ids(forgetful)

    write_task(options, place, batches_of(rows, 500))

    check_once(forgetful, options.topic, [row["value"] for row in rows], "five broken attempts")


def test_a_task_done_or_committed_stores_nothing_more(forgetful, options):
    place, rows = TaskKey("w", 3, 0), rows_of_task()
    write_task(options, place, batches_of(rows, 500))
    forget_ids(forgetful)

    assert write_task(options, place, batches_of(rows, 500)).state == "done"
    forgetful.client.write_registry.commit(options.topic, "w", 3)
    for batch in (3, 2, 0):
        again = write_task(options, TaskKey("w", batch, 0), batches_of(rows, 500))
        assert (again.state, again.rows, again.stored) == ("committed", ROWS, 0)

    check_once(forgetful, options.topic, [row["value"] for row in rows], "after a commit")


def test_tasks_beside_each_other_keep_rows_that_say_the_same(forgetful, options):
    rows = rows_of_task()
    for task in range(3):
        with pytest.raises(Broken):
            write_task(options, TaskKey("w", 0, task), breaking_after(batches_of(rows, 300), 3))
    forget_ids(forgetful)

    for task in range(3):
        write_task(options, TaskKey("w", 0, task), batches_of(rows, 300))

    check_once(forgetful, options.topic, [row["value"] for row in rows] * 3, "equal tasks")


def test_a_finish_that_was_not_heard_of_is_made_up_for(forgetful, options, monkeypatch):
    place, rows = TaskKey("w", 0, 0), rows_of_task()
    with monkeypatch.context() as patch:
        patch.setattr(BatchSender, "finish", lambda *_: (_ for _ in ()).throw(Broken))
        with pytest.raises(Broken):
            write_task(options, place, batches_of(rows, 500))
    forget_ids(forgetful)

    summary = write_task(options, place, batches_of(rows, 500))

    check_once(forgetful, options.topic, [row["value"] for row in rows], "unheard finish")
    assert (summary.found, summary.stored) == (ROWS, 0)


def test_a_task_is_done_only_when_its_rows_are_durable(forgetful, options, monkeypatch):
    place, rows = TaskKey("w", 0, 0), rows_of_task()
    with monkeypatch.context() as patch:
        patch.setattr(BatchSender, "flush", lambda *_: (_ for _ in ()).throw(Broken))
        with pytest.raises(Broken):
            write_task(options, place, batches_of(rows, 500))

    assert write_task(options, place, batches_of(rows, 500)).state == "begun"

    check_once(forgetful, options.topic, [row["value"] for row in rows], "never flushed")


def test_two_attempts_at_once_store_each_row_once(node, topic):
    """Spark may believe a task dead that is not; the dedup of the node is for that."""
    node.client.topics.create(topic, partitions=3)
    options = WriteOptions.parse({"servers": node.servers, "topic": topic})
    place, rows = TaskKey("w", 0, 0), rows_of_task()
    zombie = breaking_after(batches_of(rows[::-1], 50), 30)

    def with_a_zombie(batches):
        for number, batch in enumerate(batches):
            if number == 3:
                with pytest.raises(Broken):
                    write_task(options, place, zombie)
            yield batch

    summary = write_task(options, place, with_a_zombie(batches_of(rows, 100)))

    check_once(node, topic, [row["value"] for row in rows], "two attempts at once")
    assert summary.repeated > 0


ids = st.lists(st.binary(min_size=1, max_size=40), max_size=30)


@given(written=st.lists(ids, max_size=4), asked=ids)
def test_written_ids_are_a_set(written, asked):
    found = StoredIds([pa.array(column, pa.binary()) for column in written])
    among = {id_ for column in written for id_ in column}
    asked += list(among)[:5]

    assert found.contain(pa.array(asked, pa.binary())).tolist() == [id_ in among for id_ in asked]


def test_ids_of_another_task_are_not_kept(forgetful, options):
    rows = rows_of_task()
    for task in (0, 1):
        write_task(options, TaskKey("w", 0, task), batches_of(rows, 500))
    with BatchSender(options.servers, options.topic) as sender:
        mine = read_back(
            sender.fetch, dict.fromkeys(range(3), 0), RowIds(writer="w", batch=0, task=1).prefix
        )
        all_ids = read_back(sender.fetch, dict.fromkeys(range(3), 0), None)

    assert (len(mine), len(all_ids)) == (ROWS, 2 * ROWS)
