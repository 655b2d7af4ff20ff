"""pandas is never imported, installed or not: it would make the first message wait for seconds."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.nodes import running

SRC = Path(__file__).parents[2] / "src" / "waterclock"
ASKS_FOR_PANDAS = re.compile(
    r"\bpa\.(array|scalar|asarray|infer_type|repeat)\(|\.to_numpy\(|from_py(list|dict)\(|\.group_by\("
)

TRAP = """\
import os
open(os.environ["PANDAS_TRAP"], "a").write("imported\\n")
raise ImportError("it must not be asked for")
"""

CLIENT = """\
import asyncio
import waterclock
from waterclock import Message

async def main():
    async with waterclock.connect() as client:
        await client.publish("orders", b"one", key=b"k", headers={"a": b"2"}, message_id=b"i")
        await client.publish_many("orders", [Message(b"two", headers={}), Message(None, key=b"k")])
        a = {"a": b"1"}
        later = await client.publish("orders", b"later", at="+1h", expires="+1d", headers=a)
        other = await client.publish("orders", b"other", at="+1h", key=b"k")
        await client.publish("orders", b"soon", at="+1ms", key=b"k")
        await client.reschedule("orders", later, at="+2h")
        await client.cancel("orders", other)
        assert (await client.cancel_where("orders", headers=a)).cancelled == 1
        async with client.subscribe("orders", group="g") as messages:
            for _ in range(4):
                message = await anext(messages)
                message.key, message.headers, message.due
                message.reject() if message.value == b"one" else message.ack()
        assert [each.value async for each in client.dead_letters.list("orders")] == [b"one"]
        assert await client.dead_letters.redrive("orders") == 1
        assert [each.value async for each in client.replay("orders")]
        assert (await client.fetch("orders", 0, 0)).table().num_rows
        await client.streams.send_and_store("talk", "hello")

asyncio.run(main())
"""


@pytest.fixture
def trap(tmp_path, monkeypatch):
    """Return the file that tells whether any process that begins now has asked for pandas."""
    (tmp_path / "trap" / "pandas").mkdir(parents=True)
    (tmp_path / "trap" / "pandas" / "__init__.py").write_text(TRAP)
    report = tmp_path / "report"
    monkeypatch.setenv("PANDAS_TRAP", str(report))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "trap"))
    return report


def test_the_trap_catches(trap):
    subprocess.run([sys.executable, "-c", "import pyarrow; pyarrow.array([1])"], check=True)

    assert trap.exists()


def test_neither_node_nor_client_nor_command_line_imports_pandas(trap, tmp_path):
    with running(tmp_path / "data") as node:
        environment = os.environ | {"WATERCLOCK_ADDRESS": node.address}
        for command in (["-c", CLIENT], ["-m", "waterclock", "publish", "orders", "hello"]):
            done = subprocess.run(
                [sys.executable, *command], env=environment, capture_output=True, text=True
            )
            assert (done.returncode, done.stderr) == (0, "")

    assert not trap.exists()


def test_no_code_of_ours_asks_arrow_for_what_asks_for_pandas():
    found = [
        f"{file.relative_to(SRC)}:{number}: {line.strip()}"
        for file in SRC.rglob("*.py")
        if file.relative_to(SRC).parts[0] not in ("spark", "testing")
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if ASKS_FOR_PANDAS.search(line)
    ]

    assert found == []
