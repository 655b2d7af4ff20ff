"""docs/streams.md keeps its word: its commands are answered as it says, and its program runs."""

import asyncio
import json
import re
import shlex
from http.client import HTTPConnection
from pathlib import Path
from typing import NamedTuple

from tests.client.fake_node import run
from tests.client.programs import output_beside_node
from tests.server.served import serving

PAGE = Path(__file__).parents[2] / "docs" / "streams.md"
EVENTS = "server-sent events, each with its token as id"


class Command(NamedTuple):
    """A line with curl, and what is said about its answer."""

    words: list[str]
    status: int
    said: str


def block(kind: str) -> str:
    found = re.search(rf"^```{kind}\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def commands() -> list[Command]:
    found = []
    for line in block("sh").splitlines():
        if line.startswith("curl"):
            command, _, comment = line.partition(" # ")
            status, _, said = comment.strip().partition(" ")
            found.append(Command(shlex.split(command), int(status), said))
    return found


def ask(port: int, command: Command, token: str) -> tuple[int, dict[str, object]]:
    """Do what curl would; return the status and the answer, of events the first."""
    words = [word for word in command.words[1:] if word != "-N"]
    method, data = "GET", None
    if "-d" in words:
        at = words.index("-d")
        method, data = "POST", words[at + 1]
        del words[at : at + 2]
    if "-X" in words:
        at = words.index("-X")
        method = words[at + 1]
        del words[at : at + 2]
    (address,) = words
    connection = HTTPConnection("127.0.0.1", port)
    try:
        connection.request(method, address.removeprefix("$H").replace("$TOKEN", token), data)
        answer = connection.getresponse()
        if command.said == EVENTS:
            lines = iter(answer.readline, b"")
            text = next(line for line in lines if line.startswith(b"data: ")).removeprefix(b"data:")
        else:
            text = answer.read()
        return answer.status, json.loads(text or b"{}")
    finally:
        connection.close()


def test_the_commands_are_answered_as_the_page_says(tmp_path):
    def work(port: int) -> None:
        token = ""
        for command in commands():
            status, answer = ask(port, command, token)
            token = str(answer.get("resumeToken", token))
            assert status == command.status, command
            if command.said != EVENTS:
                assert " ".join(answer) == command.said, command

    async def test() -> None:
        async with serving(tmp_path) as served:
            await asyncio.to_thread(work, served.server.addresses.http_port)

    assert len(commands()) >= 10
    run(test())


def test_the_program_prints_what_the_page_says(tmp_path):
    assert output_beside_node(["-c", block("python")], tmp_path) == block("text")
