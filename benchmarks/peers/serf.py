"""Serf: how long its agents take to find that one of them is gone, with its profile `local`.

Ours gossip as its library does, and their preset `local` has the same intervals.
"""

import time
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path

from benchmarks.peers.cache import Programs, debian
from benchmarks.peers.server import Server, free_port, started

NAME = "serf"
AGENTS = 3
WAIT_S_MAX = 60


def programs() -> Programs:
    """Find it or fetch it."""
    return debian("serf", ["serf"])


def detect_s(folder: Path) -> float:
    """Start agents, kill one, and return how long it took until all others know that it failed."""
    ports = {f"agent-{number}": free_port() for number in range(1, AGENTS + 1)}
    *others, victim = ports
    with ExitStack() as stack:
        agents = {name: stack.enter_context(_agent(folder / name, ports)) for name in ports}
        for name in others:
            _wait_for_line(agents[name], folder / name, f"EventMemberJoin: {victim}")
        begun = time.perf_counter()
        agents[victim].kill()
        for name in others:
            _wait_for_line(agents[name], folder / name, f"EventMemberFailed: {victim}")
        return time.perf_counter() - begun


def _agent(folder: Path, ports: dict[str, int]) -> AbstractContextManager[Server]:
    its, name = programs(), folder.name
    joined = [f"-join=127.0.0.1:{port}" for each, port in ports.items() if each < name]
    command = [
        its.find("serf"), "agent", f"-node={name}", f"-bind=127.0.0.1:{ports[name]}",
        f"-rpc-addr=127.0.0.1:{free_port()}", "-profile=local", *joined,
    ]  # fmt: skip
    log, environ = folder / "output.log", its.environ()
    is_ready = partial(_has_line, log, f"EventMemberJoin: {name}")
    return started(command, folder=folder, port=ports[name], environ=environ, is_ready=is_ready)


def _wait_for_line(agent: Server, folder: Path, text: str) -> None:
    log = folder / "output.log"
    agent.wait_for(partial(_has_line, log, text), log, seconds=WAIT_S_MAX)


def _has_line(log: Path, text: str) -> bool:
    return text in log.read_text(errors="replace")
