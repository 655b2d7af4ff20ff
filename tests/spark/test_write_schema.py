"""The border of a write: every column, row and option that cannot be a message, named in words.

Tasks run here as Spark runs them, without Spark.
"""

import time
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tests.spark.spark_node import SparkNode
from tests.spark.stored import check_once, stored
from waterclock.client.settings import ClientSettings
from waterclock.log.schema import HEADERS
from waterclock.spark.options import BadOption
from waterclock.spark.write import sender
from waterclock.spark.write.options import WriteOptions
from waterclock.spark.write.schema import BadColumn, BadRow, check_columns, rows_of
from waterclock.spark.write.sender import BatchSender, TaskKey
from waterclock.spark.write.task import write_task

COLUMNS = pa.schema(
    [
        ("value", pa.binary()),
        ("key", pa.binary()),
        ("headers", HEADERS),
        ("message_id", pa.binary()),
        ("due_ms", pa.int64()),
        ("partition", pa.int32()),
    ]
)


@pytest.fixture
def options(node: SparkNode, topic):
    """Return a function that makes options for a topic of three partitions."""
    node.client.topics.create(topic, partitions=3)

    def make(**said):
        return WriteOptions.parse({"servers": node.servers, "topic": topic, **said})

    return make


def batch(rows, *, absent=()):
    """Return rows as Spark would hand them over; what a row does not say is null."""
    full = [{**dict.fromkeys(COLUMNS.names), **row} for row in rows]
    schema = pa.schema([field for field in COLUMNS if field.name not in absent])
    return pa.RecordBatch.from_pylist(full, schema=schema)


