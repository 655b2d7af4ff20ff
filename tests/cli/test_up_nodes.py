"""`up --nodes` runs a cluster on this machine: a line for programs, a table for people, one end."""

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import waterclock as package
from benchmarks.peers.cache import Absent
from tests.cli.terminals import at_terminal
from tests.cluster.coordinator.etcd_servers import programs
from tests.kit.needs import claim
from tests.kit.ports import free_in_a_row
from tests.kit.timed_lines import untimed
from tests.stores.servers.registry import reason_to_skip
from waterclock.security.folder import SecureFolder

PORTS = ("--grpc-port", "0", "--http-port", "0", "--set", "cluster.gossip_port=0")
GONE_S_MAX = 30
"""What does not end is found by then."""


class LocalCluster(NamedTuple):
    """A cluster and what it said of itself."""

    process: "subprocess.Popen[str]"
    shown: dict[str, Any]

    @property
    def nodes(self) -> list[dict[str, Any]]:
        nodes: list[dict[str, Any]] = self.shown["nodes"]
        return nodes


@contextmanager
def running_cluster(data: Path, count: int, *options: str) -> Iterator[LocalCluster]:
    """Run a cluster on free ports; no node of it outlives the block."""
    command = [sys.executable, "-m", "waterclock", "up", "--json", "--data", str(data)]
    with subprocess.Popen(
        [*command, "--nodes", str(count), *PORTS, *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            yield LocalCluster(process, json.loads(process.stdout.readline()))
        finally:
            process.kill()


def ends(pid: int) -> int:
    """Return what can be waited on until a process has ended, be it a child of ours or not."""
    return os.pidfd_open(pid)


def wait_for(*ended: int) -> None:
    """Wait until all these processes have ended."""
    for each in ended:
        found, _, _ = select.select([each], [], [], GONE_S_MAX)
        os.close(each)
        assert found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Return a secured cluster that tests share; at the end, it stops in good order."""
    data = tmp_path_factory.mktemp("cluster")
    folder = SecureFolder(data / "secure")
    folder.make(grpc_port=0, http_port=0, now_ms=time.time_ns() // 1_000_000)
    with running_cluster(data, 2) as found:
        yield found
        nodes = [ends(node["pid"]) for node in found.nodes]
        found.process.send_signal(signal.SIGTERM)
        _, complaints = found.process.communicate()
        assert (found.process.returncode, complaints) == (0, "")
        wait_for(*nodes)


def test_a_program_is_told_of_all_nodes_in_one_line(cluster):
    first, second = cluster.nodes

    assert cluster.shown["cluster"] == "waterclock"
    assert cluster.shown["version"] == package.__version__
    assert cluster.shown["pid"] == cluster.process.pid
    assert cluster.shown["is_formed"] is True
    assert [first["name"], second["name"]] == ["node-1", "node-2"]
    assert Path(second["data_folder"]).name == "node-2"
    assert first["grpc_port"] != second["grpc_port"]


@pytest.fixture
def at(waterclock, cluster):
    """Return a function that runs a command line on a node of the cluster, as its admin."""
    credential = f"@{cluster.nodes[0]['admin_credential']}"

    def run(node: dict[str, Any], *words: object) -> Any:
        return waterclock(*words, "--address", node["grpc_address"], "--credential", credential)

    return run


def test_a_message_that_one_node_took_is_received_through_the_other(cluster, at, topic):
    first, second = cluster.nodes
    for number in range(4):  # some are owned by the one, some by the other
        stream = f"{topic}-{number}"
        sent = at(first, "send", stream, number)
        assert sent.exit_code == 0, sent.output
        assert untimed(at(second, "receive", stream).stdout) == f"1  {number}\n"


def test_nodes_share_the_secure_folder_and_let_in_nobody_without_a_credential(cluster, waterclock):
    first, second = cluster.nodes

    assert first["is_secure"] is second["is_secure"] is True
    assert first["admin_credential"] == second["admin_credential"]
    stranger = waterclock("cluster", "members", "--address", second["grpc_address"])
    assert stranger.exit_code == 2


def test_each_node_shows_both_and_they_agree(cluster, at):
    def asked(words: str, node: dict[str, Any]) -> Any:
        result = at(node, "cluster", words, "--json")
        return [json.loads(line) for line in result.stdout.splitlines()]

    for node in cluster.nodes:
        ((members,), (ring,), events) = (
            asked(words, node) for words in ("members", "ring", "events")
        )
        states = {each["name"]: each["state"] for each in members["members"]}
        assert states == {"node-1": "alive", "node-2": "alive"}
        assert members["members"][0]["name"] == node["name"]
        assert {each["gossip_address"] for each in cluster.nodes} == {
            each["address"] for each in members["members"]
        }
        assert [each["name"] for each in ring["nodes"]] == ["node-1", "node-2"]
        assert "joined" in [each["kind"] for each in events]


@pytest.fixture
def etcd_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have an etcd where `up` looks for one."""
    try:
        found = programs().find("etcd")
    except Absent as absent:
        pytest.skip(reason_to_skip("debian", absent))
    claim("etcd")
    monkeypatch.setenv("PATH", str(Path(found).parent), prepend=os.pathsep)


@pytest.mark.etcd
@pytest.mark.usefixtures("etcd_on_path")
def test_topics_go_on_when_a_node_is_killed_and_the_status_shows_it(waterclock, tmp_path):
    with running_cluster(tmp_path, 3, "--topics") as cluster:
        by_name = {node["name"]: node for node in cluster.nodes}
        addresses = ",".join(node["grpc_address"] for node in cluster.nodes)

        def asked(*words: object) -> str:
            result = waterclock(*words, "--address", addresses)
            assert result.exit_code == 0, result.output
            return str(result.stdout)

        def status() -> list[dict[str, Any]]:
            views = json.loads(asked("cluster", "status", "--json"))["partitions"]
            return [each for each in views if each["topic"] == "orders"]

        def publish(value: str) -> None:
            for partition in range(3):
                asked("publish", "orders", value, "--partition", partition, "--acks", "quorum")

        asked("topics", "create", "orders", "--partitions", 3, "--replicas", 3)
        publish("before")
        before = status()
        assert len(before) == 3
        for each in before:
            assert {replica["name"] for replica in each["replicas"]} == set(by_name)
        lost = by_name[before[0]["leader"]]
        gone = ends(lost["pid"])
        os.kill(lost["pid"], signal.SIGKILL)
        wait_for(gone)
        publish("after")

        for each in status():
            assert each["leader"] in set(by_name) - {lost["name"]}
            assert each["is_under_replicated"]
            assert [it["name"] for it in each["replicas"] if not it["is_linked"]] == [lost["name"]]
        cluster.process.send_signal(signal.SIGTERM)
        _, complaints = cluster.process.communicate()
        assert lost["name"] in complaints
        assert cluster.process.returncode == 0


def test_a_person_is_told_where_the_nodes_are_and_what_to_type_and_ctrl_c_stops_all(tmp_path):
    seen = at_terminal(
        *("-m", "waterclock", "up", "--nodes", 2, "--data", tmp_path, *PORTS),
        awaited="events --follow", is_interrupted=True, columns=160,
    )  # fmt: skip

    assert seen.exit_code == 0
    plain = re.sub(r"\x1b\[[\d;]*m", "", seen.screen)
    assert f"starting 2 nodes in {tmp_path}" in plain
    for name in ("node-1", "node-2"):
        assert re.search(rf"^{name}  is ready, after", plain, re.MULTILINE)
        assert re.search(rf"^{name}  http://127.0.0.1:\d+  127.0.0.1:\d+ ", plain, re.MULTILINE)
        assert re.search(rf"^{name}  has stopped$", plain, re.MULTILINE)
    assert f"{package.__version__}: 2 nodes are one cluster, waterclock" in plain
    for words in ("send greetings hello", "receive greetings --address", "cluster members"):
        assert words in plain
    assert "Stopping all nodes. Ctrl-C again ends them at once." in plain
    assert re.search(r"^Stopped in [\d.]+ s\.$", plain, re.MULTILINE)


@pytest.mark.parametrize("count", [1, 10])
def test_a_cluster_has_two_to_nine_nodes(waterclock, count):
    result = waterclock("up", "--nodes", count)

    assert result.exit_code == 2
    assert "--nodes" in result.stderr


def test_a_port_that_one_of_the_nodes_would_have_is_taken_and_what_helps_is_said(
    waterclock, tmp_path
):
    first = free_in_a_row(2)
    with socket.create_server(("127.0.0.1", first + 1)):
        result = waterclock("up", "--nodes", 2, "--data", tmp_path, *PORTS, "--grpc-port", first)

    assert result.exit_code == 2
    assert result.stderr == (
        f"error: configuration cluster.grpc_port: cannot listen on 127.0.0.1:{first + 1}: Address"
        " already in use; another node may be running; choose another port with --grpc-port\n"
    )


def test_a_mistake_in_the_settings_is_told_before_anything_is_started(waterclock, tmp_path):
    result = waterclock("up", "--nodes", 3, "--data", tmp_path, "--set", "log.fsync=sometimes")

    assert result.exit_code == 2
    assert result.stderr.startswith("error: configuration log.fsync: expected")
    assert list(tmp_path.iterdir()) == []
