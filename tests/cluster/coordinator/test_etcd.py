"""What only a real etcd has: several members, users, certificates, connections that break."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from typing import Any

import pytest

from benchmarks.peers.cache import Absent
from tests.cluster.coordinator.etcd_servers import EtcdMember, programs, running
from tests.dispatch.certificates import certificates
from tests.kit.network import wired
from tests.stores.servers.registry import reason_to_skip
from waterclock.cluster.coordinator.errors import CoordinatorRefused, CoordinatorUnavailable
from waterclock.cluster.coordinator.requests import Put, Revision, Txn, all_below, one_key
from waterclock.server.cluster.etcd.coordinator import EtcdCoordinator
from waterclock.server.cluster.etcd.members import EtcdSettings

KEYS = all_below(b"k")
LED_S_MAX = 60


@pytest.fixture(autouse=True, scope="module")
def etcd() -> None:
    """Have etcd, or skip all of this."""
    try:
        programs()
    except Absent as absent:
        pytest.skip(reason_to_skip("debian", absent))


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[EtcdMember]]:
    # So that a ping need not wait for the five seconds that etcd wants between them.
    flags = ["--grpc-keepalive-min-time=500ms"]
    with running(tmp_path_factory.mktemp("three"), count=3, flags=flags) as members:
        yield members


@asynccontextmanager
async def client(*endpoints: str, **settings: Any) -> AsyncIterator[EtcdCoordinator]:
    given = {"attempt_s": 30.0, "keepalive_ms": 60_000, **settings}
    coordinator = EtcdCoordinator(EtcdSettings(endpoints=endpoints, **given))
    try:
        yield coordinator
    finally:
        await coordinator.close()


def put(number: int) -> Txn:
    return Txn((), (Put(b"k", b"%d" % number),))


@contextmanager
def stopped(member: EtcdMember) -> Iterator[None]:
    member.send(SIGSTOP)
    try:
        yield
    finally:
        member.send(SIGCONT)


async def until_led(coordinator: EtcdCoordinator) -> None:
    """Return once the members have a leader: it may be their leader that stands still, and until
    they have another they answer that there is none."""
    async with asyncio.timeout(LED_S_MAX):
        while True:
            with suppress(CoordinatorUnavailable):
                await coordinator.read(KEYS)
                return


async def until_value(batches: Any, value: bytes) -> list[bytes]:
    """Return what a watch tells up to a value."""
    values: list[bytes] = []
    while value not in values:
        values += [each.item.value for each in (await anext(batches)).events]
    return values


async def test_reads_and_watches_go_on_when_their_member_is_killed(three):
    first, *others = three
    async with (
        client(*(each.endpoint for each in three)) as watcher,
        client(*(each.endpoint for each in others)) as writer,
    ):
        await watcher.read(KEYS)
        start = (await writer.write(put(0))).revision
        async with watcher.watch(KEYS, from_revision=start) as batches:
            seen = await until_value(batches, b"0")
            first.kill()
            await writer.read(KEYS)
            await writer.write(put(1))
            seen += await until_value(batches, b"1")
            found = await watcher.read(KEYS)
        first.start()

        assert seen == [b"0", b"1"]
        assert [each.value for each in found.items] == [b"1"]


async def test_a_member_that_is_stopped_is_left_and_its_watches_with_it(three):
    endpoints = [each.endpoint for each in three]
    async with client(*endpoints, attempt_s=1.0) as coordinator, client(*endpoints) as writer:
        await writer.read(KEYS)
        start = (await writer.write(put(0))).revision
        async with coordinator.watch(KEYS, from_revision=start) as batches:
            seen = await until_value(batches, b"0")
            served = next(each for each in three if each.endpoint == coordinator.endpoint)
            others = [each.endpoint for each in three if each is not served]
            with stopped(served):
                async with client(*others) as other:
                    await until_led(other)
                    await other.write(put(1))
                found = await coordinator.read(KEYS)
                seen += await until_value(batches, b"1")

        assert seen == [b"0", b"1"]
        assert [each.value for each in found.items] == [b"1"]
        assert coordinator.endpoint != served.endpoint


async def test_a_watch_alone_notices_by_pings_that_its_member_is_stopped(three):
    endpoints = [each.endpoint for each in three]
    async with (
        client(*endpoints, attempt_s=1.0, keepalive_ms=1_000) as coordinator,
        client(*endpoints) as writer,
    ):
        await writer.read(KEYS)
        start = (await writer.write(put(0))).revision
        async with coordinator.watch(KEYS, from_revision=start) as batches:
            seen = await until_value(batches, b"0")
            served = next(each for each in three if each.endpoint == coordinator.endpoint)
            others = [each.endpoint for each in three if each is not served]
            with stopped(served):
                async with client(*others) as other:
                    await until_led(other)
                    await other.write(put(1))
                seen += await until_value(batches, b"1")

        assert seen == [b"0", b"1"]


async def test_a_member_without_the_others_answers_nothing(three):
    first, *others = three
    async with client(first.endpoint, attempt_s=0.5) as coordinator:
        for member in others:
            member.kill()
        with pytest.raises(CoordinatorUnavailable):
            await coordinator.write(put(7))
        for member in others:
            member.launch()
        for member in others:
            member.wait()
    async with client(first.endpoint) as coordinator:
        await coordinator.read(KEYS)


async def test_a_watch_over_a_broken_connection_loses_nothing_and_tells_nothing_twice(three):
    member, _, _ = three
    with wired(member.port) as wire:
        async with client(wire.address) as watcher, client(member.endpoint) as writer:
            start = (await writer.write(put(0))).revision
            async with watcher.watch(KEYS, from_revision=start) as batches:
                seen = await until_value(batches, b"0")
                for number in range(1, 9):
                    await writer.write(put(number))
                    if number % 3 == 0:
                        wire.cut("reset")
                        await writer.write(put(100 + number))
                        wire.heal()
                    elif number % 3 == 1:
                        seen += await until_value(batches, b"%d" % number)
                seen += await until_value(batches, b"8")

    expected = [0, 1, 2, 3, 103, 4, 5, 6, 106, 7, 8]
    assert seen == [b"%d" % number for number in expected]


async def test_a_write_that_is_not_answered_is_not_sent_to_another_member(three):
    member, other, _ = three
    with wired(member.port) as wire, wired(other.port) as second:
        async with (
            client(wire.address, second.address, attempt_s=1.0) as torn,
            client(member.endpoint) as reader,
        ):
            before = (await reader.read(KEYS)).revision
            second.cut("reset")
            await torn.read(KEYS)
            second.heal()
            wire.cut("hold")
            with pytest.raises(CoordinatorUnavailable):
                await torn.write(put(1))

            assert (await reader.read(KEYS)).revision == before
            wire.heal()


def with_users(member: EtcdMember) -> None:
    """Have the members know root, and nobody without a password."""
    member.post("auth/user/add", {"name": "root", "password": "secret"})
    member.post("auth/role/add", {"name": "root"})
    member.post("auth/user/grant", {"user": "root", "role": "root"})
    member.post("auth/user/add", {"name": "guest", "password": "guest"})
    member.post("auth/enable", {})


def forget_tokens(member: EtcdMember) -> None:
    """Have root choose its password anew: tokens of before are no good."""
    root = {"name": "root", "password": "secret"}
    token = member.post("auth/authenticate", root)["token"]
    member.post("auth/user/changepw", root, token=token)


async def test_a_user_is_known_by_password_and_again_after_its_token_is_forgotten(tmp_path):
    with running(tmp_path) as (member,):
        with_users(member)
        async with client(member.endpoint, user="root", password="secret") as root:
            start = (await root.write(put(0))).revision
            async with root.watch(KEYS, from_revision=start) as batches:
                seen = await until_value(batches, b"0")
                forget_tokens(member)
                await root.write(put(1))
                seen += await until_value(batches, b"1")
            forget_tokens(member)
            async with root.watch(KEYS, from_revision=start) as batches:
                assert await until_value(batches, b"1") == [b"0", b"1"]
        assert seen == [b"0", b"1"]

        for known_by in ({}, {"user": "root", "password": "no"}):
            async with client(member.endpoint, **known_by) as nobody:
                with pytest.raises(CoordinatorRefused):
                    await nobody.read(KEYS)
        async with client(member.endpoint, user="guest", password="guest") as guest:
            with pytest.raises(CoordinatorRefused, match="permission denied"):
                await guest.read(KEYS)
            async with guest.watch(KEYS, from_revision=Revision(1)) as batches:
                with pytest.raises(CoordinatorRefused, match="permission denied"):
                    await anext(batches)


async def test_both_sides_show_certificates(tmp_path: Path):
    files = certificates(tmp_path / "tls")
    ca_pem = files.ca.read_bytes()
    flags = [
        f"--cert-file={files.certificate}", f"--key-file={files.key}", "--client-cert-auth",
        f"--trusted-ca-file={files.ca}",
    ]  # fmt: skip
    ours = {"certificate_pem": files.certificate.read_bytes(), "key_pem": files.key.read_bytes()}
    with running(tmp_path, flags=flags) as (member,):
        async with client(member.endpoint, ca_pem=ca_pem, **ours) as known:
            await known.write(put(1))
            assert (await known.read(one_key(b"k"))).items[0].value == b"1"
        async with client(member.endpoint, ca_pem=ca_pem, attempt_s=0.5) as unknown:
            with pytest.raises(CoordinatorUnavailable):
                await unknown.read(KEYS)
