"""The dispatchers and workers of a round, each with a wire to Redis of its own, and one to itself.

A dispatcher listens on 127.0.0.1 and says 127.0.0.2: there is its wire, on the same port. So what
lies between any two parts can be cut, for one worker or for all.
"""

import os
import socket
from itertools import count
from pathlib import Path
from typing import Any

from tests.dispatch.chaos.plan import Plan
from tests.dispatch.chaos.stage import Stage
from tests.kit.fork_server import ForkServer
from tests.kit.network import Network, Wire
from tests.kit.processes import Signalled

WIRED_HOST = "127.0.0.2"
SLOW_S = 1.5


_ports = count(os.getpid() % 100 * 100)


def fixed_port() -> int:
    """Return a port that is free on both hosts, below those that the system gives to connections:
    one of these might be taken by the time a dispatcher listens."""
    for number in _ports:
        port = 20_000 + number % 12_000
        try:
            for host in ("127.0.0.1", WIRED_HOST):
                with socket.socket() as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind((host, port))
        except OSError:
            continue
        return port
    raise AssertionError("numbers do not end")


class Member:
    """A process and the wires around it."""

    def __init__(self, name: str, process: Signalled, redis: list[Wire], own: Wire | None) -> None:
        self.name = name
        self.process = process
        self.redis = redis
        self.own = own

    @property
    def is_up(self) -> bool:
        """Whether it runs, and is not paused."""
        return self.process.is_running and not self.process.is_paused


class Fleet:
    """Everybody of one round."""

    def __init__(
        self,
        plan: Plan,
        *,
        stage: Stage,
        network: Network | None,
        fork_server: ForkServer,
        folder: Path,
        plant: str = "",
    ) -> None:
        """Without a network nothing lies between the parts, and nothing can be cut."""
        self._plan = plan
        self._stage = stage
        self._network = network
        self._fork_server = fork_server
        self._folder = folder
        self._plant = plant
        self.prefix = f"chaos-{plan.source_kind}-{plan.number}"
        self.source = f"{self.prefix}-in"
        self.output = f"{self.prefix}-out"
        self.dispatchers: list[Member] = []
        self.workers: list[Member] = []
        self.everybody: dict[str, Member] = {}
        self.ports: dict[int, str] = {}

    def start_dispatcher(self) -> Member:
        """Start another dispatcher."""
        plan, port = self._plan, fixed_port()
        own = None
        if self._network is not None:
            own = self._network.wire(port, host=WIRED_HOST, own_port=port)
        config = {
            "source_kind": plan.source_kind, "source": self.source,
            "host": "127.0.0.1", "port": port,
            "advertise_host": WIRED_HOST if own else "127.0.0.1",
            "lease_ms": plan.lease_ms, "retry_ms": 20,
            "retry_ms_max": 100,
            "deadline_ms": plan.deadline_ms, "silence_ms_max": plan.deadline_ms,
            "heartbeat_ms": plan.deadline_ms // 4, "deliveries_max": plan.deliveries_max,
        }  # fmt: skip
        member = self._start("dispatcher", config, own)
        self.ports[port] = member.name
        self.dispatchers.append(member)
        return member

    def start_worker(self) -> Member:
        """Start another worker."""
        replicas = 1 if self._stage.is_replicated else 0
        config = {
            "credit": 200, "wait_replicas": replicas, "drain_ms_max": 2_000, "concurrency": 64,
        }  # fmt: skip
        member = self._start("worker", config, None)
        self.workers.append(member)
        return member

    def _start(self, kind: str, config: dict[str, Any], own: Wire | None) -> Member:
        name = f"{kind}-{1 + sum(kind in each for each in self.everybody)}"
        network, servers = self._network, self._stage.servers
        wires = [network.wire(server.port) for server in servers] if network is not None else []
        places = [each.address for each in wires or servers]
        common = {
            "redis": places, "prefix": self.prefix,
            "output": self.output, "streams": self._plan.streams,
        }  # fmt: skip
        if kind == "worker":
            config |= {"name": name}
        process = self._fork_server.start(
            name=name, kind=kind, config={**common, **config}, plant=self._plant,
            journal=str(self._folder / f"{name}.jsonl"), log=str(self._folder / "programs.log"),
            slow_s=SLOW_S,
        )  # fmt: skip
        member = self.everybody[name] = Member(name, process, wires, own)
        return member

    def end(self) -> None:
        """End everybody at once."""
        for member in self.everybody.values():
            member.process.kill()
            for wire in [*member.redis, *([member.own] if member.own else [])]:
                wire.close()
