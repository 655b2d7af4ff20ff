"""A client of a node that speaks TLS and asks for a token, and what it says where it cannot."""

import asyncio
import logging

import pytest

from tests.client.fake_node import fake_node
from tests.client.http_peers import ok, refusal, scripted
from tests.client.secured import credential_of, scripted_tls, secured_node
from waterclock.client._sync.client import connect_blocking
from waterclock.client.client import connect
from waterclock.client.settings import ClientSettings
from waterclock.client.streams.http_pool import HttpPool
from waterclock.client.streams.http_request import HttpRequest
from waterclock.model.errors import BadInput, Forbidden, NotAuthenticated

PATIENT = ClientSettings(
    connect_timeout_ms=3_600_000, call_timeout_ms=3_600_000, delivery_timeout_ms=3_600_000
)
"""Who is not retried fails all the same."""
GET = HttpRequest("GET", "/x")
NAMES = b'{"streams": ["chat"], "next": 0}'


async def test_every_call_bears_the_token(secure_folder):
    async with secured_node(secure_folder) as node:
        async with connect(credential=node.credential) as client:
            await client.publish("orders", b"one")
            async with client.subscribe("orders", group="billing") as messages:
                async for message in messages:
                    assert message.value == b"one"
                    await message.ack()
                    break

        methods = {call.rpartition("/")[2] for call in node.guard.calls}
    assert methods == {"GetNode", "PublishStream", "Subscribe"}


async def test_a_credential_may_stand_for_the_address(secure_folder):
    async with secured_node(secure_folder) as node, connect(node.credential.encode()) as client:
        assert (await client.node()).name == "fake"


async def test_a_blocking_client_takes_it_too(secure_folder):
    def name(text: str) -> str:
        with connect_blocking(credential=text) as client:
            return client.node().name

    async with secured_node(secure_folder) as node:
        assert await asyncio.to_thread(name, node.credential.encode()) == "fake"


async def test_an_address_may_say_where_the_node_of_a_credential_is(secure_folder):
    elsewhere = credential_of(secure_folder)
    async with (
        secured_node(secure_folder) as node,
        connect(node.address, credential=elsewhere) as client,
    ):
        assert (await client.node()).name == "fake"


async def test_a_client_in_the_open_is_told_to_give_a_credential(secure_folder):
    async with secured_node(secure_folder) as node:
        with pytest.raises(NotAuthenticated, match="is secured, it speaks TLS: give a credential"):
            await connect(node.address, PATIENT).__aenter__()


async def test_so_it_is_if_another_address_of_the_name_refuses(secure_folder):
    async with secured_node(secure_folder) as node:
        with pytest.raises(NotAuthenticated, match="is secured, it speaks TLS"):
            await connect(f"localhost:{node.port}", PATIENT).__aenter__()


async def test_a_credential_is_not_sent_to_a_node_in_the_open(secure_folder):
    async with fake_node() as node:
        with pytest.raises(BadInput, match=r"does not speak TLS.* connect without one"):
            await connect(
                node.address, PATIENT, credential=credential_of(secure_folder)
            ).__aenter__()


async def test_a_node_of_another_ca_is_not_trusted(secure_folder, other_folder):
    async with secured_node(secure_folder) as node:
        foreign = credential_of(other_folder, node.address)
        with pytest.raises(BadInput, match="is not the one that the credential is for"):
            await connect(settings=PATIENT, credential=foreign).__aenter__()
        assert node.guard.calls == []


async def test_a_name_that_is_not_in_the_certificate_says_how_to_add_it(secure_folder):
    async with secured_node(secure_folder, "127.0.0.2") as node:
        with pytest.raises(BadInput, match=r"is not for 127.0.0.2.*secure rotate --host 127.0.0.2"):
            await connect(settings=PATIENT, credential=node.credential).__aenter__()
        assert node.guard.calls == []


async def test_the_https_port_given_for_grpc_says_which_port_to_type(secure_folder):
    async with scripted_tls(secure_folder, lambda _: ok(b"")) as peer:
        address = f"127.0.0.1:{peer.port}"
        with pytest.raises(BadInput, match=f"^{address} speaks HTTP.* Type 127.0.0.1:9000"):
            await connect(address, PATIENT, credential=credential_of(secure_folder)).__aenter__()


async def test_who_is_not_known_is_not_tried_again_and_told_what_to_do(secure_folder):
    async with secured_node(secure_folder) as node:
        node.guard.refusal = NotAuthenticated("the credential of billing was revoked")
        with pytest.raises(NotAuthenticated, match=r"revoked; give a credential.*secure add"):
            await connect(settings=PATIENT, credential=node.credential).__aenter__()
        assert len(node.guard.calls) == 1


