"""The audit topic of a node: what is in it, when, and what no client can do to it."""

import asyncio
import json
import logging
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import waterclock
from tests.server.secure_serving import Answer, SecureNode, secure_node
from tests.server.served import running_server
from waterclock.model.errors import BadInput, Forbidden, StorageFull
from waterclock.model.sections import SecurityConfig
from waterclock.runtime.structured_log import TextFormatter
from waterclock.security.audit import CALLS, DENIALS, TOPIC
from waterclock.security.credential import Credential, token_of
from waterclock.security.principals import ANYONE
from waterclock.security.quotas import Quotas
from waterclock.server.access import Asked, Demand
from waterclock.server.audit import Audit
from waterclock.server.grpc.needs import METHODS
from waterclock.storage.local_log import stored_messages
from waterclock.v1 import admin_pb2 as pb
from waterclock.v1 import backup_pb2

SECRET = "wc1.eyJncnBjIjoiaHR0cCJ9.eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZGEifQ.U0VDUkVU"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureNode]:
    with secure_node(tmp_path_factory.mktemp("node")) as node:
        node.ask("POST", "/topics", node.admin, {"topic": "first"})  # until then there is no audit
        yield node


@pytest.fixture
def client(node: SecureNode) -> Iterator[waterclock.BlockingClient]:
    with connected(node, node.admin) as client:
        yield client


def connected(node: SecureNode, bearer: str) -> waterclock.BlockingClient:
    known = Credential.read(f"@{node.folder.admin_credential}")
    token = token_of(bearer.removeprefix("Bearer "))
    credential = Credential(known.grpc_address, known.http_address, known.ca_pem, token)
    return waterclock.connect_blocking(f"localhost:{node.server.grpc_port}", credential=credential)


def audit_of(node: SecureNode) -> Audit:
    audit = node.server.access.audit
    assert audit is not None
    return audit


def end_tick(node: SecureNode) -> None:
    """Have denials written that were noted by now."""
    asyncio.run_coroutine_threadsafe(audit_of(node).close(), node.loop).result()


def entries(client: waterclock.BlockingClient, partition: int) -> list[dict[str, Any]]:
    """Return what there is, read as any topic is."""
    found = [m for m in client.replay(TOPIC) if m.partition == partition]
    return [json.loads(message.value or b"") for message in found]


