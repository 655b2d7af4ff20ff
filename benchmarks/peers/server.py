"""A server as a process group of its own: started in a folder, watched by /proc, stopped by its id.

Used for the peers and for our own node alike, so that all are treated the same.
"""

import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.peers.cache import Absent
from benchmarks.peers.ports import free_in_a_row

START_S_MAX = 600
"""A bound for what hangs: three JVMs that start at once on two busy cores take minutes."""
STOP_S_MAX = 20
POLL_S = 0.02
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")

Check = Callable[[], bool]


class Server:
    """A running server and all processes it started."""

    def __init__(self, process: "subprocess.Popen[bytes]", *, port: int) -> None:
        self._process = process
        self.port = port
        self.client_environ: dict[str, str] = {}
        """What a client needs in its environment."""
        self.version = ""
        """Of the server, and of the client if that is not ours."""

    @property
    def group(self) -> int:
        """The process group: the id of the process that leads it."""
        return self._process.pid

    def wait_for(self, check: Check, log: Path, *, seconds: float = START_S_MAX) -> None:
        """Return once the check holds; fail if the process ends before, or takes too long."""
        deadline = time.monotonic() + seconds
        while not check():
            if self._process.poll() is not None or time.monotonic() > deadline:
                lines = log.read_text(errors="replace").strip().splitlines()[-5:]
                raise Absent(f"the server does not start: {' / '.join(lines) or 'no output'}")
            time.sleep(POLL_S)

    def kill(self) -> None:
        """End all of its processes at once, as a crash would."""
        os.killpg(self.group, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """Ask it to end; end it, if it does not. Those it started are waited for too."""
        deadline = time.monotonic() + STOP_S_MAX
        self._signal(signal.SIGTERM)
        while self._is_running():
            if time.monotonic() > deadline:
                self._signal(signal.SIGKILL)
            time.sleep(POLL_S)
        self._process.wait()

    def _is_running(self) -> bool:
        """Tell whether any of its processes lives: the first may end before the others."""
        return any(fields[0] != "Z" for _, fields in _processes(self.group))

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.group, number)


@contextmanager
def started(
    command: Sequence[str | Path],
    *,
    folder: Path,
    port: int,
    environ: Mapping[str, str] | None = None,
    is_ready: Check | None = None,
) -> Iterator[Server]:
    """Run a server until the end of the block. Its output goes to a file in its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "output.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            list(map(str, command)), cwd=folder, env=environ, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip
    server = Server(process, port=port)
    try:
        server.wait_for(is_ready or (lambda: is_listening(port)), log)
        yield server
    finally:
        server.stop()


@contextmanager
def started_together(
    commands: Sequence[Sequence[str | Path]],
    *,
    folder: Path,
    port: int,
    environ: Mapping[str, str] | None = None,
    is_ready: Check,
) -> Iterator[Server]:
    """Run several processes as one server: they share a process group, and what they use counts."""
    lines = [f"{shlex.join(map(str, command))} &" for command in commands]
    shell = ["sh", "-c", "\n".join([*lines, "wait"])]
    with started(shell, folder=folder, port=port, environ=environ, is_ready=is_ready) as server:
        yield server


def free_port() -> int:
    """Give a loopback port that is free now, and stays so while its server is away.

    Not one of those that the system gives to outgoing connections: one of them could take it, also
    the connection to the server itself, which the system then connects to its own end. And none
    that was given before, or is given to another worker of the tests.
    """
    return free_in_a_row(1)


def is_listening(port: int) -> bool:
    """Tell whether someone accepts connections there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def cpu_seconds(group: int) -> float:
    """Give the processor time that all processes of a group have taken so far."""
    # utime, stime, and the same of its children that have ended.
    ticks = sum(sum(map(int, fields[11:15])) for _, fields in _processes(group))
    return ticks / CLOCK_TICKS


def process_ids(group: int) -> list[int]:
    """Give all processes of a group."""
    return [pid for pid, _ in _processes(group)]


def _processes(group: int) -> Iterator[tuple[int, list[str]]]:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        if int(fields[2]) == group:
            yield int(stat.parent.name), fields


def memory_mb(pid: int) -> dict[str, float]:
    """Give what a process has in RAM: `total`, and `anonymous` without mapped files."""
    sizes = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("VmRSS", "RssAnon"):
            sizes[name] = int(value.split()[0]) / 1024
    return {"total": sizes["VmRSS"], "anonymous": sizes["RssAnon"]}
