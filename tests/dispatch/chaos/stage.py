"""Where rounds are played: Redis, one server or a master with its replica, shared by rounds.

Everything acknowledged is on disk (`appendfsync always`), so that a server that is killed comes
back with all of it.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.dispatch.redis_servers import RedisServer

SYNCED_S_MAX = 10.0
ANSWER_S_MAX = 1.0


def client_of(port: int) -> "redis.Redis":
    """Return a client that tries nothing twice: what is sent is sent once."""
    return redis.Redis(
        port=port, socket_timeout=ANSWER_S_MAX, socket_connect_timeout=ANSWER_S_MAX,
        retry=Retry(NoBackoff(), 0),
    )  # fmt: skip


class Stage:
    """The servers. `servers[0]` is the master until a failover."""

    def __init__(self, folder: Path, *, is_replicated: bool) -> None:
        self.servers = [RedisServer(folder / "master", **_SETTINGS)]
        if is_replicated:
            following = f"127.0.0.1 {self.servers[0].port}"
            self.servers.append(RedisServer(folder / "replica", replicaof=following, **_SETTINGS))
        self.master = self.servers[0]
        self._folder = folder
        self._started: list[RedisServer] = []

    def __enter__(self) -> "Stage":
        for server in self.servers:
            self._start(server)
        if len(self.servers) > 1:
            with client_of(self.servers[1].port) as replica:
                _wait(lambda: replica.info("replication")["master_link_status"] == "up")
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._started:
            server.stop()

    def _start(self, server: RedisServer) -> None:
        self._started.append(server)
        server.start()

    @property
    def is_replicated(self) -> bool:
        """Whether there is somebody to fail over to."""
        return len(self.servers) > 1

    def client(self) -> "redis.Redis":
        """Return a client of the present master."""
        return client_of(self.master.port)

    def restart(self, down_s: float) -> None:
        """Kill the server, and start it again."""
        self.master.kill()
        time.sleep(down_s)
        self.master.start()

    def fail_over(self, down_s: float) -> None:
        """Kill the master, promote its replica, and give that one a replica of its own: who waits
        for replicas would wait for ever without."""
        self.master.kill()
        time.sleep(down_s)
        self.master = self.servers[1]
        with self.client() as client:
            client.replicaof("NO", "ONE")
        following = f"127.0.0.1 {self.master.port}"
        self._start(RedisServer(self._folder / "next", replicaof=following, **_SETTINGS))

    def clear(self) -> None:
        """Forget everything, for the next round."""
        with self.client() as client:
            client.flushall()


_SETTINGS = {"appendfsync": "always", "repl_diskless_sync_delay": "0", "repl_timeout": "5"}


def _wait(check: Callable[[], bool]) -> None:
    """Return once the check holds: another process gives no event to wait for."""
    deadline = time.monotonic() + SYNCED_S_MAX
    while True:
        with suppress(redis.RedisError):
            if check():
                return
        if time.monotonic() > deadline:
            raise TimeoutError("the replica does not follow")
        time.sleep(0.02)