async def test_what_is_forbidden_is_not_tried_again_and_says_which_right_to_give(secure_folder):
    async with (
        secured_node(secure_folder) as node,
        connect(settings=PATIENT, credential=node.credential) as client,
    ):
        node.guard.refusal = Forbidden("publish", "topic 'orders'", principal="billing")
        node.guard.calls.clear()

        with pytest.raises(Forbidden) as refused:
            await client.publish("orders", b"one")
        assert str(refused.value) == (
            "billing has no right to publish topic 'orders'; use another credential, or give "
            "the right with `waterclock secure add billing --replace --publish GLOB`, beside "
            "those it has"
        )
        assert len(node.guard.calls) == 1

        with pytest.raises(Forbidden):
            async for _ in client.subscribe("orders", group="billing"):
                pass
        assert len(node.guard.calls) == 2


async def test_a_batch_of_a_stream_that_is_forbidden_says_the_same(secure_folder):
    async with (
        secured_node(secure_folder) as node,
        connect(settings=PATIENT, credential=node.credential) as client,
    ):
        node.fails_before.append(Forbidden("publish", "topic 'bills'", principal="billing"))
        with pytest.raises(Forbidden, match="secure add billing --replace --publish GLOB"):
            await client.publish("bills", b"one")


async def test_neither_a_client_nor_its_log_nor_an_error_shows_the_token(secure_folder, caplog):
    caplog.set_level(logging.DEBUG)
    async with secured_node(secure_folder) as node:
        credential = node.credential
        async with connect(credential=credential) as client:
            shown = [repr(client), repr(client._connection), repr(client.streams)]
            shown.append(repr(vars(client._connection)))
        node.guard.refusal = NotAuthenticated("no")
        with pytest.raises(NotAuthenticated) as refused:
            await connect(credential=credential).__aenter__()
    shown += [str(refused.value), caplog.text]
    assert not [text for text in shown if credential.token in text]


# Streams, over HTTPS


async def test_streams_are_asked_by_tls_with_the_token(secure_folder):
    async with (
        secured_node(secure_folder) as node,
        scripted_tls(secure_folder, lambda _: ok(NAMES)) as peer,
    ):
        credential = credential_of(secure_folder, node.address, f"https://127.0.0.1:{peer.port}")
        async with connect(credential=credential) as client:
            assert await client.streams.list() == ["chat"]
            assert await client.streams.list() == ["chat"]

    assert peer.connections == 1, "the handshake is made once"
    bearer = f"Authorization: Bearer {credential.token}\r\n".encode()
    assert [bearer in request for request in peer.requests] == [True, True]


async def test_a_pool_in_the_open_is_told_to_give_a_credential(secure_folder):
    async with scripted_tls(secure_folder, lambda _: ok(b"")) as peer:
        pool = HttpPool(peer.url, connections_max=1)
        with pytest.raises(NotAuthenticated, match="is secured, it speaks TLS"):
            await pool.ask(GET, timeout_s=60)
        pool.close()


async def test_a_pool_with_a_credential_sends_nothing_in_the_open(secure_folder):
    credential = credential_of(secure_folder)
    async with scripted(lambda _: ok(b"")) as peer:
        with pytest.raises(BadInput, match="not of the form https://"):
            HttpPool(peer.url, connections_max=1, credential=credential)


async def test_a_pool_does_not_trust_another_ca(secure_folder, other_folder):
    async with scripted_tls(secure_folder, lambda _: ok(b"")) as peer:
        foreign = credential_of(other_folder)
        pool = HttpPool(f"https://127.0.0.1:{peer.port}", connections_max=1, credential=foreign)
        with pytest.raises(BadInput, match="is not the one that the credential is for"):
            await pool.ask(GET, timeout_s=60)
        pool.close()
    assert peer.requests == []


async def test_streams_that_are_forbidden_are_not_asked_for_again(secure_folder):
    body = (
        b'{"error":"Forbidden","detail":"billing has no right to read stream chat",'
        b'"right":"read","principal":"billing","resource":"stream chat"}'
    )
    async with (
        secured_node(secure_folder) as node,
        scripted_tls(secure_folder, lambda _: refusal(403, body)) as peer,
    ):
        credential = credential_of(secure_folder, node.address, f"https://127.0.0.1:{peer.port}")
        async with connect(settings=PATIENT, credential=credential) as client:
            with pytest.raises(Forbidden, match="secure add billing --replace --read GLOB"):
                await client.streams.get("chat")
    assert len(peer.requests) == 1
