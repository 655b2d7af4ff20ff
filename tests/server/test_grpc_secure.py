"""gRPC on a secure node: TLS 1.3, who is let in, and calls that end when somebody no longer is."""

import asyncio
import ssl
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from tests.server.grpc_secure import CLOCK, SecureServed, secure_server
from tests.server.raw_http2 import RawHttp2
from tests.server.served import arrow_of, failure
from waterclock.model.errors import QuotaExceeded
from waterclock.model.message import Message
from waterclock.model.sections import SecurityConfig
from waterclock.model.units import MIB
from waterclock.security.principals import Principal
from waterclock.security.quotas import Quotas, Usage
from waterclock.security.rights import Rights
from waterclock.security.tls import client_context
from waterclock.server.grpc.guard import GuardedMethod
from waterclock.server.grpc.server import WINDOW_BYTES
from waterclock.v1 import admin_pb2
from waterclock.v1 import broker_pb2 as pb

BROKER, ADMIN = "/waterclock.v1.Broker", "/waterclock.v1.Admin"
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED
DENIED = grpc.StatusCode.PERMISSION_DENIED
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


def publish(topic: str, value: bytes = b"x") -> pb.PublishRequest:
    return pb.PublishRequest(topic=topic, message=pb.Message(value=value))


def batch(topic: str, value: bytes, number: int = 1) -> pb.PublishStreamRequest:
    arrow = arrow_of(Message(value, message_id=b"id-%d" % number))
    part = pb.PublishBatchRequest(topic=topic, arrow=arrow)
    return pb.PublishStreamRequest(sequence=number, batch=part)


def version_of(it: SecureServed, version: ssl.TLSVersion) -> str | None:
    context = client_context(it.folder.ca.read_bytes())
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2"])
    client = RawHttp2(it.server.grpc_port, context)
    with closing(client.socket):
        assert isinstance(client.socket, ssl.SSLSocket)
        return client.socket.version()


async def test_tls_13_is_taken_and_nothing_older(tmp_path):
    async with secure_server(tmp_path) as it:
        newest = await asyncio.to_thread(version_of, it, ssl.TLSVersion.TLSv1_3)
        assert newest == "TLSv1.3"
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.to_thread(version_of, it, ssl.TLSVersion.TLSv1_2)


async def test_new_handshakes_see_the_newest_certificate(tmp_path):
    async with secure_server(tmp_path) as it:
        before = await asyncio.to_thread(shown_by, it)
        it.folder.rotate(now_ms=1_900_000_000_000)
        assert await it.server.access.reload()

        shown = await asyncio.to_thread(shown_by, it)
        assert shown != before
        assert it.folder.node_certificate.read_bytes().startswith(shown)


def shown_by(it: SecureServed) -> bytes:
    return ssl.get_server_certificate(("localhost", it.server.grpc_port)).encode()


async def test_a_refusal_names_the_right_and_what_it_is_about(tmp_path):
    async with secure_server(tmp_path) as it:
        billing = await it.add("billing", publish="orders.*")
        await it.unary(f"{BROKER}/Publish", publish("orders.new"), billing)

        code, details, facts = await failure(
            it.unary(f"{BROKER}/Publish", publish("payments"), billing)
        )
        assert code is DENIED
        assert details == "billing has no right to publish topic 'payments'"
        assert facts["right"] == "publish"


async def test_lists_show_what_the_principal_sees(tmp_path):
    async with secure_server(tmp_path) as it:
        for topic in ("orders.a", "payments", "orders.b"):
            await it.unary(f"{BROKER}/Publish", publish(topic), it.admin)
        billing = await it.add("billing", read="orders.*")

        answer = await it.unary(f"{ADMIN}/ListTopics", admin_pb2.ListTopicsRequest(), billing)
        listed = admin_pb2.ListTopicsResponse.FromString(answer).topics
        assert [topic.topic for topic in listed] == ["orders.a", "orders.b"]


