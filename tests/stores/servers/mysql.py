"""MariaDB on a free loopback port: the system's, or Debian's package from the cache."""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.peers.cache import Absent, Programs, debian
from benchmarks.peers.server import Server, free_port, is_listening, started
from tests.stores.backend import Backend, numbered

PASSWORD = "p@ss/w:rd"
IN_URL = "p%40ss%2Fw%3Ard"
SCRIPTS = ["mysql_system_tables.sql", "mysql_performance_tables.sql"]
OPTIONS = [
    "--bind-address=127.0.0.1",
    "--skip-name-resolve",
    "--innodb-buffer-pool-size=64M",
    "--innodb-log-file-size=96M",
    "--innodb-flush-log-at-trx-commit=1",
    "--max-connections=60",
    "--performance-schema=off",
]
STOPPED = "T"
POLL_S = 0.001


class Mariadb:
    """A data folder and the server on it."""

    def __init__(self, programs: Programs, folder: Path) -> None:
        root = programs.root or Path("/")
        self._environ = programs.environ()
        self._folder = folder
        self._command = [
            str(root / "usr/sbin/mariadbd"),
            "--no-defaults",
            "--user=root",
            f"--datadir={folder / 'data'}",
            f"--lc-messages-dir={root / 'usr/share/mysql'}",
            f"--character-sets-dir={root / 'usr/share/mysql/charsets'}",
            f"--plugin-dir={root / 'usr/lib/mysql/plugin'}",
            f"--tmpdir={folder}",
        ]
        self._scripts = root / "usr/share/mysql"
        self._running = ExitStack()
        self._server: Server | None = None
        self.port = free_port()

    def create(self) -> None:
        (self._folder / "data").mkdir()
        sql = "create database mysql;\nuse mysql;\n"
        sql += "".join((self._scripts / name).read_text() for name in SCRIPTS)
        run = subprocess.run(
            [*self._command, "--bootstrap", "--innodb-log-file-size=96M"],
            input=sql, env=self._environ, cwd=self._folder, text=True, capture_output=True,
            check=False,
        )  # fmt: skip
        if run.returncode:
            raise Absent(f"MariaDB does not set up: {run.stderr.strip().splitlines()[-1]}")
        (self._folder / "init.sql").write_text(
            f"CREATE USER IF NOT EXISTS 'streams'@'127.0.0.1' IDENTIFIED BY '{PASSWORD}';\n"
            "GRANT ALL ON *.* TO 'streams'@'127.0.0.1' WITH GRANT OPTION;\n"
            + "".join(f"CREATE DATABASE IF NOT EXISTS streams{n};\n" for n in range(1, 100))
        )

    def start(self) -> None:
        options = [f"--port={self.port}", f"--socket={self._folder / 'socket'}"]
        options.append(f"--init-file={self._folder / 'init.sql'}")
        self._server = self._running.enter_context(
            started(
                [*self._command, *OPTIONS, *options],
                folder=self._folder / "run",
                port=self.port,
                environ=self._environ,
                is_ready=lambda: is_listening(self.port),
            )
        )

    def kill(self) -> None:
        assert self._server is not None
        self._server.kill()

    def pause(self) -> None:
        """Have it accept connections and answer nothing."""
        assert self._server is not None
        os.killpg(self._server.group, signal.SIGSTOP)
        # Each thread stops when it comes to it, and may answer before.
        while not _are_stopped(self._server.group):
            time.sleep(POLL_S)

    def resume(self) -> None:
        assert self._server is not None
        os.killpg(self._server.group, signal.SIGCONT)

    def stop(self) -> None:
        self._running.close()

    def url(self, database: str) -> str:
        return f"mysql://streams:{IN_URL}@127.0.0.1:{self.port}/{database}"


def _are_stopped(process: int) -> bool:
    """Tell whether every thread of a process stands still."""
    found = Path(f"/proc/{process}/task").glob("*/stat")
    return all(stat.read_text().rpartition(")")[2].split()[0] == STOPPED for stat in found)


@contextmanager
def running(folder: Path) -> Iterator[Backend]:
    """Run a server until the end of the block."""
    programs = debian("mariadb-server", ["mariadbd"])
    # A socket's path must be short.
    with tempfile.TemporaryDirectory(prefix="waterclock-mariadb-") as home:
        mariadb = Mariadb(programs, Path(home))
        mariadb.create()
        mariadb.start()
        names = numbered("streams{}")
        try:
            yield Backend(
                name="mysql",
                fresh_url=lambda: mariadb.url(next(names)),
                server=mariadb,
                batch=10_000,
            )
        finally:
            mariadb.stop()
