"""The examples for Kafka run, and print what they should."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"
PROGRAM_S = 60
PRINTED = {
    "burrow_kafka.py": (
        ("orders", "orders.dlq"),
        """\
billed: 999 each once: True
each customer in order: True
dead letters: 1
""",
    ),
    "burrow_exactly_once.py": (("payments", "receipts"), "receipts: 1000\n"),
}


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_prints_what_it_should(broker, name, tmp_path):
    topics, printed = PRINTED[name]
    for topic in topics:
        broker.create(topic)

    run = subprocess.run(
        [sys.executable, EXAMPLES / name],
        cwd=tmp_path,
        env={**os.environ, "KAFKA": str(broker.settings["bootstrap.servers"])},
        capture_output=True,
        text=True,
        check=False,
        timeout=PROGRAM_S,
    )

    assert run.stdout == printed, run.stderr


def test_every_receipt_is_there_once(broker):
    assert sorted(broker.read("receipts", 4)) == sorted(b"paid %d" % n for n in range(1_000))
