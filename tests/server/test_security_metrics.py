"""What a secure node counts of those it refuses, and what it shows of its certificates."""

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.server.grpc_secure import secure_server
from tests.server.secure_serving import secure_node
from tests.server.served import failure
from waterclock.model.errors import BadInput, CapacityReached, Forbidden, NotAuthenticated
from waterclock.model.units import DAY_MS
from waterclock.security.certificates import LEAF_DAYS
from waterclock.security.quotas import Quotas, Usage
from waterclock.server.refusals import Refusals
from waterclock.v1 import admin_pb2 as admin

GET_TOPIC = "/waterclock.v1.Admin/GetTopic"


def test_refusals_over_http_are_counted_by_why_and_probes_are_none(tmp_path: Path) -> None:
    with secure_node(tmp_path / "node") as node:
        reader = node.add("billing", Quotas(topics=1), publish="a.*", read="a.*")
        answers = [
            node.ask("GET", "/health/ready", None).status,
            node.ask("GET", "/topics/a.b", None).status,
            node.ask("POST", "/topics", "Bearer forged", {"topic": "a.b"}).status,
            node.ask("GET", "/topics/b.c", reader).status,
            node.ask("POST", "/topics/a.b/messages", reader, {"value": "1"}).status,
            node.ask("POST", "/topics/a.c/messages", reader, {"value": "1"}).status,
        ]
        assert answers == [200, 401, 401, 403, 201, 429]
        hasty = node.add("hasty", Quotas(requests_per_s=1), read="a.*")
        while node.ask("GET", "/topics/a.b", hasty).status != 429:
            pass
        text = node.ask("GET", "/metrics", node.admin).body.decode()

    shown = {
        (sample.name.removeprefix("waterclock_"), *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert shown["authentications_failed_total", "http"] == 2
    assert shown["authentications_failed_total", "grpc"] == 0
    assert shown["denied_total", "http", "read"] == 1
    assert shown["denied_total", "http", "publish"] == 0
    assert shown["over_quota_total", "http", "topics"] == 1
    assert shown["over_quota_total", "http", "requests_per_s"] == 1
    assert shown["reloads_total", "done", "secure_folder"] >= 1
    assert shown["reloads_total", "failed", "secure_folder"] == 0
    left_ms = shown["certificate_expiry_seconds", "node"] * 1_000 - node.server.access.now_ms()
    assert LEAF_DAYS - 1 < left_ms / DAY_MS <= LEAF_DAYS
    assert shown["certificate_expiry_seconds", "ca"] > shown["certificate_expiry_seconds", "node"]
    assert "billing" not in text


async def test_refusals_over_grpc_are_counted(tmp_path):
    async with secure_server(tmp_path) as it:
        reader = await it.add("reader", read="a.*")
        request = admin.GetTopicRequest(topic="b")
        await failure(it.unary(GET_TOPIC, request, None))
        await failure(it.unary(GET_TOPIC, request, reader))
        refusals = it.server.access.refusals

        assert refusals.unauthenticated == {"grpc": 1, "http": 0}
        assert +refusals.denied == {("grpc", "read"): 1}


def test_a_refusal_counts_once_and_other_errors_do_not():
    refusals = Refusals()
    usage = Usage("billing", Quotas(topics=1, connections=1), now_ms=0)
    usage.open_connection()
    with pytest.raises(CapacityReached) as topics:
        usage.check_count("topics", 2)
    with pytest.raises(Exception, match="quota") as connections:
        usage.open_connection()
    errors = [
        topics.value,
        connections.value,
        CapacityReached("topics", 1),
        CapacityReached("bytes of all streams", 1),
        ExceptionGroup("in a task group", [Forbidden("admin", "the node", principal="billing")]),
        NotAuthenticated("no"),
        BadInput("no"),
        ValueError("a bug"),
    ]
    for error in errors:
        refusals.note(error, "grpc")

    assert +refusals.over_quota == {("grpc", "topics"): 1, ("grpc", "connections"): 1}
    assert +refusals.denied == {("grpc", "admin"): 1}
    assert refusals.unauthenticated == {"grpc": 1, "http": 0}
