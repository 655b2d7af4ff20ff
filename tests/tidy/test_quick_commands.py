"""Commands that ask a node once load little: what is heavy would take longer than all they do."""

import subprocess
import sys

import pytest

HEAVY = {"asyncio", "grpc", "numpy", "pandas", "pyarrow", "pydantic", "rich", "uvloop"}

LINES = [
    "publish orders hello",
    "publish orders hello --at +5m --key k -H a=b --id x --partition 0 --json",
    "publish orders hello --cron @daily",
    "send chat hello",
    "receive chat --timeout 1s --limit 2",
    "topics",
    "topics create orders --partitions 4",
    "groups list",
    "groups seek orders g --to earliest --yes",
    "schedule list orders --limit 3",
    "schedule cancel orders id --yes",
    "schedule repeats",
    "dlq list orders",
    "streams resize chat 5",
    "replays",
    "cluster status",
    "cluster events",
]
PARTS = [
    "waterclock.client.admin",
    "waterclock.client.cluster",
    "waterclock.client.schedule",
    "waterclock.client.streams.streams",
    "waterclock.client.unary.http1",
]

PROGRAM = """
import sys, importlib
from waterclock.cli.app import app

heavy = {heavy!r}
for line in {lines!r}:
    try:
        app([*line.split(), "--address", "127.0.0.1:1"])
    except SystemExit:
        pass
    if found := heavy & {{name.partition(".")[0] for name in sys.modules}}:
        sys.exit(f"`waterclock {{line}}` loads {{sorted(found)}}")
for part in {parts!r}:
    importlib.import_module(part)
    if found := heavy & {{name.partition(".")[0] for name in sys.modules}}:
        sys.exit(f"{{part}} loads {{sorted(found)}}")
"""


def loaded(lines: list[str], parts: list[str], heavy: set[str]) -> str:
    """Return what is said of the first of some commands and modules that loads something heavy."""
    program = PROGRAM.format(lines=lines, parts=parts, heavy=heavy)
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    return "\n".join(line for line in run.stderr.splitlines() if not line.startswith("error: no "))


def test_a_command_that_asks_once_loads_nothing_heavy():
    assert loaded(LINES, PARTS, HEAVY) == ""


@pytest.mark.parametrize(
    ("lines", "parts", "said"),
    [
        (["publish orders -f /dev/null"], [], "`waterclock publish orders -f /dev/null` loads"),
        ([], ["waterclock.client.client"], "waterclock.client.client loads"),
    ],
)
def test_something_heavy_is_found(lines, parts, said):
    assert said in loaded(lines, parts, HEAVY)


def test_help_and_version_load_no_command():
    program = """
import sys
from waterclock.cli.app import app
for word in ("--help", "--version"):
    try:
        app([word])
    except SystemExit:
        pass
print(*sorted(n for n in sys.modules if n.startswith("waterclock.cli.commands")), file=sys.stderr)
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert run.stderr.split() == []
    assert "publish" in run.stdout