def facts(entry: dict[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(entry[name] for name in names)


def test_an_admin_call_is_in_the_audit_when_it_is_answered(node, client):
    made = node.ask("POST", "/topics", node.admin, {"topic": "t-http"})
    last = entries(client, CALLS)[-1]
    client.topics.delete("t-http")
    with pytest.raises(waterclock.NotFound):
        client.topics.delete("t-http")
    *_, deleted, failed = entries(client, CALLS)

    names = ("outcome", "principal", "transport", "operation", "topic", "error", "count")
    assert made.status == 201
    assert facts(last, *names) == ("allowed", "admin", "http", "createTopic", "t-http", "", 1)
    assert facts(deleted, *names)[:5] == ("allowed", "admin", "grpc", "Admin/DeleteTopic", "t-http")
    assert facts(failed, "outcome", "error") == ("failed", "UnknownTopic")
    assert {entry["address"] for entry in (last, deleted)} <= {"127.0.0.1", "::1"}
    assert last["request_id"]
    assert abs(last["time_ms"] - client.node().now_ms) < 600_000


def test_denials_are_in_the_audit_after_the_tick_with_who_what_and_where(node, client, caplog):
    caplog.set_level(logging.WARNING, "waterclock.server.audit")
    guest = node.add("guest", read="orders.*", publish="orders.*")
    assert node.ask("GET", "/topics/orders.eu", None).status == 401
    assert node.ask("POST", "/topics", "Bearer forged", {"topic": "x"}).status == 401
    assert node.ask("DELETE", "/topics/orders.eu", guest).status == 403
    connection = node.connect()
    connection.request(
        "GET", "/topics/bills", headers={"Authorization": guest, "X-Request-Id": "r-7"}
    )
    assert connection.getresponse().status == 403
    connection.close()
    with connected(node, guest) as other, pytest.raises(Forbidden):
        other.publish("bills", b"x")
    end_tick(node)

    found = {
        facts(entry, "error", "principal", "transport", "operation", "topic")
        for entry in entries(client, DENIALS)
    }
    assert {
        ("NotAuthenticated", "", "http", "getTopic", ""),
        ("NotAuthenticated", "", "http", "POST /topics", ""),
        ("Forbidden", "guest", "http", "deleteTopic", "orders.eu"),
        ("Forbidden", "guest", "http", "getTopic", "bills"),
        ("Forbidden", "guest", "grpc", "Broker/PublishStream", "bills"),
    } <= found
    (seen,) = [entry for entry in entries(client, DENIALS) if entry["request_id"] == "r-7"]
    assert (seen["outcome"], seen["topic"]) == ("denied", "bills")
    assert any("operation=deleteTopic" in line.getMessage() for line in caplog.records)


def test_a_thousand_denials_are_few_entries_and_none_is_uncounted(node, client):
    before = entries(client, DENIALS)
    audit, asked = audit_of(node), Asked("http", "getTopic", "10.0.0.9")

    async def flood() -> None:
        for number in range(1_000):
            error = Forbidden("read", "everything", principal="mallory")
            error.about = Demand("read", topic=f"t{number}")
            audit.denied(asked, error)
        await audit.close()

    asyncio.run_coroutine_threadsafe(flood(), node.loop).result()
    new = [e for e in entries(client, DENIALS)[len(before) :] if e["principal"] in ("mallory", "")]
    assert sum(entry["count"] for entry in new) == 1_000
    assert len(new) == 11
    assert new[-1]["left_out"] == {"Forbidden": 990}


def test_quota_refusals_are_counted_by_principal(node, client):
    hasty = node.add("hasty", Quotas(requests_per_s=1), read="*")
    answers = [node.ask("GET", "/topics/none", hasty).status for _ in range(5)]
    end_tick(node)

    refused = [e for e in entries(client, DENIALS) if e["error"] == "QuotaExceeded"]
    assert answers.count(429) == sum(entry["count"] for entry in refused) > 0
    assert {entry["principal"] for entry in refused} == {"hasty"}


def test_a_secret_is_not_in_the_audit_wherever_a_client_puts_it(node, client, caplog):
    caplog.set_level(logging.DEBUG)
    guest = node.add("guest", read="orders.*")
    node.ask("GET", f"/topics/{SECRET}", guest)
    node.ask("POST", f"/topics/{SECRET}?token={SECRET}", f"Bearer {SECRET}", {"topic": SECRET})
    node.ask("POST", "/topics", node.admin, {"topic": SECRET})
    node.ask("DELETE", f"/topics/{SECRET}", node.admin)
    with connected(node, guest) as other, pytest.raises(waterclock.WaterclockError):
        other.topics.get(SECRET)
    end_tick(node)

    folder = Path(node.server.node.config.node.data_folder)
    stored = b"".join(f.read_bytes() for f in folder.glob(f"topics/{TOPIC}-*/*/log/*.seg"))
    assert b"[redacted]" in stored
    logged = "".join(TextFormatter().format(each) for each in caplog.records)
    tokens = [node.admin, guest, SECRET]
    for secret in [text.rpartition(".")[2] for text in tokens]:
        assert secret.encode() not in stored
        assert secret not in logged


def test_nobody_writes_changes_or_deletes_the_audit(node, client):
    node.ask("POST", "/topics", node.admin, {"topic": "any", "ifAbsent": True})
    before = len(entries(client, CALLS))
    answers: list[Answer] = [
        node.ask("POST", f"/topics/{TOPIC}/messages", node.admin, {"value": "forged"}),
        node.ask("PATCH", f"/topics/{TOPIC}", node.admin, {"retentionMs": 1}),
        node.ask("DELETE", f"/topics/{TOPIC}", node.admin),
        node.ask("POST", f"/topics/{TOPIC}/dead-letters/redrive", node.admin, {}),
        node.ask("POST", "/topics", node.admin, {"topic": TOPIC, "ifAbsent": True}),
    ]
    assert [answer.status for answer in answers] == [400] * len(answers)
    for call in (
        lambda: client.topics.delete(TOPIC),
        lambda: client.topics.update(TOPIC, retention="1s"),
        lambda: client.publish(TOPIC, b"forged"),
        lambda: client.dead_letters.redrive(TOPIC),
    ):
        with pytest.raises(BadInput):
            call()

    found = entries(client, CALLS)[before:]
    assert {entry["outcome"] for entry in found} == {"failed"}


def test_only_a_right_that_names_it_reads_the_audit(node, client):
    auditor = node.add("auditor", read="__audit", consume="__audit:siem")
    anyone = node.add("anyone", read="*", consume="*", publish="*")
    node.ask("POST", "/topics", node.admin, {"topic": "any", "ifAbsent": True})

    assert node.ask("GET", f"/topics/{TOPIC}", anyone).status == 403
    assert TOPIC not in str(node.ask("GET", "/topics", anyone).json())
    assert node.ask("GET", f"/topics/{TOPIC}", auditor).json()["partitions"]
    polled = node.ask("GET", f"/topics/{TOPIC}/messages?group=siem", auditor)
    assert polled.status == 200
    with connected(node, auditor) as reader:
        assert entries(reader, CALLS) == entries(client, CALLS)
        assert reader.fetch(TOPIC, CALLS, 0).table().num_rows


def test_a_backup_is_in_the_audit_before_its_first_byte(node, client):
    guest = node.add("guest", read="*")
    trust = grpc.ssl_channel_credentials(node.folder.ca.read_bytes())
    begin = backup_pb2.TakeBackupRequest(begin=backup_pb2.TakeBackupRequest.Begin())
    with grpc.secure_channel(f"localhost:{node.server.grpc_port}", trust) as channel:
        method: Any = channel.stream_stream("/waterclock.v1.Backups/TakeBackup")
        sent: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        sent.put(begin.SerializeToString())
        call = method(iter(sent.get, None), metadata=(("authorization", node.admin),))
        next(call)
        last = entries(client, CALLS)[-1]
        sent.put(None)
        call.cancel()
        refused = method(iter([begin.SerializeToString()]), metadata=(("authorization", guest),))
        with pytest.raises(grpc.RpcError):
            next(refused)
    end_tick(node)

    names = ("outcome", "principal", "operation")
    assert facts(last, *names) == ("allowed", "admin", "Backups/TakeBackup")
    denials = [facts(entry, *names) for entry in entries(client, DENIALS)]
    assert ("denied", "guest", "Backups/TakeBackup") in denials


def test_what_is_ended_because_its_principal_may_not_go_on_is_a_denial(node, client):
    listener = node.add("listener", consume="heard")
    connection = node.connect()
    connection.request("GET", "/topics/heard/events?group=g", headers={"Authorization": listener})
    assert connection.getresponse().status == 200
    node.folder.revoke("listener")
    node.reload()
    connection.close()
    end_tick(node)

    denials = [
        facts(entry, "error", "principal", "operation") for entry in entries(client, DENIALS)
    ]
    assert ("NotAuthenticated", "listener", "recheck") in denials


def test_who_is_let_in_otherwise_than_before_is_in_the_audit(node, client):
    node.add("newcomer", read="a")
    node.add("newcomer", read="b")
    node.reload()
    node.folder.revoke("newcomer")
    node.reload()
    node.ask("POST", "/topics", node.admin, {"topic": "any", "ifAbsent": True})

    found = [e for e in entries(client, CALLS) if e["name"] == "principal 'newcomer'"]
    assert [entry["operation"] for entry in found] == [
        "secure_folder/add",
        "secure_folder/change",
        "secure_folder/remove",
    ]


CHANGES = {
    "createTopic": "Admin/CreateTopic",
    "updateTopic": "Admin/UpdateTopic",
    "deleteTopic": "Admin/DeleteTopic",
    "deleteGroup": "Admin/DeleteGroup",
    "seekGroup": "Admin/SeekGroup",
    "redrive": "Admin/Redrive",
    "purgeDeadLetters": "Admin/PurgeDeadLetters",
    "putRecurrence": "Scheduler/PutRecurrence",
    "deleteRecurrence": "Scheduler/DeleteRecurrence",
    "pauseRecurrence": "Scheduler/PauseRecurrence",
    "resumeRecurrence": "Scheduler/ResumeRecurrence",
    "deleteReplay": "Admin/DeleteReplay",
    "drainNode": "Admin/DrainNode",
    "movePartition": "Admin/MovePartition",
    "replaceNode": "Admin/ReplaceNode",
}


def test_what_changes_something_is_audited_over_both_apis(node):
    over_http = {each.name for each in node.server.operations if each.is_audited}
    over_grpc = {name for name, row in METHODS.items() if row.is_audited}

    assert over_http - CHANGES.keys() == {"reloadNode", "deleteStream"}
    assert over_grpc - set(CHANGES.values()) == {
        "Admin/RegisterSnapshot",
        "Admin/DeleteSnapshot",
        "Backups/TakeBackup",
    }
    assert CHANGES.keys() <= over_http
    assert set(CHANGES.values()) <= over_grpc


async def test_a_node_that_is_not_secured_has_an_audit_if_it_is_told_so(tmp_path):
    async with running_server(tmp_path / "plain") as it:
        await it.admin.CreateTopic(pb.CreateTopicRequest(topic="orders"))
        assert it.node.topics.find(TOPIC) is None
    security = SecurityConfig(audit=True)
    async with running_server(tmp_path / "kept", security=security) as it:
        assert it.node.topics.find(TOPIC) is None, "it is made when there is an entry"
        await it.admin.CreateTopic(pb.CreateTopicRequest(topic="orders"))
        assert it.node.topics.get(TOPIC).partition(CALLS).store.acknowledged_end == 1
        settings = it.node.topics.get(TOPIC).settings
        assert settings.retention_ms == security.audit_age_ms


async def test_a_full_disk_fails_no_call_and_its_entry_is_written_later(tmp_path, monkeypatch):
    async with running_server(tmp_path, security=SecurityConfig(audit=True)) as it:
        await it.admin.CreateTopic(pb.CreateTopicRequest(topic="orders"))
        host = it.node.topics.get(TOPIC).partition(CALLS)

        async def full(*_: object) -> None:
            raise StorageFull("no space")

        with monkeypatch.context() as patched:
            patched.setattr(host, "publish", full)
            await it.admin.DeleteTopic(pb.DeleteTopicRequest(topic="orders"))
            assert host.store.acknowledged_end == 1
        await it.admin.CreateTopic(pb.CreateTopicRequest(topic="bills"))
        assert host.store.acknowledged_end == 3


async def test_a_client_that_goes_before_its_answer_leaves_an_entry(tmp_path):
    async with running_server(tmp_path, security=SecurityConfig(audit=True)) as it:
        audit = it.server.access.audit
        assert audit is not None
        asked = Asked("grpc", "Admin/DeleteTopic", "10.0.0.9", ANYONE)
        begun = asyncio.Event()

        async def work() -> None:
            begun.set()
            await asyncio.Event().wait()

        async with asyncio.TaskGroup() as tasks:
            call = tasks.create_task(audit.following(asked, (Demand("admin", "orders"),), work()))
            await begun.wait()
            call.cancel()
        await audit.close()
        (message,) = [
            json.loads(one.value or b"")
            for frame in it.node.topics.get(TOPIC).partition(CALLS).store.frames(0)
            for _, one in stored_messages(frame, frame.header.base_offset)
        ]
    assert facts(message, "outcome", "error", "topic") == ("failed", "CancelledError", "orders")
