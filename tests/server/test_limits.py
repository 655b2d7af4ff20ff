"""One set of limits: what fits exactly is taken, and one more is refused, the same everywhere.

Each row is asked over HTTP, over gRPC and with the client, of a node with the usual limits and of
one with others.
"""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest
from grpc.aio import AioRpcError

from tests.kit.clock import ManualClock
from tests.server.http_client import raw_client, until
from tests.server.served import Served, running_server
from waterclock.client.client import connect
from waterclock.model.errors import WaterclockError
from waterclock.model.limits import Limits
from waterclock.model.message import Message
from waterclock.model.names import NAME_CHARS_MAX
from waterclock.model.units import DAY_MS, KIB
from waterclock.server.http.input import LIMIT
from waterclock.server.rest.models import MessageRequest, RequestModel
from waterclock.v1 import broker_pb2 as pb

NOW_MS = 1_800_000_000_000
OTHERS = Limits(
    message_bytes_max=20 * KIB,
    message_id_bytes_max=100,
    key_bytes_max=300,
    headers_max=3,
    header_bytes_max=500,
    due_horizon_ms_max=10 * DAY_MS,
)
ID = b"an id"


@dataclass
class Asked:
    """A message to a topic."""

    topic: str = "t"
    message_id: bytes = ID
    key: bytes | None = None
    value: bytes = b""
    headers: dict[str, bytes] | None = None
    due_ms: int | None = None


def headers(count: int, size: int) -> dict[str, bytes]:
    """Return so many headers of so many bytes in all."""
    names = [f"h{number:04}" for number in range(count)]
    made = dict.fromkeys(names, b"")
    made[names[0]] = b"v" * (size - 5 * count)
    return made


def rows(limits: Limits) -> dict[str, Callable[[int], Asked]]:
    """Return what is limited: a message that is so much over the limit, 0 being just at it."""
    return {
        "topic": lambda over: Asked(topic="t" * (NAME_CHARS_MAX + over)),
        "message_id": lambda over: Asked(message_id=b"i" * (limits.message_id_bytes_max + over)),
        "key": lambda over: Asked(key=b"k" * (limits.key_bytes_max + over)),
        "headers": lambda over: Asked(headers=headers(limits.headers_max + over, 400)),
        "header bytes": lambda over: Asked(headers=headers(2, limits.header_bytes_max + over)),
        "message bytes": lambda over: Asked(
            value=b"v" * (limits.message_bytes_max - len(ID) + over)
        ),
        "due": lambda over: Asked(due_ms=NOW_MS + limits.due_horizon_ms_max + over),
    }


NAMES = list(rows(Limits()))


async def over_http(it: Served, asked: Asked, **fields: Any) -> str:
    said: dict[str, Any] = {"value": asked.value.decode(), "messageId": asked.message_id.decode()}
    if asked.key is not None:
        said["key"] = asked.key.decode()
    if asked.headers is not None:
        said["headers"] = {name: value.decode() for name, value in asked.headers.items()}
    if asked.due_ms is not None:
        said["dueMs"] = asked.due_ms
    said |= fields
    async with raw_client(it.server.http_port) as client:
        answer = await client.post(f"/topics/{asked.topic}/messages", said)
    assert answer.status in (201, 400, 413), answer
    assert len(answer.body) < 1_000
    return "stored" if answer.status == 201 else str(answer.json()["error"])


async def over_grpc(it: Served, asked: Asked) -> str:
    message = pb.Message(
        message_id=asked.message_id,
        value=asked.value,
        key=asked.key,
        due_ms=asked.due_ms,
        headers=asked.headers or {},
    )
    try:
        await it.broker.Publish(pb.PublishRequest(topic=asked.topic, message=message))
    except AioRpcError as error:
        return str(dict(error.trailing_metadata())["waterclock-error"])
    return "stored"


async def with_client(it: Served, asked: Asked) -> str:
    message = Message(
        asked.value,
        key=asked.key,
        message_id=asked.message_id,
        headers=asked.headers,
        due_ms=asked.due_ms,  # type: ignore[arg-type]
    )
    async with connect(it.server.addresses.grpc) as client:
        try:
            await client.publish_many(asked.topic, [message])
        except WaterclockError as error:
            return type(error).__name__
    return "stored"


WAYS: dict[str, Callable[[Served, Asked], Awaitable[str]]] = {
    "http": over_http,
    "grpc": over_grpc,
    "client": with_client,
}


@pytest.mark.parametrize("limits", [Limits(), OTHERS], ids=["usual", "others"])
@pytest.mark.parametrize("name", NAMES)
async def test_what_fits_exactly_is_taken_and_one_more_refused_the_same_way(tmp_path, name, limits):
    make = rows(limits)[name]

    async with running_server(tmp_path, clock=ManualClock(NOW_MS), limits=limits) as it:
        found = {}
        for number, (way, ask) in enumerate(WAYS.items()):
            at, over = make(0), make(1)
            if name != "message_id":
                own = b"id-%02d" % number  # as long as the others
                at, over = replace(at, message_id=own), replace(over, message_id=own)
            else:
                at = replace(at, message_id=at.message_id[:-1] + b"%d" % number)
            found[way] = await ask(it, at), await ask(it, over)
        refused = "BadInput" if name == "topic" else "LimitExceeded"
        assert found == dict.fromkeys(WAYS, ("stored", refused))


