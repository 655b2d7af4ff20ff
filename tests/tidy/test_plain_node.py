"""A plain node loads what it serves when it serves it: `waterclock up` is ready in a second.

Loading is most of that second. What needs a library of its own (a secured node, traces, stores,
brokers), and what only some nodes do (gossip, replication, Spark), waits until it is asked for.
"""

import json
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
PROGRAM = """
import json, os, signal, sys
from importlib.metadata import packages_distributions
from waterclock.cli.app import app
from waterclock.cli.commands import up

def tell(_):
    libraries = {name.partition(".")[0] for name in sys.modules} & {*packages_distributions()}
    ours = [name for name in sys.modules if name.startswith("waterclock.")]
    print(json.dumps([sorted(libraries), ours]), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

up.print_json = tell
app(["up", "--json", "--data", sys.argv[1], "--grpc-port", "0", "--http-port", "0"])
"""

LIBRARIES = {
    "annotated_doc", "crc32c", "google", "grpc", "grpc_health", "grpc_reflection", "httptools",
    "msgspec", "numpy", "prometheus_client", "pyarrow", "shellingham", "typer", "typing_extensions",
    "tzdata", "uvloop", "waterclock",
}  # fmt: skip
"""All that a plain node has when it is ready."""
BY_CHANCE = {"grpc_tools", "_distutils_hack"}
"""Not needed, and not ours to say: gRPC loads its tools where they are installed."""
LATER = (
    "waterclock.burrow", "waterclock.client.client", "waterclock.cluster.gossip",
    "waterclock.dispatch", "waterclock.server.cluster.etcd",
    "waterclock.server.cluster.replication", "waterclock.spark", "waterclock.stores.cassandra",
    "waterclock.stores.dynamodb", "waterclock.stores.mongodb", "waterclock.stores.mysql",
    "waterclock.stores.postgres",
)  # fmt: skip


def is_later(module: str) -> bool:
    """Say if a module is one of those, or within."""
    return any(f"{module}.".startswith(f"{each}.") for each in LATER)


def test_what_is_loaded_later_is_there():
    places = [SOURCE / each.replace(".", "/") for each in LATER]

    found = [place.is_dir() or place.with_suffix(".py").exists() for place in places]
    assert all(found), LATER


def test_a_plain_node_that_is_ready_has_loaded_no_more_than_it_serves(tmp_path):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "data")]
    run = subprocess.run(command, capture_output=True, text=True, check=True)

    libraries, ours = json.loads(run.stdout.splitlines()[-1])
    assert {*libraries} - BY_CHANCE - LIBRARIES == set()
    assert [name for name in ours if is_later(name)] == []
