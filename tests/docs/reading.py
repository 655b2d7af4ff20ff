"""A stranger at a terminal: our wheel in a new environment, a node, and the servers pages speak of.

All pages are read beside the same node. Pages name the ports that servers have by themselves; here
they have free ones.
"""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.peers.cache import Programs
from benchmarks.peers.server import free_port
from tests.docs.environment import environment
from tests.docs.pages import ROOT, Block
from tests.kit.ports import free_rows

PLAY = Path(__file__).with_name("play.py")
PAGE_S = 600
"""What hangs is ended then; nothing takes that long."""
END_S_MAX = 60
CLUSTER_NODES = 3


@dataclass(frozen=True)
class Stranger:
    """Somebody who reads in a folder."""

    folder: Path
    programs: Path
    places: dict[str, str]
    """Where servers are, by how pages write it."""
    settings: dict[str, str] = field(default_factory=dict)
    """Of the environment, for nodes that a page starts."""

    def with_own_node(self) -> "Stranger":
        """Return a reader of a page that starts the node it speaks of."""
        grpc_port, http_port = str(free_port()), str(free_port())
        here = {
            "localhost:9000": f"localhost:{grpc_port}",
            "localhost:8080": f"localhost:{http_port}",
        }
        ports = {"GRPC_PORT": grpc_port, "HTTP_PORT": http_port}
        settings = {f"WATERCLOCK_CLUSTER__{name}": port for name, port in ports.items()}
        return replace(self, places={**self.places, **here}, settings=settings)

    def with_own_cluster(self) -> "Stranger":
        """Return a reader of a page that starts the nodes it speaks of, on ports in a row."""
        names = ("GRPC", "HTTP", "GOSSIP")
        first = dict(zip(names, free_rows(len(names), CLUSTER_NODES), strict=True))
        here = {
            f"localhost:{port + number}": f"localhost:{first[name] + number}"
            for name, port in (("GRPC", 9000), ("HTTP", 8080))
            for number in range(CLUSTER_NODES)
        }
        settings = {f"WATERCLOCK_CLUSTER__{name}_PORT": str(port) for name, port in first.items()}
        return replace(self, places={**self.places, **here}, settings=settings)

    def read(self, name: str, blocks: list[Block]) -> str:
        """Run the blocks of a page; return all that is printed, or fail with it."""
        page = {
            "name": name,
            "blocks": [
                {
                    "line": block.line,
                    "kind": block.kind,
                    "text": self._here(block.text),
                    "printed": block.printed,
                }
                for block in blocks
                if block.not_run is None
            ],
        }
        file = self.folder / "page.json"
        file.write_text(json.dumps(page))
        return self.run([str(PLAY), str(file)])

    def run(self, words: list[str]) -> str:
        """Run Python with these arguments; return what it prints."""
        with subprocess.Popen(
            [self.programs / "python", *words],
            cwd=self.folder, env=self._environ(), text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as run:  # fmt: skip
            try:
                said, errors = run.communicate(timeout=PAGE_S)
            finally:  # what it left running, if anything
                with suppress(ProcessLookupError):
                    os.killpg(run.pid, signal.SIGKILL)
        assert run.returncode == 0, said + errors
        return said

    def _here(self, text: str) -> str:
        for place, real in self.places.items():
            text = text.replace(place, real)
        return text

    def _environ(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
        path = [self.folder / "bin", self.programs, os.environ["PATH"]]
        return {
            **kept,
            "PATH": os.pathsep.join(map(str, path)),
            "PYTHONSAFEPATH": "1",
            "WATERCLOCK_ADDRESS": self.places["localhost:9000"],
            "KAFKA": self.places["localhost:9092"],
            "REDIS": self.places["localhost:6379"],
            "WATERCLOCK_DISPATCH__PORT": "0",
            **self.settings,
        }


@contextmanager
def stranger(folder: Path, *, kafka: str, redis: str, its: Programs) -> Iterator[Stranger]:
    """Install everything and run a node."""
    programs = environment(folder)
    desk = folder / "desk"
    (desk / "bin").mkdir(parents=True)
    (desk / ".venv").symlink_to(programs.parent)
    (desk / "examples").symlink_to(ROOT / "examples")
    libraries = its.environ().get("LD_LIBRARY_PATH", "")
    port = redis.rpartition(":")[2]
    for name, more in (("redis-server", ""), ("redis-cli", f" -p {port}")):
        script = desk / "bin" / name
        call = f'exec {its.find(name)}{more} "$@"'
        script.write_text(f"#!/bin/sh\nLD_LIBRARY_PATH={libraries} {call}\n")
        script.chmod(0o755)
    command = [str(programs / "waterclock"), "up", "--grpc-port", "0", "--http-port", "0", "--json"]
    with (
        (folder / "node.log").open("wb") as log,
        subprocess.Popen(command, cwd=desk, stdout=subprocess.PIPE, stderr=log) as node,
    ):
        assert node.stdout is not None
        try:
            ready = json.loads(node.stdout.readline())
            places = {
                "localhost:9000": f"127.0.0.1:{ready['grpc_port']}",
                "localhost:8080": f"127.0.0.1:{ready['http_port']}",
                "localhost:9092": kafka,
                "localhost:6379": redis,
            }
            yield Stranger(desk, programs, places)
        finally:
            node.terminate()
            code = node.wait(END_S_MAX)
    assert code == 0, (folder / "node.log").read_text(errors="replace")[-2000:]
