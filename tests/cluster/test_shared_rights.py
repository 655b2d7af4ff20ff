"""Whole nodes on a real etcd, each with a secure folder: what is done to one holds at all."""

import asyncio
import shutil
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest

import waterclock
from tests.cluster.joined import config_of, until
from tests.cluster.running_nodes import RunningNode
from waterclock.client.client import Client
from waterclock.client.streams.http_pool import HttpPool
from waterclock.client.streams.http_request import HttpRequest
from waterclock.model.errors import BadInput, Forbidden, NotAuthenticated, NotFound
from waterclock.model.units import DAY_MS
from waterclock.node.node import Node
from waterclock.runtime.clock import SystemClock
from waterclock.security.credential import Credential
from waterclock.security.folder import Grant, SecureFolder
from waterclock.security.rights import RightKind, parse_rights
from waterclock.server.app import Server

pytestmark = pytest.mark.etcd

TEST_S = 90
CLOCK = SystemClock()


def folders_of(path: Path, names: str) -> list[SecureFolder]:
    """Return the secure folders of nodes: copies of one."""
    first, *others = [SecureFolder(path / name / "secure") for name in names]
    first.make(grpc_port=1, http_port=2, now_ms=CLOCK.now_ms())
    for other in others:
        shutil.copytree(first.path, other.path, symlinks=True)
    return [first, *others]


def added(folder: SecureFolder, name: str, **rights: str) -> str:
    """Let somebody in by one folder; return the token."""
    now_ms = CLOCK.now_ms()
    kinds = {cast(RightKind, kind): [glob] for kind, glob in (rights or {"read": "*"}).items()}
    grant = Grant(rights=parse_rights(kinds), expires_ms=now_ms + DAY_MS)
    credential = folder.add(name, grant, now_ms=now_ms)
    assert credential is not None
    return credential.token


def lets_in(server: Server, token: str) -> bool:
    """Say if a node takes a token."""
    try:
        server.access.principal_of(f"Bearer {token}")
    except NotAuthenticated:
        return False
    return True


async def test_who_is_added_or_revoked_at_one_node_is_so_at_all_also_after_one_was_away(
    tmp_path, member
):
    etcd = {"etcd": (member.endpoint,), "expect": 3, "name": "rights"}
    folder_a, folder_b, folder_c = folders_of(tmp_path, "abc")
    configs = [config_of(tmp_path, name, cluster=etcd) for name in "abc"]
    async with asyncio.timeout(TEST_S), asyncio.TaskGroup() as tasks:
        nodes = [RunningNode(config) for config in configs]
        running = [tasks.create_task(node.run()) for node in nodes]
        (_, a), (_, b), (_, c) = [await node.started for node in nodes]

        token = added(folder_a, "ada")
        await until(lambda: all(lets_in(each, token) for each in (a, b, c)))
        folder_b.revoke("ada")
        await until(lambda: not any(lets_in(each, token) for each in (a, b, c)))

        stale = added(folder_b, "bob")
        await until(lambda: all(lets_in(each, stale) for each in (a, b, c)))
        nodes[2].end()
        await running[2]
        folder_a.revoke("bob")
        meanwhile = added(folder_c, "eve")
        await until(lambda: not any(lets_in(each, stale) for each in (a, b)))
        back = RunningNode(configs[2])
        tasks.create_task(back.run())
        _, c = await back.started

        assert not lets_in(c, stale)
        await until(lambda: all(lets_in(each, meanwhile) for each in (a, b, c)))
        anew = added(folder_c, "bob")
        await until(lambda: all(lets_in(each, anew) for each in (a, b, c)))
        assert not any(lets_in(each, stale) for each in (a, b, c))
        for node in (*nodes[:2], back):
            node.end()


