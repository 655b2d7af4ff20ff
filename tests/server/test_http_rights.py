"""Every operation of HTTP, called with every kind of credential: each is answered as declared."""

import hmac
import json
from base64 import urlsafe_b64decode
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha256
from http.client import HTTPSConnection
from typing import Any, NamedTuple

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.server.secure_serving import CLOCK, Answer, SecureNode, secure_node
from waterclock.model.units import DAY_MS
from waterclock.security.credential import base64url
from waterclock.security.quotas import UNBOUNDED
from waterclock.security.rights import KINDS
from waterclock.security.tokens import SigningKey
from waterclock.server.http.operations import Operation

OPEN_TO_ALL = {"consoleFile", "docs", "health", "hello", "live", "openapi", "ready"}
MOVING_REPLICAS = {"drainNode", "movePartition", "replaceNode"}
FOR_ADMINS = {
    "deleteStream",
    "deleteTopic",
    "purgeDeadLetters",
    "reloadNode",
    "updateTopic",
    *MOVING_REPLICAS,
}
ABOUT_THE_NODES = {
    "consoleCounts",
    "getNode",
    "getPlacement",
    "getRing",
    "listEvents",
    "listMembers",
    "metrics",
    "reloadNode",
    *MOVING_REPLICAS,
}

NAMES = {"topic": "mine", "group": "mine", "streamId": "mine", "name": "mine", "partition": "0"}
NAMES["file"] = "app.js"
QUERY = {
    "poll": "group=mine&wait=0s",
    "listen": "group=mine",
    "findOffsets": "timeMs=0",
    "receive": "streamId=mine&timeoutSeconds=0",
    "publishedReceive": "streamId=mine&timeoutSeconds=0",
    "streamEvents": "streamId=mine&timeoutSeconds=0",
    "replay": "name=mine",
    "listRecurrences": "topic=mine",
    "getHistory": "topic=mine",
    "listReplication": "topic=mine",
    "listTimes": "rule=@daily",
    "consoleMoment": "text=now",
}
SENT = {"streamId": "mine", "message": 1, "inMemoryStreamSize": 5}
BODIES: dict[str, object] = {
    "send": SENT,
    "publishedSend": {**SENT, "messageUuid": "u"},
    "sendAndStore": {"streamId": "mine", "message": 1},
    "resizeStream": {"inMemoryStreamSize": 7},
    "ack": {"group": "mine", "ack": ["0-1-0-1"]},
    "createTopic": {"topic": "mine", "ifAbsent": True},
    "reportReplay": {"positions": [{"partition": 0, "offset": 0}]},
    "putRecurrence": {"topic": "mine", "every": "1h", "value": "x"},
    "putJobRun": {"job": "compact", "topic": "mine"},
}


class Bearers(NamedTuple):
    """What is sent as Authorization."""

    strangers: dict[str, str | None]
    """Nobody is known by these."""
    right: dict[str, str]
    """By kind: who has this right, to what is called `mine`, and no other."""
    others: dict[str, str]
    """By kind: who has all rights but this."""
    elsewhere: str
    """All rights, to other topics and streams."""
    other_group: str
    """All rights, but as a member of another group."""


class Table(NamedTuple):
    """A node with what all operations are about."""

    node: SecureNode
    operations: list[Operation]
    bearers: Bearers
    connection: HTTPSConnection

    def call(self, operation: Operation, bearer: str | None) -> Answer:
        path, body = request_of(operation)
        is_stream = operation.name in ("listen", "streamEvents", "consoleLive")
        used = None if is_stream else self.connection
        return self.node.ask(operation.method, path, bearer, body, used)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:
    with secure_node(tmp_path_factory.mktemp("node")) as node:
        operations = list(node.server.operations)
        connection = node.connect()
        yield Table(node, operations, bearers_of(node), connection)
        connection.close()


def request_of(operation: Operation) -> tuple[str, object]:
    """Return a request about `mine` that an operation takes."""
    path = operation.path
    for name, value in NAMES.items():
        path = path.replace("{" + name + "}", value)
    if operation.name in QUERY:
        path += "?" + QUERY[operation.name]
    return path, BODIES.get(operation.name, operation.body_example)


def bearers_of(node: SecureNode) -> Bearers:
    def added(name: str, rights: dict[str, str]) -> str:
        return node.add(name, UNBOUNDED, lasts_ms=DAY_MS, **rights)

    mine: dict[str, str] = {kind: "mine" for kind in KINDS if kind != "admin"}
    mine["consume"] = "mine:mine"
    right = {kind: added(f"only-{kind}", {kind: text}) for kind, text in mine.items()}
    # The node itself and its metrics are everything.
    right["read"] = node.add("only-read", read="mine *")
    right["admin"] = node.admin
    others: dict[str, str] = {
        kind: added(f"all-but-{kind}", {k: text for k, text in mine.items() if k != kind})
        for kind in KINDS
    }
    elsewhere = added("elsewhere", dict.fromkeys(mine, "mine.* other"))
    other_group = added("other-group", mine | {"consume": "mine:other"})
    return Bearers(strangers_of(node), right, others, elsewhere, other_group)


