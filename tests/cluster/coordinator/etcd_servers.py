"""Real members of etcd, Debian's, on loopback: killed, stopped, put back in time."""

import json
import os
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.peers.cache import Programs, debian
from benchmarks.peers.server import Server, free_port
from tests.kit.needs import claim


def programs() -> Programs:
    """Find etcd or fetch it."""
    return debian("etcd-server", ["etcd"])


class EtcdMember:
    """One member. It keeps its folder and ports while it is away."""

    def __init__(self, folder: Path, name: str, *, flags: Sequence[str] = ()) -> None:
        self.name = name
        self.port = free_port()
        self.peer_url = f"http://127.0.0.1:{free_port()}"
        self.cluster = f"{name}={self.peer_url}"
        self._health_url = f"http://127.0.0.1:{free_port()}"
        self._data = folder / name
        self._log = folder / f"{name}.log"
        self._flags = list(flags)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """Where clients find it."""
        return f"127.0.0.1:{self.port}"

    def launch(self) -> None:
        """Start it; `wait` until it answers."""
        claim("etcd")
        url = f"{'https' if self._is_secure else 'http'}://{self.endpoint}"
        command = [
            programs().find("etcd"), f"--name={self.name}", f"--data-dir={self._data}",
            f"--listen-client-urls={url}", f"--advertise-client-urls={url}",
            f"--listen-peer-urls={self.peer_url}",
            f"--initial-advertise-peer-urls={self.peer_url}", f"--initial-cluster={self.cluster}",
            "--heartbeat-interval=100", "--election-timeout=500",
            "--listen-metrics-urls=" + self._health_url, *self._flags,
        ]  # fmt: skip
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip

    def wait(self) -> None:
        """Return when it has a leader and answers."""
        assert self._process is not None
        Server(self._process, port=self.port).wait_for(self._is_healthy, self._log)

    def start(self) -> None:
        """Start it and wait until it answers."""
        self.launch()
        self.wait()

    def kill(self) -> None:
        """End it as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to it."""
        assert self._process is not None
        os.kill(self._process.pid, number)

    def copy_data(self, folder: Path) -> None:
        """Keep what it has on disk; it must not run."""
        assert self._process is None
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self._data, folder)

    def put_back(self, folder: Path) -> None:
        """Give it what it had when it was copied; it must not run."""
        assert self._process is None
        shutil.rmtree(self._data)
        shutil.copytree(folder, self._data)

    def post(self, path: str, body: dict[str, Any], *, token: str = "") -> dict[str, Any]:
        """Ask it over its JSON gateway for what nodes never do."""
        request = urllib.request.Request(
            f"http://{self.endpoint}/v3/{path}",
            json.dumps(body).encode(),
            {"Authorization": token} if token else {},
        )
        with urllib.request.urlopen(request) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    @property
    def _is_secure(self) -> bool:
        return any("--cert-file" in each for each in self._flags)

    def _is_healthy(self) -> bool:
        with suppress(OSError), urllib.request.urlopen(f"{self._health_url}/health") as answer:
            return bool(json.load(answer)["health"] == "true")
        return False


@contextmanager
def running(
    folder: Path, *, count: int = 1, flags: Sequence[str] = ()
) -> Iterator[list[EtcdMember]]:
    """Run a cluster of so many members; all are killed after the block."""
    members = [EtcdMember(folder, f"m{number}", flags=flags) for number in range(count)]
    with ExitStack() as stack:
        for member in members:
            member.cluster = ",".join(f"{each.name}={each.peer_url}" for each in members)
            stack.callback(member.kill)
            member.launch()
        for member in members:
            member.wait()
        yield members