@pytest.mark.parametrize("limits", [Limits(), OTHERS], ids=["usual", "others"])
async def test_a_message_that_expires_may_have_as_many_headers_as_any(tmp_path, limits):
    async with running_server(tmp_path, clock=ManualClock(NOW_MS), limits=limits) as it:
        asked = Asked(headers=headers(limits.headers_max, limits.header_bytes_max))
        assert await over_http(it, asked, expiresIn="1h") == "stored"
        more = Asked(headers=headers(limits.headers_max + 1, 400))
        assert await over_http(it, more, expiresIn="1h") == "LimitExceeded"


async def test_a_topic_with_the_longest_name_has_dead_letters(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        name = "t" * NAME_CHARS_MAX
        assert (await client.post(f"/topics/{name}/messages", {"value": "x"})).status == 201
        [taken] = (await client.get(f"/topics/{name}/messages?group=g")).json()["messages"]
        answer = {"group": "g", "reject": [taken["lease"]]}
        assert (await client.post(f"/topics/{name}/acks", answer)).status == 200
        await until(lambda: it.node.topics.find(f"{name}.dlq"))
        await it.node.topics.get(f"{name}.dlq").partition(0).flush_queue.wait_flushed(1)
        dead_letters = await client.get(f"/topics/{name}/dead-letters")
        assert len(dead_letters.json()["deadLetters"]) == 1
        assert (await client.get(f"/topics/{name}.dlq")).status == 200


@pytest.mark.parametrize(
    ("fields", "due_ms"),
    [
        ({"delay": "36525d"}, NOW_MS + 36_525 * DAY_MS),
        ({"delay": "1000000s"}, NOW_MS + 1_000_000_000),
        ({"at": "2110-06-01T00:00:00Z"}, 4_431_024_000_000),
        ({"at": "2100-02-28T23:59:59.0001+14:00"}, 4_107_491_999_001),
    ],
)
async def test_far_times_are_taken(tmp_path, fields, due_ms):
    clock = ManualClock(NOW_MS)
    async with (
        running_server(tmp_path, clock=clock) as it,
        raw_client(it.server.http_port) as client,
    ):
        stored = await client.post("/topics/t/messages", {"value": "x", **fields})
        assert stored.status == 201, stored
        listed = (await client.get("/topics/t/scheduled")).json()["scheduled"]
        assert [message["dueMs"] for message in listed] == [due_ms]


@pytest.mark.parametrize(
    ("path", "fields", "field", "shown"),
    [
        ("/topics/t/messages", {"delay": "soon"}, "delay", "90s"),
        ("/topics/t/messages", {"at": "tomorrow-ish"}, "at", "2026-11-15T10:00:00Z"),
        ("/topics/t/messages", {"messages": [{}, {"at": "x"}]}, "messages[1].at", "2026-11-15T"),
        ("/topics/t/messages", {"valueBase64": "?"}, "valueBase64", "AAEC"),
        ("/topics", {"topic": "a b"}, "topic", "orders"),
        ("/topics/t/acks", {"group": "a/b"}, "group", "orders-eu.v2"),
        ("/topics/t/acks", {"group": "g", "ack": ["0-1"]}, "ack[0]", "0-1-0-1"),
        ("/streams/send", {"streamId": "s", "message": 1, "ttl": "x"}, "ttl", "90s"),
    ],
)
async def test_an_error_names_the_field_and_shows_what_is_accepted(
    tmp_path, path, fields, field, shown
):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        refused = await client.post(path, fields)
        assert (refused.status, refused.json()["field"]) == (400, field)
        assert shown in refused.json()["detail"]
        assert "regex" not in refused.json()["detail"]


async def test_a_recurrence_that_is_wrong_is_told_in_a_few_words(tmp_path):
    async with running_server(tmp_path) as it, raw_client(it.server.http_port) as client:
        for fields, shown in (
            ({"cron": "at noon"}, "0 9 * * MON"),
            ({"every": "often"}, "90s"),
            ({"every": "1m", "jitter": "some"}, "30s"),
        ):
            fields = {"topic": "t", "value": "x", **fields}
            refused = await client.post("/recurrences/r", fields, "PUT")
            assert refused.status == 400
            assert shown in refused.json()["detail"]
            assert len(refused.json()["detail"]) < 200


@pytest.mark.parametrize("limits", [Limits(), OTHERS], ids=["usual", "others"])
async def test_the_description_shows_the_limits_of_the_node(tmp_path, limits):
    async with running_server(tmp_path, clock=ManualClock(NOW_MS), limits=limits) as it:
        async with raw_client(it.server.http_port) as client:
            described = (await client.get("/openapi.json")).json()
        message = described["components"]["schemas"]["MessageRequest"]["properties"]

        assert message["headers"]["maxProperties"] == limits.headers_max
        assert message["messageId"]["maxLength"] == limits.message_id_bytes_max
        assert message["dueMs"]["maximum"] == NOW_MS + limits.due_horizon_ms_max
        many = described["components"]["schemas"]["PublishMany"]["properties"]["messages"]
        assert many["maxItems"] == limits.batch_messages_max
        assert LIMIT not in json.dumps(described).replace("`limits.", "")


def test_no_text_is_checked_by_a_pattern_that_clients_would_be_shown():
    def patterns(shape: type[RequestModel]) -> list[str]:
        described = msgspec.inspect.type_info(shape)
        return [] if "pattern='" not in repr(described) else [shape.__name__]

    found = [name for shape in _all(RequestModel) for name in patterns(shape)]
    assert MessageRequest in _all(RequestModel)
    assert found == []


def _all(shape: type[RequestModel]) -> list[type[RequestModel]]:
    return [shape, *(each for kind in shape.__subclasses__() for each in _all(kind))]