def noted_chunks(monkeypatch):
    """Return a list that gets what is sent from now on."""
    chunks, start = [], BatchSender._start

    def note(self, chunk):
        chunks.append(chunk)
        return start(self, chunk)

    monkeypatch.setattr(BatchSender, "_start", note)
    return chunks


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "reserved header": (
        {"headers": {"wc-dlq-reason": b"x"}},
        r"headers: 'wc-dlq-reason' is the node's own, as all of wc-dlq-\*",
    ),
    "null header": ({"headers": {"h": None}}, r"headers: 'h' is null"),
    "due before 1970": ({"due_ms": -1}, r"due time is before 1970 \(got -1 ms\)"),
    "due in a million years": (
        {"due_ms": 1 << 62},
        r"due_ms exceeds its limit of \d+ \(got 4611686018427387904\)",
    ),
    "empty id": ({"message_id": b""}, r"message_id is empty"),
    "long id": ({"message_id": b"x" * 256}, r"message_id bytes exceeds its limit of 255"),
    "long key": ({"key": b"x" * 65_537}, r"key bytes exceeds its limit of 65536"),
    "no such partition": ({"partition": 3}, r"partition must be from 0 to 2 \(got 3\)"),
    "negative partition": ({"partition": -1}, r"partition must be from 0 to 2 \(got -1\)"),
    "large value": (
        {"value": b"x" * (11 << 20), "key": b"who"},
        r"message bytes exceeds its limit of 10485760 \(got 11534373\) \(its key is b'who'\)",
    ),
    "bad expiry": (
        {"headers": {"wc-expires-ms": b"soon"}},
        r"wc-expires-ms: must be milliseconds since 1970",
    ),
    "many headers": (
        {"headers": {str(n): b"" for n in range(65)}},
        r"headers exceeds its limit of 64",
    ),
    "long headers": (
        {"headers": {"h": b"x" * 65_536}},
        r"header bytes exceeds its limit of 65536",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_row_is_named_with_its_field_and_limit(options, node, name):
    change, words = BAD[name]
    rows: list[dict[str, Any]] = [{"value": b"%d" % n, "headers": {"h": b"v"}} for n in range(40)]
    rows[17] |= change
    batches = [batch(rows[:10]), batch(rows[10:])]

    with pytest.raises(BadRow, match=rf"^row 17 of task 4 cannot be written: .*{words}"):
        write_task(options(), TaskKey("failing", 0, 4), batches)

    summary = write_task(options(onBadRow="skip"), TaskKey("skipping", 0, 4), batches)
    assert (summary.rows, summary.stored, summary.skipped) == (40, 39, 1)
    assert summary.problems[0].startswith("row 17 of task 4: ")


def test_many_rows_that_the_node_refuses_are_found_in_few_requests(options, node, monkeypatch):
    monkeypatch.setattr(sender, "CHUNK_BYTES", 4 << 20)  # all of them in one
    chunks = noted_chunks(monkeypatch)
    rows = [{"value": b"%d" % n, "key": b"k" * 65_537 if n % 2 else b"k"} for n in range(60)]

    summary = write_task(options(onBadRow="skip"), TaskKey("w", 0, 0), [batch(rows)])

    assert (summary.stored, summary.skipped) == (30, 30)
    assert len(chunks) == 2


def test_dead_letters_may_say_what_only_the_node_says_elsewhere(node, topic):
    dlq = f"{topic}.dlq"
    options = WriteOptions.parse({"servers": node.servers, "topic": dlq, "createPartitions": "1"})
    rows = [{"value": b"v", "headers": {"wc-dlq-reason": b"not JSON"}}]

    write_task(options, TaskKey("w", 0, 0), [batch(rows)])

    assert stored(node, dlq).column("headers").to_pylist() == [[("wc-dlq-reason", b"not JSON")]]


def test_tombstones_and_empty_values_are_messages(options, node):
    rows = [{"key": b"gone"}, {"value": b""}, {}]

    write_task(options(), TaskKey("w", 0, 0), [batch(rows)])

    found = stored(node, options().topic).column("value").to_pylist()
    assert sorted(found, key=str) == [None, None, b""]


def test_rows_with_and_without_ids_and_partitions_may_be_mixed(options, node):
    rows = [
        {"value": b"%d" % n, "message_id": b"id-%d" % n if n % 2 else None, "partition": place}
        for n, place in enumerate([None, 0, 1, 2] * 25)
    ]

    write_task(options(), TaskKey("w", 0, 0), [batch(rows[:33]), batch(rows[33:])])

    check_once(node, options().topic, [b"%d" % n for n in range(100)], "mixed rows")
    for row in stored(node, options().topic).to_pylist():
        number = int(row["value"])
        assert row["message_id"] == b"id-%d" % number if number % 2 else len(row["message_id"])
        assert number % 4 == 0 or row["partition"] == number % 4 - 1


def test_a_row_of_the_same_content_is_no_other_for_one_that_has_an_id(options, node):
    """Whoever brings an id is not counted among those that need one: or order would matter."""
    rows = [{"value": b"v"}, {"value": b"v", "message_id": b"id"}]

    write_task(options(), TaskKey("w", 0, 0), [batch(rows)])
    again = write_task(options(), TaskKey("w", 0, 0), [batch(rows[::-1])])

    assert again.state == "done"
    ids = stored(node, options().topic).column("message_id").to_pylist()
    assert sorted(id_[24:] for id_ in ids) == [b"", bytes(8)]


def test_a_large_batch_goes_in_chunks_that_fit(options, node, monkeypatch):
    monkeypatch.setattr(sender, "CHUNK_BYTES", 10_000)
    chunks = noted_chunks(monkeypatch)
    values = [b"%d" % n * 100 for n in range(500)]

    write_task(options(inFlight="2"), TaskKey("w", 0, 0), [batch([{"value": v} for v in values])])

    check_once(node, options().topic, values, "large batch")
    assert len(chunks) > 10
    assert max(chunk.rows.nbytes for chunk in chunks) < 15_000


def test_no_more_chunks_are_on_their_way_than_allowed(options, monkeypatch):
    most = 0
    start = BatchSender._start

    def counted(self, chunk):
        nonlocal most
        most = max(most, len(self._in_flight) + 1)
        return start(self, chunk)

    monkeypatch.setattr(BatchSender, "_start", counted)
    batches = [batch([{"value": b"%d" % n}]) for n in range(50)]

    write_task(options(inFlight="3"), TaskKey("w", 0, 0), batches)

    assert most == 3


def test_a_task_keeps_to_its_rate(options, monkeypatch):
    now_s = 1_000.0
    slept: list[float] = []

    def sleep(seconds):
        nonlocal now_s
        slept.append(seconds)
        now_s += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    monkeypatch.setattr(time, "sleep", sleep)
    paced = BatchSender(("nowhere:1",), "t", rate_limit=100)

    for _ in range(11):
        paced._wait_for_turn(100)

    assert sum(slept) == pytest.approx(10 - sender.RATE_SLACK_S)


def field(name, kind):
    return StructField(name, kind)


VALUE = field("value", BinaryType())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ([VALUE, field("id", LongType())], "column 'id': is not one a write takes; those are"),
        ([VALUE, field("offset", LongType())], "column 'offset': .* the node decides it: drop it"),
        ([VALUE, field("header", StringType())], "column 'header': .* did you mean headers"),
        ([field("value", LongType())], "column value: must be binary or string, not bigint: use"),
        ([field("key", BinaryType())], "column value: is missing"),
        ([VALUE, field("VALUE", StringType())], "column value: is there twice"),
        ([VALUE, field("partition", LongType())], "column partition: must be int"),
        ([VALUE, field("due_time", TimestampNTZType())], "must be timestamp, not timestamp_ntz"),
        (
            [VALUE, field("headers", MapType(StringType(), IntegerType()))],
            "column headers: must be map<string,binary> or map<string,string>, not map<string,int>",
        ),
        (
            [VALUE, field("due_time", TimestampType()), field("due_ms", LongType())],
            "column due_ms: does not go with due_time",
        ),
    ],
)
def test_columns_that_cannot_be_written_are_named(fields, words):
    with pytest.raises(BadColumn, match=words):
        check_columns(StructType(fields).fields)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({}, "option topic: is missing"),
        ({"topic": "a/b"}, "option topic: topic name 'a/b': only letters"),
        ({"writeID": "a/b"}, "option writeId: write name 'a/b': only letters"),
        ({"writeBatch": "3"}, "option writeBatch: is a batch of writeId"),
        ({"writeBatch": "-1"}, "option writeBatch: must be a whole number from 0"),
        ({"onBadRow": "drop"}, "option onBadRow: must be fail or skip, not 'drop'"),
        ({"topc": "x"}, "option 'topc': is unknown; did you mean topic"),
        ({"rateLimit": "0"}, "option rateLimit: must be a whole number from 1"),
        ({"inFlight": "65"}, "option inFlight: must be a whole number from 1 to 64"),
        ({"partition": "x"}, "option partition: must be a whole number from 0"),
    ],
)
def test_options_that_make_no_sense_are_named(said, words):
    topic = {} if not said or "topic" in said else {"topic": "t"}
    with pytest.raises(BadOption, match=words):
        WriteOptions.parse({**topic, **said})


