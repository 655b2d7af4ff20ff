"""docs/burrow_from_confluent.md names what there is."""

import inspect
import re
from pathlib import Path

from waterclock import burrow
from waterclock.burrow.runtime.metrics import PoolMetrics

PAGE = Path(__file__).parents[2] / "docs" / "burrow_from_confluent.md"


def ours():
    """Give what stands in the right column of the table of options."""
    rows = re.findall(r"^\| .* \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    return " ".join(rows)


def test_options_on_the_page_are_options_of_a_pool():
    options = set(inspect.signature(burrow.Pool).parameters)
    named = set(re.findall(r"`([a-z_]+)=", ours()))

    assert {"workers", "order", "commit_every", "grace_s"} <= named
    assert named <= options


def test_defaults_on_the_page_are_the_defaults():
    parameters = inspect.signature(burrow.Pool).parameters
    said = re.findall(
        r"`(commit_every_s|commit_every|retry_delay_s|retry_delay_s_max|max_retries|grace_s)"
        r"=([\d_.]+)`",
        ours(),
    )

    assert len({name for name, _ in said}) == 6
    for name, value in said:
        if (name, value) != ("grace_s", "0"):  # what to set for their other way to close
            assert parameters[name].default == float(value), name


def test_classes_and_metrics_on_the_page_are_there():
    text = PAGE.read_text()
    classes = set(re.findall(r"\b(Kafka[A-Z]\w+|Permanent\w+|Output|Failed)\b", text))
    metrics = {family.name for family in PoolMetrics().collect()}

    assert {"KafkaTransactions", "KafkaDeadLetters", "PermanentError"} <= classes
    assert classes <= set(burrow.__all__)
    assert set(re.findall(r"`(burrow_\w+)`", text)) <= metrics
