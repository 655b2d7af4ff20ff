"""What a node lists, as tables: what waits for its time, and dead letters."""

import datetime

from tests.spark.test_batch_reader import ms_of, rows_of

FAR_MS = 4_000_000_000_000


def test_what_waits_for_its_time_is_a_table(node, read, topic):
    node.client.topics.create(topic, partitions=2)
    node.fill(topic, 0, 2)  # due now: not among them
    for partition in range(2):
        dues = [FAR_MS + 1_000 * n for n in range(1_500)]
        node.fill(topic, partition, 1_500, first=10, due_ms=dues, headers=[[("h", b"1")]] * 1_500)

    table = read(topic, view="scheduled")

    found = rows_of(table, "partition", "key", "value", "headers", "due_time")
    assert len(found) == 3_000
    first = min(found, key=lambda row: (row[0], row[-1]))
    assert first[:4] == (0, b"key-0", b"value 10", {"h": b"1"})
    assert ms_of(first[4]) == FAR_MS
    narrow = read(topic, view="scheduled", schema="partition int, offset bigint", partitions="1")
    assert {row.partition for row in narrow.collect()} == {1}


def test_what_waits_is_picked_by_due_time_and_key(node, read, topic):
    node.client.topics.create(topic, partitions=1)
    node.fill(topic, 0, 20, due_ms=[FAR_MS + 1_000 * n for n in range(20)])

    table = read(
        topic, view="scheduled", startingTimestamp=FAR_MS + 5_000,
        endingTimestamp=FAR_MS + 15_000, keyPrefix="key-7",
    )  # fmt: skip

    assert rows_of(table, "value") == [(b"value 7",)]
    assert read(topic, view="scheduled", endingTimestamp=0).count() == 0


def test_dead_letters_are_a_table(node, read, topic):
    node.client.topics.create(topic, partitions=1)
    node.fill(topic, 0, 3, headers=[[("h", b"1")]] * 3)
    with node.client.subscribe(topic, group="billing") as messages:
        for message in messages:
            message.reject()
            if message.offset == 2:
                break
    while node.client.dead_letters.count(topic) < 3:
        pass

    table = read(topic, view="dlq")

    columns = ("key", "value", "group", "attempts", "origin_partition", "origin_offset")
    assert sorted(rows_of(table, *columns), key=lambda row: row[-1]) == [
        (b"key-%d" % n, b"value %d" % n, "billing", 1, 0, n) for n in range(3)
    ]
    ((reason, dead_lettered, headers),) = set(
        map(_hashable, rows_of(table, "reason", "dead_lettered_time", "headers"))
    )
    assert "reject" in reason
    assert isinstance(dead_lettered, datetime.datetime)
    assert headers == (("h", b"1"),)
    assert rows_of(read(topic, view="dlq", keyPrefix="key-1"), "value") == [(b"value 1",)]
    assert read(topic, view="dlq", startingTimestamp=FAR_MS).count() == 0


def _hashable(row):
    reason, dead_lettered, headers = row
    return reason, dead_lettered, tuple(sorted(headers.items()))
