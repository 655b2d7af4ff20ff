"""Every page and every example runs from top to bottom, and a second time on the same node.

They run from the wheel in a new environment, as a stranger would have it. What starts a JVM is too
slow for every day, as is a second time for the longest pages: `make docs-run` runs both, and here
Spark's page is run by tests/spark.
"""

import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.docs.pages import EXAMPLES, PAGES, ROOT, Block, blocks, fences, hidden_commands
from waterclock.cli.app import app as cli

WITH_SPARK = bool(os.environ.get("WATERCLOCK_DOCS_SPARK"))
LONG = {"api.md", "backup.md", "cluster.md", "security.md"}
"""Pages of dozens of commands or several nodes, each of which is a process: half of the time of all
pages. Read once here, and twice by `make docs-run`."""
NOT_RUN_MAX = 3
"""Blocks that need a person. Each says why on its page; more of them would be a habit."""
DEPLOYED = {"docs/deploy.md", "docs/encryption_at_rest.md"}
"""Pages about machines as they are set up: tests/deploy runs what is there, without the machine."""

ORDERS = 3
"""What somebody has published to Kafka's topic `orders` each time a page is read."""

PRINTED = {
    "blocking_worker.py": """\
hello b'ada'
hello b'grace'
left over: 0
""",
    "bulk_load.py": """\
published: 100000
sum: 4999950000
""",
    "burrow_exactly_once.py": "receipts: 1000\n",
    "burrow_kafka.py": """\
billed: 999 each once: True
each customer in order: True
dead letters: 1
""",
    "burrow_waterclock.py": """\
billed: 999 each customer in order: True
dead: b'777'
left over: 0
""",
    "dispatch_handler.py": "",
    "dispatch_readings.py": """\
written: 999 each once: True
dead: PermanentError: no reading in it
""",
    "llm_tokens.py": """\
57 tokens over 4 connections
each once, in order: True
""",
    "reminders.py": """\
moved: moved
cancelled: cancelled
planned: b'tea'
planned: b'stand-up'
repeats: 0 3 * * * Europe/Berlin
due now: b'tea' early: False
too late: already fired
""",
    "spark_tour.py": """\
Lima: 20 orders, 61000 cents
Oslo: 20 orders, 57000 cents
Rome: 20 orders, 59000 cents
6 counts wait in tour-orders-reminders until tomorrow
""",
    "worker.py": """\
done: b'easy' at attempt 1
rejected: b'nonsense' nobody can do this
failed: b'flaky' try again
done: b'flaky' at attempt 2
dead: b'nonsense' rejected
""",
}
ARGUMENTS = {"llm_tokens.py": ["--headless"]}


def needs_spark(page: Path, block: Block) -> bool:
    """Say if a block starts a JVM."""
    if block.kind == "sh":
        return "waterclock pipeline" in block.text
    return page.name == "spark.md" or "waterclock.spark" in block.text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_runs_and_runs_again(page, reader, broker):
    todo = [each for each in blocks(page.read_text()) if WITH_SPARK or not needs_spark(page, each)]
    starting = {"security.md": reader.with_own_node, "cluster.md": reader.with_own_cluster}
    its = starting.get(page.name, lambda: reader)()
    for _ in range(2 if WITH_SPARK or page.name not in LONG else 1):
        if "localhost:9092" in page.read_text():
            broker.publish("orders", ORDERS)
        its.read(page.name, todo)


@pytest.mark.parametrize("name", [n for n in PRINTED if WITH_SPARK or n != "spark_tour.py"])
def test_an_example_prints_the_same_twice(name, reader):
    for _ in range(2):
        said = reader.run([f"examples/{name}", *ARGUMENTS.get(name, [])])
        assert said == PRINTED[name]


def test_commands_that_start_spark_are_understood():
    """Too slow to be run here, they are at least no mistakes."""
    app = typer.main.get_command(cli)
    commands = [
        command
        for page in PAGES
        for block in blocks(page.read_text())
        if block.kind == "sh"
        for command in re.findall(r"waterclock pipeline [^&#\n]*", block.text)
    ]

    assert len(commands) >= 5
    for command in commands:
        parse(app, shlex.split(command)[1:])


def test_a_mistake_in_a_command_that_starts_spark_is_found():
    app = typer.main.get_command(cli)

    with pytest.raises(Exception, match="--nonsense"):
        parse(app, ["pipeline", "report", "orders", "--nonsense"])
    with pytest.raises(Exception, match="rapport"):
        parse(app, ["pipeline", "rapport"])


def parse(command: Any, words: list[str]) -> None:
    """Read words as a command line, and do nothing."""
    context = command.make_context(command.name, list(words))
    if hasattr(command, "resolve_command"):
        _, inner, rest = command.resolve_command(context, context._protected_args + context.args)
        parse(inner, rest)


def test_every_example_is_run():
    assert set(PRINTED) == {file.name for file in EXAMPLES}


def test_blocks_that_are_not_run_are_few_and_say_why():
    unread = {
        f"{page.relative_to(ROOT)}:{fence.line}": fence.not_run
        for page in PAGES
        if str(page.relative_to(ROOT)) not in DEPLOYED
        for fence in fences(page.read_text())
        if fence.not_run is not None
    }

    assert len(unread) <= NOT_RUN_MAX, unread


def test_no_commands_hide_in_blocks_without_a_language():
    assert {
        page.name: lines for page in PAGES if (lines := hidden_commands(page.read_text()))
    } == {}