def strangers_of(node: SecureNode) -> dict[str, str | None]:
    """Return credentials that look like an admin's, and are none."""
    header, payload, signature = node.admin.split(".")[-3:]
    claims = json.loads(_decoded(payload))
    kid = json.loads(_decoded(header))["kid"]
    (key,) = node.folder._signing_keys()
    now_ms, token_id = CLOCK.now_ms(), claims["jti"]

    def signed(by: SigningKey, from_ms: int) -> str:
        return by.sign(
            principal="admin", token_id=token_id, now_ms=from_ms, expires_ms=from_ms + DAY_MS
        )

    another = SigningKey(kid, SigningKey.make(now_ms=now_ms)._key)
    public = key.public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    changed = base64url(json.dumps(claims | {"sub": "only-read"}).encode())
    tokens = {
        "expired": signed(key, now_ms - 2 * DAY_MS),
        "not valid yet": signed(key, now_ms + DAY_MS),
        "of another key": signed(another, now_ms),
        "of nobody": key.sign(
            principal="ghost", token_id=token_id, now_ms=now_ms, expires_ms=now_ms + DAY_MS
        ),
        "of an id that was revoked": key.sign(
            principal="admin", token_id="0" * 32, now_ms=now_ms, expires_ms=now_ms + DAY_MS
        ),
        "alg none": f"{_header('none', kid)}.{payload}.{signature}",
        "alg none, unsigned": f"{_header('none', kid)}.{payload}.",
        "HS256 with the public key": _hmac(f"{_header('HS256', kid)}.{payload}", public),
        "HS256 with its raw bytes": _hmac(
            f"{_header('HS256', kid)}.{payload}", key.public.public_bytes_raw()
        ),
        "other claims": f"{header}.{changed}.{signature}",
    }
    bearers: dict[str, str | None] = {name: f"Bearer {token}" for name, token in tokens.items()}
    return bearers | {"none": None, "another scheme": "Basic YWRtaW46YWRtaW4="}


def _header(algorithm: str, kid: str) -> str:
    return base64url(json.dumps({"alg": algorithm, "typ": "JWT", "kid": kid}).encode())


def _hmac(signed: str, key: bytes) -> str:
    return f"{signed}.{base64url(hmac.new(key, signed.encode(), sha256).digest())}"


def _decoded(part: str) -> bytes:
    return urlsafe_b64decode(part + "=" * (-len(part) % 4))


def failures(
    table: Table, bearer_of: Callable[[Operation], str | None], expected: Callable[..., bool]
) -> list[str]:
    """Return the operations that are not answered as expected; what they are about is there."""
    for name in ("createTopic", "putRecurrence", "replay", "send", "poll"):
        operation = next(one for one in table.operations if one.name == name)
        assert table.call(operation, table.node.admin).status < 300, name
    found = []
    for operation in table.operations:
        answer = table.call(operation, bearer_of(operation))
        if not expected(operation, answer):
            found.append(f"{operation.name} {answer.status} {answer.body[:200]!r}")
    return found


def _same(bearer: str | None, _: Operation) -> str | None:
    return bearer


def is_let_in(answer: Answer) -> bool:
    # What it is about may be gone by now; the request itself was as it must be.
    return answer.status not in (400, 401, 403, 405, 413, 429, 500)


def is_refused(answer: Answer) -> bool:
    return answer.status == 403 and answer.json()["error"] == "Forbidden"


def test_what_is_open_to_all_and_what_is_for_admins_is_these_and_no_more(table: Table) -> None:
    operations = table.operations
    assert {one.name for one in operations if one.needs.is_open} == OPEN_TO_ALL
    assert {one.name for one in operations if one.needs.kind == "admin"} == FOR_ADMINS
    for one in operations:
        is_bare = one.needs.topic is None and one.needs.stream is None
        is_known = one.needs.is_open or one.needs.is_list or one.name in ABOUT_THE_NODES
        assert not is_bare or is_known, f"{one.name} does not say what it is about"


def test_who_has_no_credential_that_is_good_is_let_in_nowhere(table: Table) -> None:
    def expected(operation: Operation, answer: Answer) -> bool:
        if operation.needs.is_open:
            return answer.status == 200
        return answer.status == 401 and answer.headers["www-authenticate"] == "Bearer"

    for name, bearer in table.bearers.strangers.items():
        assert failures(table, partial(_same, bearer), expected) == [], name


