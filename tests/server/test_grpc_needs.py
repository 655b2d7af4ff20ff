"""Every gRPC method with every kind of credential: each is let in, or refused, as the table says.

One secure node for all. The requests are made from the descriptors: what a method needs names the
fields that the topic and the group stand in.
"""

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any, cast

import grpc
import jwt
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message as Proto
from google.protobuf.message_factory import GetMessageClass

from tests.server.grpc_secure import CLOCK, Metadata, SecureServed, bearer, secure_server
from waterclock.model.message import Message
from waterclock.model.units import DAY_MS, SECOND_MS
from waterclock.model.views import Recurrence
from waterclock.node.replay.records import Request
from waterclock.security.credential import base64url, token_of
from waterclock.security.rights import KINDS
from waterclock.security.tokens import ISSUER
from waterclock.server.app import APIS, HEALTH
from waterclock.server.grpc.needs import METHODS
from waterclock.server.grpc.reflection import SERVICE as REFLECTION
from waterclock.server.grpc.server import STREAMS

SERVICES = (*APIS, HEALTH, REFLECTION)
ALL = {
    f"{service.name}/{method.name}": method for service in SERVICES for method in service.methods
}
TOPIC, GROUP = "mine.orders", "mine.billing"
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED
DENIED = grpc.StatusCode.PERMISSION_DENIED
BROKEN = {
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.UNKNOWN,
}
"""No answers to who may ask."""
OF_CLUSTERS = {"Admin/DrainNode", "Admin/ReplaceNode", "Admin/MovePartition"}
"""A node that is alone says to whoever may ask that it is."""


def test_every_method_says_what_it_needs():
    assert METHODS.keys() == ALL.keys()


def test_nothing_is_open_but_the_health():
    assert {name.partition("/")[0] for name, row in METHODS.items() if row.needs.is_open} == {
        "Health"
    }


class Walk:
    """The node, and who calls it."""

    def __init__(self, it: SecureServed, loop: asyncio.AbstractEventLoop) -> None:
        self.it = it
        self._loop = loop
        self.askers: dict[str, Metadata | None] = {}

    def call(self, name: str, asker: str, *, topic: str = TOPIC) -> grpc.StatusCode:
        """Return how a call of a method ends, or what its first answer says."""
        is_read = asker not in UNKNOWN or METHODS[name].needs.is_open
        request = request_of(name, ALL[name], topic)
        work = self._call(ALL[name], request, self.askers[asker], is_read=is_read)
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _call(
        self, method: MethodDescriptor, request: Proto, metadata: Metadata | None, *, is_read: bool
    ) -> grpc.StatusCode:
        path = f"/{method.containing_service.full_name}/{method.name}"
        try:
            if method.name not in STREAMS:
                await self.it.unary(path, request, metadata)
                return grpc.StatusCode.OK
            call = self.it.stream(path, metadata)
            # A stream that is refused ends before its request is read; gRPC's client reports an
            # internal error if that happens while it writes.
            if is_read:
                await call.write(request.SerializeToString())
            answer = await call.read()
            if answer is grpc.aio.EOF:
                return cast(grpc.StatusCode, await call.code())
            call.cancel()
            return said_by(answer, method)
        except grpc.aio.AioRpcError as error:
            return error.code()

    def prepare(self) -> None:
        """Have what the requests are about."""
        asyncio.run_coroutine_threadsafe(self._prepare(), self._loop).result()

    async def _prepare(self) -> None:
        node = self.it.server.node
        await node.topics.ensure(TOPIC)
        daily = Recurrence(name="daily", topic=TOPIC, message=Message(b"x"), every_ms=DAY_MS)
        await node.recurrences.put(daily)
        await node.replays.delete("past")
        (await node.replays.begin(Request(TOPIC), name="past")).close()

    async def let_in(self) -> None:
        """Make everyone who asks; those who may change something ask last."""
        it, now_ms = self.it, CLOCK.now_ms()
        kinds: dict[str, Any] = {kind: "mine.*" for kind in KINDS if kind != "admin"}
        right = await it.add("right", **kinds | {"consume": "mine.*:mine.*"})
        known: dict[str, Metadata | None] = {
            "other topics": await it.add("topics", **dict.fromkeys(kinds, cast(Any, "other.*"))),
            "other group": await it.add("groups", consume="mine.*:other.*"),
            "right": right,
            "admin": it.admin,
        }
        token = token_of(right[0][1].removeprefix("Bearer "))
        head, payload, signature = token.split(".")
        claims = jwt.decode(token, options={"verify_signature": False})
        kid = jwt.get_unverified_header(token)["kid"]
        public = it.server.access.state.verifying_keys[kid].public_bytes_raw()
        none = base64url(json.dumps({"alg": "none", "typ": "JWT", "kid": kid}).encode())
        now_s = now_ms // SECOND_MS
        past = claims | {"iss": ISSUER, "iat": now_s - 20, "nbf": now_s - 20, "exp": now_s - 10}
        key = it.folder._signing_keys()[-1]._key
        forged = {
            "no algorithm": f"{none}.{payload}.AA",
            "the public key": jwt.encode(claims, public, "HS256", headers={"kid": kid}),
            "another signature": f"{head}.{payload}.{signature[::-1]}",
            "expired": jwt.encode(past, key, "EdDSA", headers={"kid": kid}),
        }
        self.askers = {"nobody": None}
        self.askers |= {asker: bearer(text) for asker, text in forged.items()}
        self.askers |= known