async def test_nodes_that_differ_go_by_the_one_that_leads_first_and_clients_reach_no_record(
    tmp_path, member, caplog
):
    etcd = {"etcd": (member.endpoint,), "expect": 2, "name": "differing"}
    folders = folders_of(tmp_path, "ab")
    tokens = [added(folder, name) for folder, name in zip(folders, ("ada", "bob"), strict=True)]
    async with asyncio.timeout(TEST_S), asyncio.TaskGroup() as tasks:
        nodes = [RunningNode(config_of(tmp_path, name, cluster=etcd)) for name in "ab"]
        for node in nodes:
            tasks.create_task(node.run())
        started = [await node.started for node in nodes]
        leader, other = sorted(started, key=lambda each: not each[0].metadata.is_leading)

        await until(lambda: settled(leader) and settled(other))
        winner = started.index(leader)
        for _, server in started:
            assert [lets_in(server, token) for token in tokens] == [winner == 0, winner == 1]
        assert (folders[1 - winner].path / "principals.aside.json").exists()
        assert "principals_put_aside" in caplog.text

        await records_are_kept_from_clients(leader, folders[winner])
        for node in nodes:
            node.end()


def settled(started: tuple[Node, Server]) -> bool:
    """Say if a node has taken up the records."""
    node, server = started
    records = node.rights.committed()
    known = server.access.state.principals.known
    return records is not None and known.keys() == dict(records.standings).keys()


async def records_are_kept_from_clients(leader: tuple[Node, Server], folder: SecureFolder) -> None:
    """Ask for the records, and to write them, as an admin."""
    node, server = leader
    before = node.metadata.items("rights")
    credential = folder.admin_credential.read_text().strip()
    async with waterclock.connect(server.addresses.grpc, credential=credential) as client:
        with pytest.raises((NotFound, BadInput)):
            await client.publish("__meta", b"{}", key=b"rights/admin")
        with pytest.raises((NotFound, BadInput)):
            await client.topics.get("__meta")
    assert node.metadata.items("rights") == before


async def nobody_changes_it(client: Client, http: str, token: str, ca: bytes) -> None:
    """Try to, over gRPC and HTTP."""
    for attempt in (
        client.stop_repeating("beat"),
        client.pause_repeating("beat"),
        client.resume_repeating("beat"),
        client.repeat("beat", "other", b"tick", at="every 1h"),
    ):
        with pytest.raises(Forbidden):
            await attempt
    credential = Credential("", http, ca, token)
    with closing(HttpPool(http, connections_max=1, credential=credential)) as pool:
        for method, path in (("DELETE", ""), ("POST", "/pause"), ("GET", "")):
            asked = HttpRequest(method, f"/recurrences/beat{path}")
            assert (await pool.ask(asked, timeout_s=10)).status == 403


async def test_who_may_not_change_what_recurs_may_not_by_a_node_that_does_not_lead_either(
    tmp_path, member, monkeypatch
):
    etcd = {"etcd": (member.endpoint,), "expect": 2, "name": "recurring"}
    folders = folders_of(tmp_path, "ab")
    token = added(folders[0], "ada", schedule="other", publish="other")
    shutil.rmtree(folders[1].path)
    shutil.copytree(folders[0].path, folders[1].path, symlinks=True)
    async with asyncio.timeout(TEST_S), asyncio.TaskGroup() as tasks:
        nodes = [RunningNode(config_of(tmp_path, name, cluster=etcd)) for name in "ab"]
        for each in nodes:
            tasks.create_task(each.run())
        started = [await each.started for each in nodes]
        (leading, _), (node, server) = sorted(
            started, key=lambda each: not each[0].metadata.is_leading
        )
        await until(lambda: lets_in(server, token))
        ca = folders[0].ca.read_bytes()
        address, http = server.addresses.grpc, server.addresses.http
        admin = folders[0].admin_credential.read_text().strip()
        async with (
            waterclock.connect(address, credential=admin) as owner,
            waterclock.connect(credential=Credential(address, http, ca, token)) as client,
        ):
            await owner.repeat("beat", "orders", b"tick", at="every 1h")
            await until(lambda: node.metadata.get("recurrence/beat"))
            await nobody_changes_it(client, http, token, ca)
            with monkeypatch.context() as late:
                # The records come to this node later than what is asked of it.
                late.setattr(node.recurrences, "topic_of", lambda name: "")
                await nobody_changes_it(client, http, token, ca)
            assert leading.recurrences.topic_of("beat") == "orders"
            assert await owner.stop_repeating("beat")
        for each in nodes:
            each.end()
