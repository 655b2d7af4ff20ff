"""Nodes that are secured: they know each other by the folder they share, and nobody else."""

import asyncio
import shutil
import ssl
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.joined import JoinedNode, agreed, config_of, joined_node, until
from waterclock.cluster.peer_link.frames import Hello, encode_hello
from waterclock.model.errors import BadConfig
from waterclock.runtime.clock import SystemClock
from waterclock.security.folder import SecureFolder
from waterclock.security.tls import client_context
from waterclock.server.cluster.starting import ClusteredNode
from waterclock.streams.tokens import LIVE, Token

TEST_S = 60
NOW_MS = SystemClock().now_ms()


@pytest.fixture
def secured(tmp_path: Path) -> SecureFolder:
    """The secure folder of node `a`; that of `b` is a copy."""
    folder = SecureFolder(tmp_path / "a" / "secure")
    folder.path.parent.mkdir()
    folder.make(grpc_port=1, http_port=2, now_ms=NOW_MS)
    copy(folder, tmp_path / "b")
    return folder


def copy(folder: SecureFolder, data: Path) -> None:
    """Bring a folder to another node, as an operator would."""
    shutil.rmtree(data / "secure", ignore_errors=True)
    shutil.copytree(folder.path, data / "secure", symlinks=True)


def keys_of(node: JoinedNode) -> tuple[bytes, ...]:
    """Return what it seals gossip with, and opens it."""
    keyring = node.clustered._keys.keyring
    assert keyring is not None
    return keyring.keys


def has_other_keys(node: JoinedNode, keys: tuple[bytes, ...]) -> bool:
    return keys_of(node) != keys


def link_of(node: JoinedNode, other: str) -> Any:
    return node.clustered.cluster.peers._links.get(other)


def has_other_link(node: JoinedNode, link: Any) -> bool:
    return link_of(node, "a") not in (None, link)


def has_failed(node: JoinedNode) -> bool:
    """It has tried to join, in vain."""
    return node.membership.agent.counts.exchanges_failed > 0


async def asked(node: JoinedNode, folder: SecureFolder, path: str) -> bytes:
    """Ask a node as its admin, over TLS; return what it answers."""
    context = client_context(folder.ca.read_bytes())
    reader, writer = await asyncio.open_connection("localhost", node.server.http_port, ssl=context)
    token = folder.admin_credential.read_text().strip()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
    body = b'{"streamId":"%b","message":1}' % node.stream_of("a").encode()
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    answer = await reader.readuntil(b"\r\n")
    writer.transport.abort()
    return answer


async def test_secured_nodes_share_streams_through_tls_and_stay_linked_while_keys_are_rotated(
    tmp_path, secured
):
    async with (
        asyncio.timeout(TEST_S),
        joined_node(tmp_path, "a") as a,
        joined_node(tmp_path, "b", a) as b,
    ):
        await agreed(a, b)
        assert b"200" in await asked(b, secured, "/streams/send")
        link = link_of(b, "a")
        assert link._transport.get_extra_info("cipher")[1] == "TLSv1.3"
        token = a.node.stream_tokens.encode("s", Token(LIVE, 1, 2))
        assert b.node.token_of("s", token) == Token(LIVE, 1, 2)

        for _ in range(2):
            before = keys_of(a)
            secured.rotate(now_ms=SystemClock().now_ms())
            await until(partial(has_other_keys, a, before))
            # The other node has the old file: it believes the new keys all the same.
            link = link_of(b, "a")
            link.close("a test")
            await until(partial(has_other_link, b, link))
            assert b"200" in await asked(b, secured, "/streams/send")
            after = a.node.stream_tokens.encode("s", Token(LIVE, 1, 3))
            assert b.node.token_of("s", after) == Token(LIVE, 1, 3)

            copy(secured, tmp_path / "b")
            await until(partial(has_other_keys, b, before))
            assert keys_of(b) == keys_of(a)
        assert a.membership.agent.counts.packets_refused == 0
        assert b.membership.agent.counts.packets_refused == 0
        assert a.node.token_of("s", token) == Token(LIVE, 1, 2)
        assert "failed" not in {kind for kind, _ in a.seen() + b.seen()}


async def test_a_node_without_the_folder_and_one_with_another_cannot_join(tmp_path, secured):
    other = SecureFolder(tmp_path / "d" / "secure")
    other.path.parent.mkdir()
    other.make(grpc_port=1, http_port=2, now_ms=NOW_MS)
    async with (
        asyncio.timeout(TEST_S),
        joined_node(tmp_path, "a") as a,
        joined_node(tmp_path, "c", a) as plain,
        joined_node(tmp_path, "d", a) as stranger,
    ):
        for node in (plain, stranger):
            await until(partial(has_failed, node))
            assert [each.name for each in node.membership.members()] == [node.name]

        address = a.clustered.cluster.peers.address
        foreign = stranger.clustered.cluster.peers.security.client
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.open_connection(*address, ssl=foreign)
        reader, writer = await asyncio.open_connection(*address)
        writer.write(encode_hello(Hello("c", "waterclock", 100, 1_000)))
        assert b"waterclock" not in await reader.read()  # it hears no HELLO
        writer.transport.abort()
        assert [each.name for each in a.membership.members()] == ["a"]
        assert a.clustered.cluster.peers.linked == []


async def test_a_client_certificate_of_the_ca_is_not_enough_to_be_a_node(tmp_path, secured):
    secured.certify("admin", tmp_path / "cert", now_ms=NOW_MS)
    pem, key = tmp_path / "cert" / "admin.pem", tmp_path / "cert" / "admin.key"
    async with asyncio.timeout(TEST_S), joined_node(tmp_path, "a") as a:
        address = a.clustered.cluster.peers.address
        context = client_context(secured.ca.read_bytes(), pem, key)
        context.check_hostname = False
        reader, writer = await asyncio.open_connection(*address, ssl=context)
        writer.write(b"\0\0\0\x21\0" + bytes(8) + bytes(33))  # a challenge, and no proof
        writer.write(b"\0\0\0\x21\0" + bytes(8) + b"\1" + bytes(32))
        assert b"it does not know the secret" in await reader.read()
        writer.transport.abort()

        bare = client_context(secured.ca.read_bytes())
        bare.check_hostname = False
        reader, writer = await asyncio.open_connection(*address, ssl=bare)
        assert await reader.read() == b""  # not even a challenge
        writer.transport.abort()


async def test_a_folder_without_keys_of_a_cluster_keeps_a_node_from_joining(tmp_path, secured):
    (secured.path / "cluster.json").unlink()
    with pytest.raises(BadConfig, match=r"has no cluster\.json, .* secure init"):
        ClusteredNode(config_of(tmp_path, "a"), "a")
