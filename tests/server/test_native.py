"""The native protocol on a real node: publishing, calls, who is let in, and hostile bytes."""

import asyncio
from contextlib import asynccontextmanager
from random import Random
from traceback import walk_tb
from typing import Any, cast

import grpc
import pytest

from tests.client.secured import secured_folder
from tests.server.http_client import until
from tests.server.served import Served, arrow_of, config_in, running_server
from waterclock.client.client import connect
from waterclock.client.native.channel import NativeChannel
from waterclock.client.native.link import NodeLink, dial
from waterclock.cluster.peer_link.channels import WINDOW_BYTES, Channel
from waterclock.cluster.peer_link.client_frames import CALL, OF_CLIENTS, CallOpening, Login
from waterclock.cluster.peer_link.frames import HEADER, Decoder, Kind, decode_reason, encode
from waterclock.cluster.remote_calls import ended, message
from waterclock.log.batch import Batch
from waterclock.model.errors import (
    BadInput,
    Forbidden,
    LimitExceeded,
    NotAuthenticated,
    NotFound,
    Stopping,
    Unreachable,
)
from waterclock.model.message import ACKS, Acks, Message
from waterclock.model.units import DAY_MS
from waterclock.model.views import JobRun
from waterclock.node.node import running_node
from waterclock.node.partition.host import PartitionHost
from waterclock.runtime.clock import SystemClock
from waterclock.security.credential import Credential
from waterclock.security.folder import Grant, SecureFolder
from waterclock.security.quotas import UNBOUNDED, Quotas
from waterclock.security.rights import RightKind, parse_rights
from waterclock.security.tls import client_context
from waterclock.server.app import serve
from waterclock.server.native import link as native_link
from waterclock.server.native import publishing
from waterclock.v1 import admin_pb2, admin_pb2_grpc
from waterclock.v1 import broker_pb2 as pb

LOGIN = Login(3, 20_000, 60_000)


def batch(*values: bytes, topic: str = "orders", **fields: Any) -> bytes:
    messages = (Message(value, message_id=b"id-" + value[:50]) for value in values)
    return pb.PublishBatchRequest(
        topic=topic, arrow=arrow_of(*messages), **fields
    ).SerializeToString()


@asynccontextmanager
async def linked(served: Served):
    addresses = served.server.addresses
    link = await dial(addresses.http, addresses.grpc, None, is_alone=True)
    try:
        yield link
    finally:
        link.close("the test is over")


def admin_of(link: NodeLink) -> Any:
    return admin_pb2_grpc.AdminStub(cast(grpc.aio.Channel, NativeChannel(link)))


async def wire_to(served: Served) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", served.server.http_port)


async def last_words(reader: asyncio.StreamReader) -> str:
    """Return why the node ended a connection."""
    decoder = Decoder(OF_CLIENTS)
    decoder.is_admitted = True
    for frame in decoder.feed(await reader.read()):
        if frame.kind == Kind.CLOSE:
            return decode_reason(frame.payload)
    raise AssertionError("it was not closed")


async def test_batches_are_answered_with_where_they_are(tmp_path):
    async with running_server(tmp_path) as it, linked(it) as link:
        answers = [link.publish(batch(b"a", b"b")), link.publish(batch(b"c"))]
        first, second = await asyncio.gather(*answers)

        assert (first.count, first.first_offset, first.made_partitions) == (2, 0, 1)
        assert (second.count, second.first_offset, second.made_partitions) == (1, 2, 0)
        assert it.node.topics.get("orders").partitions[0].store.flushed_end == 3


async def test_a_repeat_is_found_though_it_comes_over_another_connection(tmp_path):
    async with running_server(tmp_path) as it:
        async with linked(it) as link:
            await link.publish(batch(b"a"))
        async with linked(it) as link:
            again = await link.publish(batch(b"a", b"b"))

        assert (list(again.offsets), list(again.duplicates)) == ([0, 1], [0])


async def test_what_is_wrong_with_a_batch_is_its_answer_and_the_connection_goes_on(tmp_path):
    async with running_server(tmp_path) as it, linked(it) as link:
        bad = [
            (b"\xff\xff", BadInput),
            (pb.PublishBatchRequest(topic="orders", arrow=b"x").SerializeToString(), BadInput),
            (batch(b"a", partition=7), NotFound),
            (batch(b"a", topic="no topic"), BadInput),
            (batch(b"a", topic="__own"), BadInput),
            (batch(b"a", acks=9), BadInput),
        ]
        for payload, error in bad:
            with pytest.raises(error):
                await link.publish(payload)

        assert (await link.publish(batch(b"a"))).first_offset == 0


