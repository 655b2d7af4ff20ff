"""docs/http.md keeps its word: it names every path, and its examples run."""

import json
import re
import shlex
from pathlib import Path
from typing import NamedTuple

from tests.server.http_client import raw_client
from tests.server.served import run, serving
from waterclock.model.sections import ServerConfig

PAGE = Path(__file__).parents[2] / "docs" / "http.md"


class Example(NamedTuple):
    """A line for curl."""

    method: str
    path: str
    body: str
    is_endless: bool


def examples() -> list[Example]:
    found = []
    for block in re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            words = shlex.split(line)
            (address,) = [word for word in words if word.startswith("localhost:8080")]
            body = words[words.index("-d") + 1] if "-d" in words else ""
            method = words[words.index("-X") + 1] if "-X" in words else "POST" if body else "GET"
            path = address.removeprefix("localhost:8080")
            found.append(Example(method, path, body, "-N" in words))
    return found


def test_every_path_is_named(tmp_path):
    async def test():
        async with serving(tmp_path) as it, raw_client(it.server.http_port) as client:
            described = (await client.get("/openapi.json")).json()
            offered = {
                f"{method.upper()} {path}"
                for path, methods in described["paths"].items()
                for method in methods
                if not path.startswith("/streams")
            }
            named = set(re.findall(r"`((?:GET|POST|PUT|PATCH|DELETE) /[^`]*)`", PAGE.read_text()))

            assert named == offered

    run(test)


def test_the_examples_run(tmp_path):
    async def test():
        async with serving(tmp_path) as it:
            for method, path, body, is_endless in examples():
                async with raw_client(it.server.http_port) as client:
                    size = f"Content-Length: {len(body)}\r\n" if body else ""
                    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\n{size}\r\n"
                    client.send((head + body).encode())
                    status, headers = await client.head()
                    assert 200 <= status < 300, (method, path, status)
                    if is_endless:
                        chunks = [await client.chunk() for _ in range(2)]
                        assert b"data: {" in chunks[1]
                    elif headers.get("transfer-encoding") == "chunked":
                        last = b""
                        while chunk := await client.chunk():
                            last = chunk
                        assert json.loads(last.splitlines()[-1])["finished"]

    run(test)


def test_pages_that_may_ask_are_configured(tmp_path):
    async def test():
        server = ServerConfig(cors_origins="https://a.example, https://b.example")
        async with (
            serving(tmp_path, server=server) as it,
            raw_client(it.server.http_port) as client,
        ):
            asked = b"GET /node HTTP/1.1\r\nHost: x\r\nOrigin: https://%b.example\r\n\r\n"
            friend = await client.ask(asked % b"b")
            stranger = await client.ask(asked % b"c")

            assert friend.headers["access-control-allow-origin"] == "https://b.example"
            assert "access-control-allow-origin" not in stranger.headers

    run(test)
