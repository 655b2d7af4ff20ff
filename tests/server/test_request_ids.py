"""What is logged while a request is answered bears its id, and nothing else does."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from tests.server.http_client import raw_client
from tests.server.served import running_server
from waterclock.runtime.structured_log import REQUEST_ID, JsonFormatter


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    logger, written = logging.getLogger("waterclock"), io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(JsonFormatter())
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield written
    logger.removeHandler(handler)
    logger.setLevel(before)


async def test_a_request_over_http_is_known_by_its_id(tmp_path, lines):
    body = b'{"topic": "orders"}'
    head = b"POST /topics HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: trace-17\r\n"
    head += b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        assert (await client.ask(head + body)).status == 201
        assert (await client.post("/topics", {"topic": "others"})).status == 201

    found = {
        each["fields"]["topic"]: each.get("request_id")
        for each in map(json.loads, lines.getvalue().splitlines())
        if each["event"] == "topic_made"
    }
    assert found.pop("orders") == "trace-17"
    assert found.pop("others") not in (None, "trace-17")


async def test_what_a_request_leaves_running_is_no_part_of_it(tmp_path):
    seen: list[str] = []

    async def work() -> None:
        seen.append(REQUEST_ID.get())

    async with running_server(tmp_path) as it:
        token = REQUEST_ID.set("trace-17")
        await it.node.spawn(work())
        REQUEST_ID.reset(token)

    assert seen == [""]
