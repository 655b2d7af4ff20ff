"""docs/http.md keeps its word: it names every path. Its examples are run in tests/docs."""

import re
from pathlib import Path

from tests.server.http_client import raw_client
from tests.server.served import running_server
from waterclock.model.sections import ServerConfig

PAGE = Path(__file__).parents[2] / "docs" / "http.md"


async def test_every_path_is_named(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        described = (await client.get("/openapi.json")).json()
        offered = {
            f"{method.upper()} {path}"
            for path, methods in described["paths"].items()
            for method in methods
            if not path.removeprefix("/api/v1").startswith("/streams")
        }
        named = set(re.findall(r"`((?:GET|POST|PUT|PATCH|DELETE) /[^`]*)`", PAGE.read_text()))

        assert named == offered


async def test_pages_that_may_ask_are_configured(tmp_path):
    server = ServerConfig(cors_origins=("https://a.example", "https://b.example"))
    async with (
        running_server(tmp_path, server=server) as it,
        raw_client(it.server.http_port) as client,
    ):
        asked = b"GET /node HTTP/1.1\r\nHost: localhost\r\nOrigin: https://%b.example\r\n\r\n"
        friend = await client.ask(asked % b"b")
        stranger = await client.ask(asked % b"c")

        assert friend.headers["access-control-allow-origin"] == "https://b.example"
        assert "access-control-allow-origin" not in stranger.headers
