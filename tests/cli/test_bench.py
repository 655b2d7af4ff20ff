"""`bench` measures a node, and leaves no topic behind."""

import pytest

from tests.cli.terminals import at_terminal


@pytest.fixture
def topics(ask):
    """Return a function that lists the topics of the node that are the bench's."""
    return lambda: [t["topic"] for t in ask("topics")["topics"] if t["topic"].startswith("bench-")]


def test_publishing_is_measured(ask, topics):
    found = ask("bench", "publish", "--messages", 2_500, "--batch", 1_000, "--in-flight", 2)

    assert (found["what"], found["messages"], found["size"]) == ("published", 2_500, 128)
    assert found["messages_per_s"] > 0
    assert list(found["latency_ms"]) == ["p50", "p90", "p99", "p99.9", "max"]
    assert topics() == []


@pytest.mark.parametrize("options", [[], ["--each"], ["--partitions", 2]])
def test_consuming_is_measured(ask, topics, options, monkeypatch):
    monkeypatch.setattr("waterclock.cli.commands.bench.LATENCY_MESSAGES", 20)

    found = ask("bench", "consume", "--messages", 2_500, *options)

    assert (found["what"], found["messages"]) == ("consumed", 2_500)
    assert found["latency_ms"]["p50"] <= found["latency_ms"]["max"]
    assert topics() == []


def test_a_person_sees_the_rate_and_a_table(node):
    command = ("-m", "waterclock", "bench", "publish", "--messages", 5_000, "-a", node.address)

    seen = at_terminal(*command)

    assert seen.exit_code == 0
    assert "5,000 messages of 128 B in batches of 1,000, 4 in flight, 1 partition" in seen.screen
    assert "publishing" in seen.screen
    assert "5 times" in seen.screen


def test_a_mistake_is_told_in_one_line(call, topics):
    """Also one that several tasks make at once."""
    result = call("bench", "publish", "--size", 12_000_000, "--batch", 1, "--messages", 3)

    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert "exceeds its limit of" in result.stderr
    assert result.stderr.count("\n") == 1
    assert topics() == []
