"""The link and the client on real servers: order, errors, masters that change, clusters."""

import asyncio
import socket
from contextlib import suppress

import pytest

from tests.dispatch.redis_servers import cluster, replicated, single
from waterclock.dispatch.redis.client import RedisClient
from waterclock.dispatch.redis.keys import SLOTS, beside, hash_tag, slot_of
from waterclock.dispatch.redis.link import (
    RedisAddress,
    RedisAway,
    RedisRefused,
    connect,
)
from waterclock.dispatch.redis.scripts import RAISE_FENCE
from waterclock.model.errors import BadInput


async def test_answers_come_in_the_order_of_the_commands(server, name):
    link = await connect(RedisAddress.parse(server.address))
    futures = [link.call("RPUSH", name, n) for n in range(1_000)]
    assert await asyncio.gather(*futures) == list(range(1, 1_001))
    link.close()


async def test_an_error_fails_its_own_command_only(server, name):
    link = await connect(RedisAddress.parse(server.address))
    first, second, third = (
        link.call("SET", name, 1),
        link.call("LPUSH", name, 1),
        link.call("GET", name),
    )
    assert await first == b"OK"
    with pytest.raises(RedisRefused) as refused:
        await second
    assert refused.value.kind == "WRONGTYPE"
    assert await third == b"1"
    link.close()


async def test_who_waits_hears_that_the_server_went_away(tmp_path):
    with single(tmp_path / "redis") as server:
        link = await connect(RedisAddress.parse(server.address))
        waiting = link.call("BLPOP", "nothing", 0)
        server.kill()
        with pytest.raises(RedisAway):
            await waiting
        assert not link.is_open
        with pytest.raises(RedisAway):
            await link.call("PING")


async def test_a_server_that_hangs_counts_as_gone(tmp_path):
    with single(tmp_path / "redis") as server:
        link = await connect(RedisAddress.parse(server.address), silence_s_max=0.2)
        server.pause()
        with pytest.raises(RedisAway):
            await link.call("PING")


async def test_a_subscription_whose_server_hangs_is_closed(tmp_path):
    with single(tmp_path / "redis") as server:
        link = await connect(RedisAddress.parse(server.address), silence_s_max=0.2)
        heard: list[object] = []
        await link.subscribe("channel", on_replies=heard.extend)
        assert heard == [[b"subscribe", b"channel", 1]]
        # It is asked for a sign of life now and then, so silence alone does not close it.
        await asyncio.sleep(0.5)
        assert link.is_open
        server.pause()
        await link.closed


async def test_somebody_who_does_not_speak_redis_is_hung_up_on():
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        with suppress(OSError):
            await reader.read()
        writer.close()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    link = await connect(RedisAddress("127.0.0.1", port))
    await link.closed
    server.close()


def test_nobody_there_is_an_error_of_ours():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(RedisAway):
            asyncio.run(RedisClient([f"127.0.0.1:{port}"]).call("key", "GET", "key"))


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost", RedisAddress("localhost")),
        ("10.0.0.1:7000", RedisAddress("10.0.0.1", 7000)),
        ("redis://host/3", RedisAddress("host", database=3)),
        ("rediss://me:p%40ss@host:1/0", RedisAddress("host", 1, "me", "p@ss", is_tls=True)),
        ("redis://:secret@[::1]:6380", RedisAddress("::1", 6380, password="secret")),
    ],
)
def test_addresses_are_read(text, address):
    assert RedisAddress.parse(text) == address


