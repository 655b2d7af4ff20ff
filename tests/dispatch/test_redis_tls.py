"""Redis over TLS: its certificate is checked, ours is shown, and nothing is sent in the clear."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.cache import Absent
from tests.dispatch.certificates import Files, certificates
from tests.dispatch.programs import fleet, wait
from tests.dispatch.redis_servers import TlsRedisServer
from tests.dispatch.traffic import SOURCE_KINDS, numbers, ready, send
from tests.stores.servers.registry import reason_to_skip
from waterclock.dispatch.access import redis_tls
from waterclock.dispatch.config import DispatcherConfig, WorkerConfig
from waterclock.dispatch.redis.client import RedisClient
from waterclock.dispatch.redis.link import RedisAway
from waterclock.model.errors import BadConfig

HANDLERS = "tests.dispatch.work_handlers"


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Files:
    return certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server(files: Files, tmp_path_factory) -> Iterator[TlsRedisServer]:
    running = TlsRedisServer(tmp_path_factory.mktemp("redis"), files)
    try:
        running.start()
        yield running
    except Absent as absent:
        pytest.skip(reason_to_skip("debian", absent))
    finally:
        running.stop()


def settings(files: Files, *, shows: bool = True) -> dict[str, Any]:
    pair = {"redis_certificate": str(files.certificate), "redis_key": str(files.key)}
    return {"redis_ca": str(files.ca), **(pair if shows else {})}


@pytest.mark.parametrize("source_kind", SOURCE_KINDS)
def test_dispatcher_and_worker_speak_to_redis_by_tls(
    server: TlsRedisServer, files: Files, name, tmp_path: Path, source_kind
):
    config = {"redis": [server.address], "prefix": name, "output": f"{name}-out"}
    with (
        server.client() as look,
        fleet(tmp_path, **config, source=f"{name}-in", **settings(files)) as programs,
    ):
        dispatcher = programs.start("dispatcher", source_kind=source_kind)
        programs.start("worker", handler=f"{HANDLERS}:copy")
        ready(dispatcher, workers=1)
        send(look, source_kind, f"{name}-in", ({"n": n} for n in range(100)))
        wait(lambda: dispatcher.count("acked") == 100, what="all of them")

        assert sorted(numbers(look, f"{name}-out")) == list(range(100))


async def test_a_server_of_another_ca_is_not_spoken_to(
    server: TlsRedisServer, files: Files, tmp_path: Path
):
    other = certificates(tmp_path)
    foreign = Files(files.certificate, files.key, other.ca)

    for chosen in (None, redis_tls(config_of(server, **settings(foreign)))):
        client = RedisClient([server.address], tls=chosen)
        with pytest.raises(RedisAway, match="its certificate is not trusted: "):
            await client.call("k", "GET", "k")
        client.close()


async def test_a_server_that_wants_a_certificate_is_shown_one(server: TlsRedisServer, files: Files):
    for shows in (True, False):
        tls = redis_tls(config_of(server, **settings(files, shows=shows)))
        client = RedisClient([server.address], tls=tls)
        if shows:
            assert await client.call("k", "PING") == b"PONG"
        else:
            with pytest.raises(RedisAway):
                await client.call("k", "PING")
        client.close()


def config_of(server: TlsRedisServer, **more: Any) -> DispatcherConfig:
    return DispatcherConfig(redis=(server.address,), **more)


@pytest.mark.parametrize("config", [DispatcherConfig, WorkerConfig])
def test_settings_of_tls_for_a_server_in_the_clear_are_refused(config, files: Files):
    for addresses in (("h:1",), ("redis://h:1",), ("rediss://h:1", "h:2")):
        with pytest.raises(BadConfig, match=r"\.redis: must be of rediss://"):
            config(redis=addresses, redis_ca=str(files.ca))
    with pytest.raises(BadConfig, match=r"\.redis_key: is missing"):
        config(redis=("rediss://h:1",), redis_certificate="/x.pem")
    with pytest.raises(BadConfig, match=r"\.redis_ca: /none: No such file"):
        redis_tls(config(redis=("rediss://h:1",), redis_ca="/none"))
    with pytest.raises(BadConfig, match=r"\.redis_ca: .* is no certificate"):
        redis_tls(config(redis=("rediss://h:1",), redis_ca=str(files.key)))