async def test_each_batch_of_a_stream_is_checked_and_the_stream_goes_on(tmp_path):
    async with secure_server(tmp_path) as it:
        billing = await it.add("billing", publish="orders")
        call = it.stream(f"{BROKER}/PublishStream", billing)
        codes = []
        for number, topic in enumerate(("orders", "payments", "orders")):
            await call.write(batch(topic, b"x", number).SerializeToString())
            answer = pb.PublishStreamResponse.FromString(await call.read())
            codes.append(answer.problem.code)
        assert codes == [0, DENIED.value[0], 0]
        made = {topic.name for topic in it.server.node.topics.all()} - {"__audit"}
        assert made == {"orders"}
        call.cancel()


async def test_open_calls_end_once_their_principal_is_revoked(tmp_path):
    async with secure_server(tmp_path) as it:
        billing = await it.add("billing", consume="orders:billing")
        await it.unary(f"{BROKER}/Publish", publish("orders"), it.admin)
        call = it.stream(f"{BROKER}/Subscribe", billing)
        opening = pb.SubscribeRequest.Open(topic="orders", group="billing")
        await call.write(pb.SubscribeRequest(open=opening).SerializeToString())
        assert pb.SubscribeResponse.FromString(await call.read()).HasField("opened")

        it.folder.revoke("billing")  # the node looks by itself
        assert (await failure(drained(call)))[0] is UNAUTHENTICATED


async def test_open_calls_end_once_their_right_is_taken(tmp_path):
    async with secure_server(tmp_path) as it:
        billing = await it.add("billing", publish="orders")
        call = it.stream(f"{BROKER}/PublishStream", billing)
        await call.write(batch("orders", b"x").SerializeToString())
        assert pb.PublishStreamResponse.FromString(await call.read()).published.count == 1

        # The token stays, the right goes.
        principals = it.folder.path / "principals.json"
        principals.write_text(principals.read_text().replace('"orders"', '"others"'))
        assert (await failure(drained(call)))[0] is DENIED