UNKNOWN = ("nobody", "no algorithm", "the public key", "another signature", "expired")


def request_of(name: str, method: MethodDescriptor, topic: str = TOPIC) -> Proto:
    """Return a request about our topic, or all, and group."""
    request: Any = GetMessageClass(method.input_type)()
    row = METHODS[name]
    names = [(row.needs.topic, topic), (row.needs.group, GROUP)]
    if row.named is not None:
        names.append((row.named[1], "daily" if row.named[0] == "recurrence" else "past"))
    for path, value in names:
        if path is not None:
            *parts, field = path.split(".")
            part = request
            for each in parts:
                part = getattr(part, each)
            setattr(part, field, value)
    if method.name == "TakeBackup":
        request.begin.SetInParent()
    if method.name == "ServerReflectionInfo":
        request.list_services = ""
    if method.name == "PutJobRun":
        request.run.job, request.run.state = "compact", "running"
    return cast(Proto, request)


def said_by(answer: bytes, method: MethodDescriptor) -> grpc.StatusCode:
    response: Any = GetMessageClass(method.output_type).FromString(answer)
    code = response.problem.code if method.name == "PublishStream" else 0
    return next(each for each in grpc.StatusCode if each.value[0] == code)


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    found: list[Walk] = []
    is_over, is_ready = threading.Event(), threading.Event()

    async def run() -> None:
        async with secure_server(tmp_path_factory.mktemp("walk")) as it:
            walk = Walk(it, asyncio.get_running_loop())
            await walk.let_in()
            found.append(walk)
            is_ready.set()
            await asyncio.to_thread(is_over.wait)

    def work() -> None:
        try:
            asyncio.run(run())
        finally:
            is_ready.set()

    thread = threading.Thread(target=work)
    thread.start()
    is_ready.wait()
    try:
        yield found[0]
    finally:
        is_over.set()
        thread.join()


@pytest.mark.parametrize("name", sorted(ALL))
def test_a_method_lets_in_whom_the_table_says_and_nobody_else(walk, name):
    needs = METHODS[name].needs
    walk.prepare()
    codes = {asker: walk.call(name, asker) for asker in walk.askers}
    refused = {asker for asker, code in codes.items() if code in (UNAUTHENTICATED, DENIED)}

    unknown = {asker: code for asker, code in codes.items() if asker in UNKNOWN}
    if needs.is_open:
        assert not refused, codes
        return
    assert set(unknown.values()) == {UNAUTHENTICATED}, unknown
    denied = refused - unknown.keys()
    assert denied == expected_denials(name), codes
    assert all(codes[asker] is DENIED for asker in denied)
    if name in OF_CLUSTERS:
        assert codes["admin"] is grpc.StatusCode.UNIMPLEMENTED
    else:
        assert not {codes["right"], codes["admin"]} & BROKEN, codes


@pytest.mark.parametrize("name", sorted(name for name, row in METHODS.items() if row.is_of_all))
def test_of_all_topics_everyone_known_may_ask(walk, name):
    assert METHODS[name].needs.topic == "topic"
    walk.prepare()
    codes = {asker: walk.call(name, asker, topic="") for asker in walk.askers}

    unknown = {code for asker, code in codes.items() if asker in UNKNOWN}
    assert unknown == {UNAUTHENTICATED}
    known = {code for asker, code in codes.items() if asker not in UNKNOWN}
    assert known == {grpc.StatusCode.OK}, codes


def expected_denials(name: str) -> set[str]:
    """Return who is known and may not call a method."""
    row = METHODS[name]
    needs = row.needs
    if needs.is_list:
        return {"other topics"} if needs.topic else set()
    is_of_all = needs.topic is None and row.named is None
    if needs.kind == "admin" or is_of_all:
        return {"right", "other topics", "other group"}
    return {"other topics", "other group"}
