"""A report made by Spark of a real node: its figures are what a look at every message gives."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.spark.report_samples import bin_of
from tests.spark.spark_node import SparkNode
from waterclock.model.errors import BadInput, UnknownTopic
from waterclock.spark.jobs.job import Summary
from waterclock.spark.jobs.progress import SilentReporter
from waterclock.spark.jobs.report import report
from waterclock.spark.jobs.report.figures import BIN_SQL
from waterclock.spark.jobs.report.report import ReportOptions

HOSTILE = b"</td><script>alert(1)</script>"


def made(spark: Any, node: SparkNode, page: Path, **options: Any) -> Summary:
    chosen = ReportOptions(servers=node.servers, page=str(page), **options)
    return report.run(spark, chosen, SilentReporter())


def test_spark_bins_as_python_does(spark):
    edges = [n for power in range(44) for n in ((1 << power) - 1, 1 << power, (1 << power) + 1)]
    values = sorted({*range(3_000), *edges, -5})
    rows = spark.createDataFrame([(value,) for value in values], "ms bigint")

    binned = rows.selectExpr("ms", f"{BIN_SQL} as bin").collect()

    assert {row.ms: row.bin for row in binned} == {value: bin_of(value) for value in values}


def fill(node: SparkNode, topic: str) -> None:
    """Publish some of everything: keys, none, tombstones, repeats, for later, and a dead letter."""
    client = node.client
    client.topics.create(topic, partitions=2)
    for i in range(6):
        client.publish(topic, b"12345", key=b"hot", message_id=b"hot%d" % i, partition=0)
    client.publish(topic, None, key=b"cold", partition=0)
    client.publish(topic, b"1", partition=1)
    client.publish(topic, b"1", key=HOSTILE, partition=1)
    for _ in range(3):
        client.publish(topic, b"x", message_id=b"twice", allow_duplicate=True, partition=1)
    client.publish(topic, b"soon", key=b"timed", at="+300ms", partition=1)
    for hours in (2, 3):
        client.publish(topic, b"later", at=f"+{hours}h", partition=1)
    with client.subscribe(topic, group="readers") as messages:
        for count, message in enumerate(messages, 1):
            if message.key == b"hot":
                message.reject()
            else:
                message.ack()
            if count == 13:
                break


@pytest.fixture
def filled(spark: Any, own_node: SparkNode, topic: str) -> tuple[SparkNode, str]:
    fill(own_node, topic)
    while own_node.client.dead_letters.count(topic) < 6:
        pass
    return own_node, topic


def test_the_figures_are_what_is_in_the_topic(spark, filled, tmp_path):
    node, topic = filled
    node.client.publish(topic, b"unread", partition=0)
    published_ms = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 == published_ms:
        pass  # the group is behind by a millisecond at least

    summary = made(spark, node, tmp_path / "report.html")

    said = json.loads(json.dumps(summary.plain()))
    (figures,) = said["report"]["topics"]
    assert figures["topic"] == topic
    assert summary.rows == figures["messages"] == 14
    assert (figures["tombstones"], figures["keyless"], figures["keys"]) == (1, 5, 4)
    assert figures["value_bytes"] == 6 * 5 + 1 + 1 + 3 + 4 + 6
    assert figures["duplicates"] == 2
    assert [each["messages"] for each in figures["partitions"]] == [8, 6]
    assert [each["keys"] for each in figures["partitions"]] == [2, 2]
    assert figures["hot_keys"][0] == {"key": "hot", "partition": 0, "messages": 6}
    assert sum(slot["messages"] for slot in figures["slots"]) == 14
    assert sum(slot["fired"] for slot in figures["slots"]) == 1
    late = figures["lateness"]
    assert late["messages"] == 1
    assert late["early"] == 0
    assert late["p50_ms"] == late["max_ms"] >= 0
    assert sum(each["messages"] for each in figures["scheduled"]) == 2
    (dead,) = figures["dead"]
    assert (dead["group"], dead["reason"], dead["messages"]) == ("readers", "rejected", 6)
    (group,) = figures["groups"]
    assert (group["group"], group["members"]) == ("readers", 0)
    assert group["lag"] >= 1
    assert group["behind_ms"] > 0
    page = (tmp_path / "report.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_a_report_looks_only_at_the_time_it_is_told(spark, filled, tmp_path):
    node, topic = filled

    summary = made(
        spark, node, tmp_path / "a.html", topics=(topic,), until="2020-01-01T00:00Z", since=""
    )

    assert summary.rows == 0
    assert "All times are UTC" in (tmp_path / "a.html").read_text()


def test_a_dry_run_writes_no_page(spark, node, topic, tmp_path):
    node.client.topics.create(topic)

    summary = made(spark, node, tmp_path / "a.html", topics=(topic,), is_dry_run=True)

    assert summary.is_dry_run
    assert summary.facts["page"] is None
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_is_refused(spark, node, tmp_path):
    with pytest.raises(UnknownTopic, match="nowhere"):
        made(spark, node, tmp_path / "a.html", topics=("nowhere",))
    with pytest.raises(BadInput, match="no folder"):
        made(spark, node, tmp_path / "nowhere" / "a.html")
    with pytest.raises(BadInput, match="before until"):
        made(spark, node, tmp_path / "a.html", since="1h", until="2h")
