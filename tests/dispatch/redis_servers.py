"""Real Redis servers on loopback: one, a master with its replica, or a cluster of three masters.

All of them write an append-only file, so that one that is killed and started again comes back with
what it had. The program is Debian's, found or fetched as for the benchmarks.
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import redis

from benchmarks.peers.cache import Programs, debian
from benchmarks.peers.server import Server, free_port, is_listening, started
from tests.dispatch.certificates import Files
from tests.kit.needs import claim

CLUSTER_S_MAX = 30.0


def programs() -> Programs:
    """Find Redis or fetch it."""
    return debian("redis-server", ["redis-server", "redis-cli"])


class RedisServer:
    """A server that can be killed, paused and started again on its port and its files."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._folder = folder
        self._settings = {
            "bind": "127.0.0.1", "port": str(self.port), "dir": str(folder), "save": "",
            "appendonly": "yes", "appendfsync": "everysec", "shutdown-timeout": "0", **settings,
        }  # fmt: skip
        self._until_stop = ExitStack()
        self._server: Server | None = None

    def start(self) -> None:
        """Start it, and wait until it has read its files."""
        claim("redis")
        its = programs()
        self._folder.mkdir(parents=True, exist_ok=True)
        flags = [
            part
            for name, value in self._settings.items()
            for part in (f"--{name.replace('_', '-')}", *(value.split(" ") if value else [""]))
        ]
        command = [its.find("redis-server"), *flags]
        self._server = self._until_stop.enter_context(
            started(
                command, folder=self._folder, port=self.port, environ=its.environ(),
                is_ready=self._answers,
            )
        )  # fmt: skip

    def _answers(self) -> bool:
        if not is_listening(self.port):
            return False
        with socket.create_connection(("127.0.0.1", self.port)) as wire:
            wire.sendall(b"PING\r\n")
            return wire.recv(64).startswith((b"+PONG", b"-NOAUTH"))

    @property
    def pid(self) -> int:
        """Of its process."""
        assert self._server is not None
        return self._server.group

    def kill(self) -> None:
        """End it as a crash would."""
        assert self._server is not None
        self._server.kill()
        self._until_stop.close()

    def stop(self) -> None:
        """End it in order, if it runs."""
        if self._server is not None:
            self.resume()
        self._until_stop.close()
        self._server = None

    def pause(self) -> None:
        """Let it hang: it keeps its connections and answers nobody."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        try:
            os.kill(self.pid, signal.SIGCONT)
        except ProcessLookupError:
            return

    def client(self) -> "redis.Redis":
        """Give a plain client to look inside with."""
        return redis.Redis(port=self.port)


class TlsRedisServer(RedisServer):
    """One that speaks TLS only, to clients with a certificate of the same CA."""

    def __init__(self, folder: Path, files: Files) -> None:
        super().__init__(
            folder, port="0", tls_cert_file=str(files.certificate), tls_key_file=str(files.key),
            tls_ca_cert_file=str(files.ca), tls_auth_clients="yes",
        )  # fmt: skip
        self._settings["tls-port"] = str(self.port)
        self._files = files
        self.address = f"rediss://127.0.0.1:{self.port}"

    def _answers(self) -> bool:
        if not is_listening(self.port):
            return False
        with self.client() as client:
            return bool(client.ping())

    def client(self) -> "redis.Redis":
        """Give a plain client to look inside with."""
        files = self._files
        return redis.Redis(
            port=self.port, ssl=True, ssl_ca_certs=str(files.ca),
            ssl_certfile=str(files.certificate), ssl_keyfile=str(files.key),
        )  # fmt: skip


@contextmanager
def single(folder: Path, **settings: str) -> Iterator[RedisServer]:
    """Run one server."""
    server = RedisServer(folder, **settings)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@contextmanager
def replicated(folder: Path) -> Iterator[tuple[RedisServer, RedisServer]]:
    """Run a master and a replica that has caught up with it."""
    with single(folder / "master", repl_diskless_sync_delay="0") as master:
        following = f"127.0.0.1 {master.port}"
        with single(folder / "replica", replicaof=following) as replica:
            with replica.client() as asked:
                info = asked.info
                _wait(lambda: info("replication")["master_link_status"] == "up")
                # While it writes its first file it does not end when told to.
                _wait(lambda: not info("persistence")["aof_rewrite_in_progress"])
            yield master, replica


@contextmanager
def cluster(folder: Path, *, masters: int = 3) -> Iterator[list[RedisServer]]:
    """Run a cluster without replicas, with all its slots given out."""
    with ExitStack() as until_end:
        servers = []
        for i in range(masters):
            # The bus is at port + 10,000 unless told: that may be taken, or no port at all.
            node = single(
                folder / f"node-{i}", cluster_enabled="yes", cluster_port=str(free_port()),
                cluster_node_timeout="3000",
            )  # fmt: skip
            servers.append(until_end.enter_context(node))
        its = programs()
        command = [
            its.find("redis-cli"), "--cluster", "create", *(s.address for s in servers),
            "--cluster-yes",
        ]  # fmt: skip
        subprocess.run(
            command, env=its.environ(), check=True, capture_output=True, timeout=CLUSTER_S_MAX
        )
        _wait(lambda: all(map(_is_whole, servers)))
        yield servers


def _is_whole(server: RedisServer) -> bool:
    with server.client() as asked:
        said = asked.execute_command("CLUSTER INFO")
        text = said if isinstance(said, dict) else {}
        return text.get("cluster_state") == "ok"


def _wait(check: Callable[[], bool]) -> None:
    """Return once the check holds; there is no event to wait for in somebody else's process."""
    deadline = time.monotonic() + CLUSTER_S_MAX
    while not check():
        if time.monotonic() > deadline:
            raise TimeoutError("the servers do not find each other")
        time.sleep(0.02)