@pytest.mark.parametrize("text", ["", "http://host", "host:port", "redis://", "redis://h/x"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(BadInput):
        RedisAddress.parse(text)


async def test_a_password_lets_us_in_and_its_lack_is_told(tmp_path):
    with single(tmp_path / "redis", requirepass="secret") as server:
        redis = RedisClient([f"redis://:secret@{server.address}/2"])
        assert await redis.call("key", "SET", "key", "value") == b"OK"
        redis.close()
        with pytest.raises(RedisRefused, match="NOAUTH"):
            await RedisClient([server.address]).call("key", "GET", "key")


async def test_the_master_is_found_among_several_and_after_a_failover_too(tmp_path):
    with replicated(tmp_path) as (master, replica):
        redis = RedisClient([replica.address, master.address])
        await redis.call("key", "SET", "key", "before")
        assert (await redis.link_for("key")).address.port == master.port
        assert (await redis.run("key", ("SET", "key", "again"), ("WAIT", 1, 5_000)))[1] == 1

        master.kill()
        with replica.client() as operator:
            operator.execute_command("REPLICAOF NO ONE")
        with suppress(RedisAway):  # the connection that just broke
            await redis.call("key", "GET", "key")

        assert await redis.call("key", "GET", "key") == b"again"
        assert (await redis.link_for("key")).address.port == replica.port
        redis.close()


async def test_a_master_that_became_a_replica_is_left(tmp_path):
    with replicated(tmp_path) as (old, new):
        redis = RedisClient([old.address, new.address])
        await redis.call("key", "SET", "key", "value")
        with old.client() as one, new.client() as other:
            other.execute_command("REPLICAOF NO ONE")
            one.execute_command(f"REPLICAOF 127.0.0.1 {new.port}")

        with pytest.raises(RedisAway):  # a READONLY, or the connection is closed
            await redis.call("key", "SET", "key", "later")
        assert await redis.call("key", "SET", "key", "later") == b"OK"
        assert (await redis.link_for("key")).address.port == new.port
        redis.close()


async def test_a_cluster_is_known_from_one_node_and_its_moves_are_followed(tmp_path):
    with cluster(tmp_path) as nodes:
        redis = RedisClient([nodes[0].address])
        keys = [f"key-{n}" for n in range(50)]
        for key in keys:
            await redis.call(key, "SET", key, key)
        assert redis.is_cluster
        held = [node.client().dbsize() for node in nodes]
        assert sum(held) == 50
        assert all(held)

        ports = {k: (await redis.link_for(k)).address.port for k in keys}
        key = next(k for k in keys if ports[k] == nodes[0].port)
        ids = [node.client().execute_command("CLUSTER MYID").decode() for node in nodes[:2]]
        first, second = nodes[0].client(), nodes[1].client()
        slot = slot_of(key)
        second.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", ids[0])
        first.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", ids[1])
        absent = beside(key, "absent")  # in the slot that is on its way: ASK
        assert await redis.call(absent, "SET", absent, "x") == b"OK"
        assert second.execute_command("DBSIZE") == held[1] + 1

        first.execute_command("MIGRATE", "127.0.0.1", nodes[1].port, key, 0, 5_000)
        for node in nodes:
            node.client().execute_command("CLUSTER SETSLOT", slot, "NODE", ids[1])
        assert await redis.call(key, "GET", key) == key.encode()  # MOVED
        assert (await redis.link_for(key)).address.port == nodes[1].port

        fences = [beside(k, "fence") for k in keys[:10]]
        for fence in fences:  # scripts are sent to each node that does not know them
            assert await RAISE_FENCE.answer(redis, [fence], 7) == b"OK"
        redis.close()


def test_slots_are_those_of_the_specification():
    assert slot_of("123456789") == 0x31C3  # the check value of this CRC
    assert slot_of("{user1000}.following") == slot_of("{user1000}.followers")
    assert slot_of("foo{}{bar}") == slot_of("foo{}{bar}")
    assert hash_tag("foo{}{bar}") == "foo{}{bar}"
    assert hash_tag("foo{{bar}}zap") == "{bar"
    assert hash_tag("foo{bar}{zap}") == "bar"
    assert 0 <= slot_of("") < SLOTS


@pytest.mark.parametrize("key", ["plain", "{tag}rest", "a{tag}b", "{open", "x}{tag}"])
def test_a_key_beside_another_is_in_its_slot(key):
    assert slot_of(beside(key, "fence")) == slot_of(key)
    assert beside(key, "fence") != beside(key, "dead")


@pytest.mark.parametrize("key", ["x}y", "foo{}bar"])
def test_a_key_that_nothing_can_be_beside_is_refused(key):
    with pytest.raises(BadInput, match="brace"):
        beside(key, "fence")