async def test_a_refusal_names_the_field_and_the_limit(tmp_path):
    async with running_server(tmp_path) as it, linked(it) as link:
        long_id = arrow_of(Message(b"v", message_id=b"i" * 5_000))
        request = pb.PublishBatchRequest(topic="orders", arrow=long_id).SerializeToString()

        with pytest.raises(LimitExceeded) as refused:
            await link.publish(request)

        limit = it.node.config.limits.message_id_bytes_max
        assert (refused.value.field, refused.value.limit) == ("message_id bytes", limit)
        with pytest.raises(BadInput, match=r"^acks: 9 is not one of 0 \(quorum\), 1 \(leader\), 2"):
            await link.publish(batch(b"a", acks=9))
        assert it.node.topics.find("orders") is None


async def test_a_batch_waits_for_what_it_asks_for(tmp_path, monkeypatch):
    asked: list[Acks] = []
    notify = PartitionHost.notify_acks

    def notified(host: PartitionHost, *args: Any, acks: Acks) -> None:
        asked.append(acks)
        notify(host, *args, acks=acks)

    monkeypatch.setattr(PartitionHost, "notify_acks", notified)
    async with running_server(tmp_path) as it, linked(it) as link:
        for number, acks in enumerate(ACKS):
            await link.publish(batch(acks.encode(), acks=number))

    assert asked == [*ACKS]


async def test_nothing_is_answered_before_it_is_durable(tmp_path):
    async with running_server(tmp_path) as it, linked(it) as link:
        await link.publish(batch(b"a"))
        host = it.node.topics.get("orders").partitions[0]
        durable: list[int] = []
        note = host.note_durable

        def noted(batch: Batch, *, begun: float) -> None:
            durable.append(host.store.flushed_end)
            note(batch, begun=begun)

        host.note_durable = noted  # type: ignore[method-assign]

        answers = await asyncio.gather(*(link.publish(batch(b"%d" % i)) for i in range(20)))

        ends = [answer.first_offset + answer.count for answer in answers]
        assert all(flushed >= end for flushed, end in zip(durable, sorted(ends), strict=True))


async def test_batches_behind_one_that_makes_its_topic_stay_in_order(tmp_path):
    async with running_server(tmp_path) as it, linked(it) as link:
        answers = await asyncio.gather(*(link.publish(batch(b"%d" % i)) for i in range(50)))

        assert [answer.first_offset for answer in answers] == list(range(50))


async def test_a_batch_for_several_partitions_is_spread(tmp_path):
    async with running_server(tmp_path) as it, linked(it) as link:
        admin = admin_of(link)
        settings = admin_pb2.TopicSettings(partitions=4)
        await admin.CreateTopic(admin_pb2.CreateTopicRequest(topic="orders", settings=settings))

        answer = await link.publish(batch(*(b"%d" % i for i in range(40))))

        assert set(answer.partitions) == {0, 1, 2, 3}


async def test_beyond_its_room_a_connection_is_not_read_and_nothing_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(publishing, "BATCHES_MAX", 4)
    async with running_server(tmp_path) as it, linked(it) as link:
        await link.publish(batch(b"first"))

        answers = await asyncio.gather(*(link.publish(batch(b"%d" % i)) for i in range(500)))

        assert [answer.first_offset for answer in answers] == list(range(1, 501))


async def test_a_client_that_does_not_read_is_not_read_either(tmp_path):
    async with running_server(tmp_path) as it, linked(it) as link:
        await link.publish(batch(b"first"))
        (known,) = it.server.native.links
        known.pause_writing()

        assert known.is_blocked
        assert not known._transport.is_reading()  # type: ignore[union-attr]

        known.resume_writing()
        assert (await link.publish(batch(b"second"))).first_offset == 1