def test_rights_to_other_topics_and_streams_let_in_nowhere(table: Table) -> None:
    def expected(operation: Operation, answer: Answer) -> bool:
        if operation.needs.is_open:
            return answer.status == 200
        if operation.needs.is_list and operation.needs.topic != "topic":
            return answer.status == 200 and b'"mine"' not in answer.body
        return is_refused(answer)

    assert failures(table, lambda _: table.bearers.elsewhere, expected) == []


def test_rights_as_a_member_of_another_group_do_not_let_into_this_one(table: Table) -> None:
    def expected(operation: Operation, answer: Answer) -> bool:
        needs = operation.needs
        is_other = needs.kind == "consume" and needs.group is not None
        if is_other or needs.kind == "admin" or operation.name in ABOUT_THE_NODES:
            return is_refused(answer)
        return is_let_in(answer)

    assert failures(table, lambda _: table.bearers.other_group, expected) == []


def test_all_rights_but_the_one_that_is_needed_do_not_let_in(table: Table) -> None:
    def bearer(operation: Operation) -> str | None:
        return table.bearers.others.get(operation.needs.kind or "")

    def expected(operation: Operation, answer: Answer) -> bool:
        if operation.needs.is_open or operation.needs.is_list:
            return answer.status == 200
        return is_refused(answer)

    assert failures(table, bearer, expected) == []


def test_the_one_right_that_is_needed_lets_in(table: Table) -> None:
    def bearer(operation: Operation) -> str | None:
        return table.bearers.right.get(operation.needs.kind or "")

    assert failures(table, bearer, lambda _, answer: is_let_in(answer)) == []


# What has a name of its own


def ask(table: Table, method: str, path: str, bearer: str, body: Any = None) -> Answer:
    return table.node.ask(method, path, bearer, body)


def test_a_recurrence_of_anothers_topic_is_not_replaced_by_its_name(table: Table) -> None:
    admin = table.node.admin
    secret = {"topic": "secret", "every": "1h", "value": "planted"}
    assert ask(table, "PUT", "/recurrences/nightly", admin, secret).status == 200

    replaced = ask(
        table,
        "PUT",
        "/recurrences/nightly",
        table.bearers.elsewhere,
        {"topic": "other", "every": "1h"},
    )

    assert is_refused(replaced)
    assert b"secret" not in replaced.body, "the name of the topic is not told"
    assert ask(table, "GET", "/recurrences/nightly", admin).json()["topic"] == "secret"
    missing = ask(table, "GET", "/recurrences/none", table.bearers.elsewhere)
    assert missing.status == 404


def test_a_replay_of_anothers_topic_does_not_go_on_by_its_name(table: Table) -> None:
    admin = table.node.admin
    for topic in ("secret", "other"):
        assert ask(table, "POST", f"/topics/{topic}/messages", admin, {"value": "x"}).status == 201
    assert ask(table, "GET", "/topics/secret/replay?name=past", admin).status == 200

    refused = ask(table, "GET", "/topics/other/replay?name=past", table.bearers.elsewhere)

    assert is_refused(refused)
    assert b"secret" not in refused.body


def test_lists_show_what_one_sees(table: Table) -> None:
    node = table.node
    for topic in ("seen", "hidden"):
        path = f"/topics/{topic}/messages"
        assert ask(table, "POST", path, node.admin, {"value": "x"}).status == 201
        assert ask(table, "GET", f"{path}?group=both&wait=0s", node.admin).status == 200
        put = {"topic": topic, "every": "1h", "value": "x"}
        assert ask(table, "PUT", f"/recurrences/{topic}", node.admin, put).status == 200
        assert ask(table, "GET", f"/topics/{topic}/replay?name={topic}", node.admin).status == 200
        sent = SENT | {"streamId": topic}
        assert ask(table, "POST", "/streams/send", node.admin, sent).status == 200
    reader = node.add("reader", read="seen")
    publisher = node.add("publisher", publish="seen")

    def listed(path: str, bearer: str) -> set[str]:
        found = ask(table, "GET", path, bearer).json()[path.removeprefix("/")]
        return {one if isinstance(one, str) else one["topic"] for one in found}

    for path in ("/topics", "/groups", "/streams", "/recurrences", "/replays"):
        assert listed(path, reader) == {"seen"}, path
        assert listed(path, node.admin) >= {"seen", "hidden"}, path
    assert listed("/topics", publisher) == {"seen"}
    assert listed("/recurrences", publisher) == set(), "their messages are for who may read them"
    assert ask(table, "GET", "/streams?limit=1", reader).json() == {"streams": ["seen"], "next": 0}
