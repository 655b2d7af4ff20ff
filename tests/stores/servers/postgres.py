"""PostgreSQL on a free loopback port: the system's, or Debian's package from the cache."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from benchmarks.peers.cache import Absent, debian
from benchmarks.peers.server import POLL_S, Server, free_port, started
from tests.stores.backend import Backend, numbered

INSTALLED = Path("/usr/lib/postgresql")
NOBODY = "nobody"
STOPPED, ENDED = "T", "XZ"
CONFIG = {
    "fsync": "on",
    "shared_buffers": "64MB",
    "max_connections": "60",
    "listen_addresses": "127.0.0.1",
    "max_wal_size": "1GB",
    "autovacuum_naptime": "5s",
}


class Postgres:
    """A cluster in a folder that the server owns."""

    def __init__(self, programs: Path, environ: dict[str, str], folder: Path) -> None:
        self._programs = programs
        self._environ = environ
        self._folder = folder
        self._running = ExitStack()
        self._server: Server | None = None
        self.port = free_port()

    @property
    def socket_folder(self) -> Path:
        """Where its socket is, for those who share no network with it."""
        return self._folder

    def create(self) -> None:
        data = self._folder / "data"
        options = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale"]
        subprocess.run(
            [*_as_nobody(), self._programs / "initdb", "-D", data, *options],
            env=self._environ, cwd=self._folder, check=True, capture_output=True,
        )  # fmt: skip

    def start(self) -> None:
        options = [part for name, value in CONFIG.items() for part in ("-c", f"{name}={value}")]
        options += ["-c", f"unix_socket_directories={self._folder}"]
        self._server = self._running.enter_context(
            started(
                [*_as_nobody(), self._programs / "postgres", "-D", self._folder / "data",
                 "-p", str(self.port), *options],
                folder=self._folder / "run",
                port=self.port,
                environ=self._environ,
                is_ready=self._is_ready,
            )
        )  # fmt: skip

    def _is_ready(self) -> bool:
        command = [
            str(self._programs / "pg_isready"),
            "-q",
            "-h",
            "127.0.0.1",
            "-p",
            str(self.port),
        ]
        return not subprocess.run(
            command, env=self._environ, check=False, capture_output=True
        ).returncode

    def kill(self) -> None:
        """End all of its processes at once: by themselves they would end in better order.

        A backend that outlived the others would hold their shared memory: no server could start.
        """
        assert self._server is not None
        self.pause()  # the leader first: from then on it starts no backend that nobody listed
        processes = self._processes()
        for process in processes:
            os.kill(process, signal.SIGKILL)
        self._server.kill()
        for process in processes:
            _wait_for(process, ENDED)

    def pause(self) -> None:
        """Have it accept connections and answer nothing."""
        assert self._server is not None
        leader = self._server.group
        os.kill(leader, signal.SIGSTOP)
        _wait_for(leader, STOPPED)
        for process in self._processes()[1:]:
            with suppress(ProcessLookupError):  # some end meanwhile
                os.kill(process, signal.SIGSTOP)

    def resume(self) -> None:
        for process in reversed(self._processes()):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)

    def _processes(self) -> list[int]:
        """Give the leader and its children, which are not of its group."""
        assert self._server is not None
        leader = self._server.group
        children = Path(f"/proc/{leader}/task/{leader}/children").read_text().split()
        return [leader, *map(int, children)]

    def stop(self) -> None:
        self._running.close()

    def schema(self, name: str) -> str:
        # Not a database for each: after a crash, all their files are made durable again.
        command = [str(self._programs / "psql"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        create = ["-U", "postgres", "-c", f"CREATE SCHEMA {name}"]
        subprocess.run([*command, *create], env=self._environ, check=True)
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres?search_path={name}"


def _wait_for(process: int, states: str) -> None:
    """Return once the process is in one of the states that /proc tells."""
    while _state(process) not in states:
        time.sleep(POLL_S)


def _state(process: int) -> str:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ENDED[0]


@contextmanager
def running(folder: Path) -> Iterator[Backend]:
    """Run a server until the end of the block."""
    # Not in pytest's folder: nobody else may look into that, and the server runs as nobody.
    home = Path(tempfile.mkdtemp(prefix="waterclock-postgres-"))
    try:
        programs, environ = _programs(home)
        if os.geteuid() == 0:
            (home / "run").mkdir()
            for path in (home, home / "run"):
                shutil.chown(path, NOBODY)
        postgres = Postgres(programs, environ, home)
        postgres.create()
        postgres.start()
        names = numbered("streams{}")
        try:
            yield Backend(
                name="postgres",
                fresh_url=lambda: postgres.schema(next(names)),
                server=postgres,
                batch=20_000,
            )
        finally:
            postgres.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _programs(home: Path) -> tuple[Path, dict[str, str]]:
    for found in sorted(INSTALLED.glob("*/bin/postgres")):
        return found.parent, dict(os.environ)
    unpacked = debian("postgresql", ["postgres", "initdb"])
    if unpacked.root is None:
        return Path(unpacked.find("postgres")).parent, dict(os.environ)
    root = unpacked.root
    if os.geteuid() == 0:
        # The cache may lie in a home that only root enters.
        root = home / "root"
        shutil.copytree(unpacked.root, root, symlinks=True)
        home.chmod(0o755)
    for found in sorted(root.glob("usr/lib/postgresql/*/bin/postgres")):
        libraries = [str(path) for path in root.glob("usr/lib/*-linux-gnu*")]
        return found.parent, {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(libraries)}
    raise Absent("the package postgresql holds no server")


def _as_nobody() -> list[str]:
    """PostgreSQL refuses to run as root."""
    if os.geteuid():
        return []
    user = pwd.getpwnam(NOBODY)
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