async def test_metadata_is_a_call_as_of_grpc(tmp_path):
    async with running_server(tmp_path) as it, linked(it) as link:
        admin = admin_of(link)

        node = await admin.GetNode(admin_pb2.GetNodeRequest())

        assert (node.name, node.http_address) == ("test", it.server.addresses.http)
        assert link.node_name == "test"


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (encode(Kind.PUBLISH, 1, b"x"), "prove first who you are"),
        (HEADER.pack(1 << 20, Kind.LOGIN, 0), "bytes are too many"),
        (b"\0\0\0\0\xff" + bytes(8), "kind 255 is unknown"),
        (LOGIN.encode() * 2, "a second LOGIN"),
        (LOGIN.encode() + encode(Kind.PUBLISHED, 1), "kind 11 is for nodes to say"),
        (LOGIN.encode() + HEADER.pack(2 << 20, Kind.PUBLISH, 1), "bytes are too many"),
        (LOGIN.encode() + encode(Kind.CREDIT, 8, b"\0\0\0\1"), "channel 8"),
    ],
)
async def test_hostile_bytes_end_their_own_connection_with_the_reason(tmp_path, sent, reason):
    async with running_server(tmp_path) as it, linked(it) as link:
        reader, writer = await wire_to(it)
        writer.write(sent)

        assert reason in await last_words(reader)
        assert (await link.publish(batch(b"a"))).first_offset == 0
        writer.close()


async def test_bytes_that_come_one_by_one_are_understood(tmp_path):
    async with running_server(tmp_path) as it:
        reader, writer = await wire_to(it)
        for at in range(len(LOGIN.encode())):
            writer.write(LOGIN.encode()[at : at + 1])
            await writer.drain()

        (kind,) = (await reader.readexactly(HEADER.size))[4:5]
        assert kind == Kind.LOGIN
        writer.close()