async def drained(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass
    raise AssertionError("the call ended well")


async def test_a_rate_of_requests_is_kept_and_the_refusal_says_when_to_come_again(tmp_path):
    async with secure_server(tmp_path) as it:
        slow = await it.add("slow", Quotas(requests_per_s=1), publish="*")
        answers = [it.unary(f"{BROKER}/Publish", publish("orders"), slow) for _ in range(3)]
        found = await asyncio.gather(*answers, return_exceptions=True)
        refused = [each for each in found if isinstance(each, grpc.aio.AioRpcError)]
        assert refused
        code, _, facts = await failure(_raise(refused[0]))
        assert code is EXHAUSTED
        assert facts["error"] == "QuotaExceeded"
        assert 0 < int(facts["retry_after_ms"]) <= 1_000


async def _raise(error: Exception) -> None:
    raise error


async def test_who_sends_too_fast_is_slowed_down_and_at_last_refused(tmp_path):
    async with secure_server(tmp_path) as it:
        slow = await it.add("slow", Quotas(bytes_per_s=100_000), publish="*")
        call = it.stream(f"{BROKER}/PublishStream", slow)
        for number in range(3):
            await call.write(batch("orders", bytes(60_000), number).SerializeToString())
        for _ in range(3):
            answer = pb.PublishStreamResponse.FromString(await call.read())
            assert answer.published.count == 1
        call.cancel()

        big = publish("orders", bytes(90_000))
        await it.unary(f"{BROKER}/Publish", big, slow)  # ahead of its time
        calls = [it.unary(f"{BROKER}/Publish", big, slow) for _ in range(3)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        refused = [each for each in answers if isinstance(each, grpc.aio.AioRpcError)]
        assert 1 <= len(refused) <= 2, "one at least has its turn within a second"
        assert {each.code() for each in refused} == {EXHAUSTED}


async def test_a_call_that_would_not_live_to_have_its_turn_is_refused_at_once():
    usage = Usage("slow", Quotas(bytes_per_s=1_000), 0)
    method: Any = SimpleNamespace(access=SimpleNamespace(usage_of=lambda _: usage))
    short_lived: Any = SimpleNamespace(time_remaining=lambda: 0.5)

    with pytest.raises(QuotaExceeded, match="slow is at its quota"):
        await GuardedMethod.wait(method, Principal("slow", Rights()), 500, short_lived)

    assert usage.unread == 0


async def test_a_connection_too_many_is_refused_while_another_is_in_use(tmp_path):
    async with secure_server(tmp_path) as it:
        one = await it.add("one", Quotas(connections=1), consume="*", publish="*")
        call = it.stream(f"{BROKER}/PublishStream", one)
        await call.write(batch("orders", b"x").SerializeToString())
        await call.read()
        credentials = grpc.ssl_channel_credentials(it.folder.ca.read_bytes())
        options = [("grpc.use_local_subchannel_pool", 1)]
        address = f"localhost:{it.server.grpc_port}"
        async with grpc.aio.secure_channel(address, credentials, options) as other:
            method: Any = other.unary_unary(f"{BROKER}/Publish")
            request = publish("orders").SerializeToString()
            code, _, facts = await failure(method(request, metadata=one))
            assert (code, facts["field"]) == (EXHAUSTED, "connections")
            await call.done_writing()
            while await call.read() is not grpc.aio.EOF:
                pass
            await method(request, metadata=one)


async def test_a_principal_makes_no_more_topics_than_it_may_have(tmp_path):
    async with secure_server(tmp_path) as it:
        one = await it.add("one", Quotas(topics=1), publish="orders.*")
        await it.unary(f"{BROKER}/Publish", publish("orders.a"), one)
        await it.unary(f"{BROKER}/Publish", publish("orders.a"), one)

        code, _, facts = await failure(it.unary(f"{BROKER}/Publish", publish("orders.b"), one))
        assert (code, facts["error"]) == (EXHAUSTED, "CapacityReached")
        call = it.stream(f"{BROKER}/PublishStream", one)
        await call.write(batch("orders.c", b"x").SerializeToString())
        answer = pb.PublishStreamResponse.FromString(await call.read())
        assert answer.problem.error == "CapacityReached"
        call.cancel()


async def test_a_certificate_says_who_asks_where_all_must_show_one(tmp_path):
    security = SecurityConfig(grpc_certificates=True)
    async with secure_server(tmp_path, security=security) as it:
        await it.add("billing", publish="orders")
        it.folder.certify("billing", tmp_path / "pair", now_ms=CLOCK.now_ms())
        credentials = grpc.ssl_channel_credentials(
            it.folder.ca.read_bytes(),
            (tmp_path / "pair" / "billing.key").read_bytes(),
            (tmp_path / "pair" / "billing.pem").read_bytes(),
        )
        address = f"localhost:{it.server.grpc_port}"
        async with grpc.aio.secure_channel(address, credentials) as channel:
            method: Any = channel.unary_unary(f"{BROKER}/Publish")
            await method(publish("orders").SerializeToString())
            refused = await failure(method(publish("payments").SerializeToString()))
            assert refused[0] is DENIED
            await method(publish("payments").SerializeToString(), metadata=it.admin)
        without = it.unary(f"{BROKER}/Publish", publish("orders"), it.admin)
        assert (await failure(without))[0] is grpc.StatusCode.UNAVAILABLE


def taken_in(it: SecureServed, size: int) -> int:
    context = client_context(it.folder.ca.read_bytes())
    context.set_alpn_protocols(["h2"])
    client = RawHttp2(it.server.grpc_port, context)
    with closing(client.socket):
        for _ in range(40):
            client.call(f"{BROKER}/PublishBatch", size)
        client.send_all_that_is_let_in()
        assert len(client.ended) == 40
        return max(client.sent.values())


async def test_nothing_is_read_of_who_is_not_known(tmp_path):
    async with secure_server(tmp_path) as it:
        assert await asyncio.to_thread(taken_in, it, 60 * MIB) <= WINDOW_BYTES