def test_a_stream_has_a_name_of_its_own():
    with pytest.raises(BadOption, match="option writeId: is the query's own"):
        WriteOptions.parse({"topic": "t", "writeId": "w"}).check_stream()


def test_a_partition_that_is_not_there_is_named(options):
    with pytest.raises(BadOption, match="option partition: must be from 0 to 2, not 5"):
        write_task(options(partition="5"), TaskKey("w", 0, 0), [batch([{"value": b"v"}])])


def test_a_node_that_is_not_there_is_named_and_the_next_one_asked(options, node, monkeypatch):
    with monkeypatch.context() as impatient:
        impatient.setattr(sender, "_SETTINGS", ClientSettings(connect_timeout_ms=50))
        with (
            pytest.raises(Exception, match=r"no Waterclock node answers at 127.0.0.1:9"),
            BatchSender(("127.0.0.1:9",), "t"),
        ):
            pass
    with BatchSender(("127.0.0.1:9", node.servers), "t") as found:
        assert found.message_bytes_max() > 0


def test_columns_of_arrow_are_taken_whatever_their_width():
    wide = pa.record_batch(
        {"value": pa.array(["a"], pa.large_string()), "key": pa.array([b"k"], pa.large_binary())}
    )

    assert rows_of(wide).content.to_pylist() == [
        {"key": b"k", "value": b"a", "headers": None, "due_ms": None, "partition": None}
    ]


@pytest.mark.parametrize(
    ("micros", "due_ms"),
    [(0, 0), (1, 1), (1_000, 1), (1_001, 2), (-1, 0), (-1_000, -1), (None, None)],
)
def test_due_times_are_rounded_up(micros, due_ms):
    times = pa.array([micros], pa.timestamp("us", "Europe/Berlin"))
    rows = rows_of(pa.record_batch({"value": pa.array([b""]), "due_time": times}))

    assert rows.content.column("due_ms").to_pylist() == [due_ms]