async def test_http_goes_on_beside_it(tmp_path):
    async with running_server(tmp_path) as it, linked(it):
        reader, writer = await wire_to(it)
        writer.write(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")

        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        writer.close()


async def test_a_node_that_stops_refuses_what_comes_then_and_who_comes_then(tmp_path):
    async with running_server(tmp_path) as it, linked(it) as link:
        await link.publish(batch(b"a"))

        await it.server.stop()

        with pytest.raises(Stopping):
            await link.publish(batch(b"b"))


class Stingy:
    """A caller that gives no credit for what it is answered."""

    def __init__(self) -> None:
        self.size = 0
        self.error: Exception | None = None

    def answered(self, status: int, body: bytes, *, is_last: bool) -> None:
        self.size += len(body)

    def piece(self, body: bytes, *, is_last: bool) -> None:
        self.size += len(body)

    def failed(self, error: Exception) -> None:
        self.error = error

    def drained(self) -> None:
        """It says no more."""


LIST = ("Admin/ListJobRuns", admin_pb2.ListJobRunsRequest())
FETCH = ("Broker/Fetch", pb.FetchRequest(topic="orders"))
"""It writes its answer itself."""


def call(link: NodeLink, caller: Stingy, asked: tuple[str, Any], left_ms: int = 0) -> Channel:
    """Call a method."""
    method, request = asked
    opening = CallOpening(f"waterclock.v1.{method}", left_ms).encode()
    body = message(request.SerializeToString()) + ended(b"")
    return link.channels.open(CALL, opening + body, caller)


async def fill(it: Served, link: NodeLink) -> None:
    """Have there be more to list and to fetch than a call gets without credit."""
    await link.publish(batch(Random(1).randbytes(2 * WINDOW_BYTES)))
    for number in range(20):
        await it.node.job_runs.put(JobRun(name=str(number), job="compact", report="x" * 8_000))


async def test_a_call_counts_until_its_answer_is_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(native_link, "CALLS_MAX", 2)
    async with running_server(tmp_path) as it, linked(it) as link:
        await fill(it, link)
        callers = [Stingy(), Stingy()]
        channels = [call(link, caller, LIST) for caller in callers]
        await until(lambda: all(caller.size == WINDOW_BYTES for caller in callers))

        with pytest.raises(grpc.aio.AioRpcError, match="2 are open already"):
            await admin_of(link).GetNode(admin_pb2.GetNodeRequest())
        channels[0].grant(4 * WINDOW_BYTES)
        await until(lambda: not channels[0].is_open)

        assert (await admin_of(link).GetNode(admin_pb2.GetNodeRequest())).name == "test"
        assert (channels[1].is_open, callers[1].error) == (True, None)


@pytest.mark.parametrize("asked", [LIST, FETCH], ids=["list", "fetch"])
async def test_an_answer_that_is_not_taken_by_its_deadline_is_not_kept(tmp_path, asked):
    async with running_server(tmp_path) as it, linked(it) as link:
        await fill(it, link)
        (known,) = it.server.native.links
        channel = call(link, Stingy(), asked, left_ms=500)
        await until(lambda: not channel.is_open)

        assert (len(known.channels), known.open_calls) == (0, 0)


async def test_an_unknown_method_is_unimplemented(tmp_path):
    async with running_server(tmp_path) as it, linked(it) as link:
        call = NativeChannel(link).unary_unary("/waterclock.v1.Broker/Nothing", bytes, bytes)

        with pytest.raises(Exception, match="no method") as failed:
            await call(b"")

        assert failed.value.code().name == "UNIMPLEMENTED"  # type: ignore[attr-defined]


# Who is let in


@asynccontextmanager
async def secured(folder):
    secure = secured_folder(folder / "secure")
    config = config_in(folder)
    async with running_node(config, SystemClock()) as node, serve(node, config) as server:
        yield server, secure


def credential_of(secure: SecureFolder, quotas: Quotas = UNBOUNDED, **rights: str) -> Credential:
    """Let a program in, and return what it shows."""
    kinds = {cast(RightKind, kind): [text] for kind, text in rights.items()}
    now_ms = SystemClock().now_ms()
    grant = Grant(rights=parse_rights(kinds), quotas=quotas, expires_ms=now_ms + DAY_MS)
    found = secure.add("program", grant, now_ms=now_ms, is_replacing=True)
    assert found is not None
    return found


async def logged_in(server, credential) -> NodeLink:
    await server.access.reload()
    return await dial(server.addresses.http, "node", credential, is_alone=True)


async def test_rights_are_those_of_grpc(tmp_path):
    async with secured(tmp_path) as (server, secure):
        link = await logged_in(server, credential_of(secure, publish="orders"))

        assert (await link.publish(batch(b"a"))).first_offset == 0
        with pytest.raises(Forbidden) as refused:
            await link.publish(batch(b"a", topic="payments"))
        assert "payments" in str(refused.value)
        assert (await link.publish(batch(b"b"))).first_offset == 1
        link.close("the test is over")


async def test_who_may_have_one_connection_has_two_links_beside_it(tmp_path):
    """As a client does; a call over a link is none more."""
    async with secured(tmp_path) as (server, secure):
        credential = credential_of(secure, Quotas(connections=1), publish="orders", read="*")
        link, other = [await logged_in(server, credential) for _ in range(2)]
        async with connect(server.addresses.grpc, credential=credential) as client:
            assert (await admin_of(link).GetNode(admin_pb2.GetNodeRequest())).name
            assert await client.topics.list() == []
            with pytest.raises(Unreachable, match="1 connections"):
                await logged_in(server, credential)

        link.close("the test is over")
        other.close("the test is over")


async def test_who_is_not_known_is_not_let_in(tmp_path):
    async with secured(tmp_path) as (server, secure):
        known = credential_of(secure, publish="orders")
        context = client_context(known.ca_pem)
        for authorization in ("", "Bearer nonsense", known.token):
            reader, writer = await asyncio.open_connection(
                "localhost", server.http_port, ssl=context
            )
            writer.write(Login(3, 1_000, 2_000, authorization).encode())

            assert await last_words(reader)
            writer.close()


async def test_what_a_revoked_client_sends_yet_is_refused_and_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(native_link, "REFUSED_S", 60.0)
    async with secured(tmp_path) as (server, secure):
        link = await logged_in(server, credential_of(secure, publish="orders"))
        await link.publish(batch(b"a"))
        secure.revoke("program")
        await server.access.reload()
        (theirs,) = server.native.links
        depths = []
        for number in range(5):
            with pytest.raises(NotAuthenticated):
                await link.publish(batch(b"%d" % number))
            depths.append(sum(1 for _ in walk_tb(theirs.refused.__traceback__)))

        assert depths == depths[:1] * 5  # frames, each with what was sent
        link.close("the test is over")


async def test_who_is_revoked_is_cut_off(tmp_path, monkeypatch):
    monkeypatch.setattr(native_link, "REFUSED_S", 0)
    async with secured(tmp_path) as (server, secure):
        link = await logged_in(server, credential_of(secure, publish="orders"))
        await link.publish(batch(b"a"))

        secure.revoke("program")
        await server.access.reload()

        await link.ended.wait()
        with pytest.raises(Unreachable):
            await link.publish(batch(b"b"))
