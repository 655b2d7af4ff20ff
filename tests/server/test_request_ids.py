"""What is logged while a request is answered bears its id, and nothing else does."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from tests.server.http_client import raw_client
from tests.server.served import running_server
from waterclock.runtime.structured_log import REQUEST_ID, JsonFormatter, LateRequestId
from waterclock.server.calls import REQUEST_ID_KEY
from waterclock.v1 import admin_pb2 as pb


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


async def test_a_call_over_grpc_is_known_by_its_id_and_told_it_when_something_is_logged(
    tmp_path, lines
):
    async with running_server(tmp_path) as it:
        made = it.admin.CreateTopic(
            pb.CreateTopicRequest(topic="orders"), metadata=((REQUEST_ID_KEY, "trace-17"),)
        )
        await made
        await it.admin.CreateTopic(pb.CreateTopicRequest(topic="others"))
        quiet = it.admin.GetTopic(
            pb.GetTopicRequest(topic="orders"), metadata=((REQUEST_ID_KEY, "trace-18"),)
        )
        await quiet
        failed = it.admin.GetTopic(
            pb.GetTopicRequest(topic="none"), metadata=((REQUEST_ID_KEY, "trace-19"),)
        )
        forged = it.admin.GetTopic(
            pb.GetTopicRequest(topic="none"), metadata=((REQUEST_ID_KEY, "two words"),)
        )
        returned = [
            dict(await call.trailing_metadata() or ()).get(REQUEST_ID_KEY)
            for call in (made, quiet, failed, forged)
        ]

    found = {
        each["fields"]["topic"]: each.get("request_id")
        for each in map(json.loads, lines.getvalue().splitlines())
        if each["event"] == "topic_made"
    }
    assert found.pop("orders") == "trace-17"
    assert found.pop("others") not in (None, "", "trace-17")
    assert returned[:3] == ["trace-17", None, "trace-19"], "an id that nobody needs is not made"
    assert returned[3] not in (None, "", "two words")


async def test_what_goes_on_after_a_call_keeps_nothing_of_it_but_its_id():
    given = LateRequestId(str, "trace-17")
    late = LateRequestId(str, "trace-18")
    late.call = None

    assert (given.known, given.text, given.known) == ("", "trace-17", "trace-17")
    assert late.text not in ("", "trace-18")
    assert late.text == late.known


async def test_what_a_request_leaves_running_is_no_part_of_it(tmp_path):
    seen: list[object] = []

    async def work() -> None:
        seen.append(REQUEST_ID.get())

    async with running_server(tmp_path) as it:
        token = REQUEST_ID.set("trace-17")
        await it.node.spawn(work())
        REQUEST_ID.reset(token)

    assert seen == [""]
