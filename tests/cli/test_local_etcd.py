"""The etcd of a local cluster: found or asked for, there before the nodes, gone after them."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.coordinator.etcd_servers import programs
from tests.kit.needs import claim
from waterclock.cli.commands.cluster.etcd import LocalEtcd, etcd_for, running_etcd
from waterclock.cli.commands.cluster.local import LocalCluster, run_local_cluster
from waterclock.cli.commands.cluster.plan import command, free_ports, plan
from waterclock.model.config import Config, load_config
from waterclock.model.errors import BadConfig, NodeFailed

LOOKS_LIKE_ETCD = """#!{python}
import http.server, sys
given = dict(word.split("=", 1) for word in sys.argv[1:])
host, port = given["--listen-client-urls"].removeprefix("http://").split(":")
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "17")
        self.end_headers()
        self.wfile.write(b'{{"health":"true"}}')
    def log_message(self, *_): pass
http.server.HTTPServer((host, int(port)), Health).serve_forever()
"""
NODE = """
import json, os, signal, sys, urllib.request
with urllib.request.urlopen("http://ENDPOINT/health") as answer: answer.read()
def stop(*_):
    with urllib.request.urlopen("http://ENDPOINT/health") as answer:
        print("etcd was there at the end", file=sys.stderr, flush=True)
    sys.exit()
signal.signal(signal.SIGTERM, stop)
print(json.dumps({"pid": os.getpid(), "http_address": "http://127.0.0.1:9"}), flush=True)
while True: signal.pause()
"""
COMMAND = """
import asyncio, sys
from pathlib import Path
from waterclock.cli.commands.cluster import local, ready
from waterclock.cli.commands.cluster.etcd import LocalEtcd
from waterclock.cli.commands.cluster.plan import LocalNode
from waterclock.model.config import Config, load_config
ready.FORM_S_MAX = 0
program, folder, endpoint, peer, node = sys.argv[1:]
place = LocalNode("node-1", Path(), 0, 0, "")
children = [local.NodeChild(place, [sys.executable, "-c", node], "")]
config = load_config(yaml_text="", environ={}, flags={})
etcd = LocalEtcd(program, Path(folder), endpoint, peer)
asyncio.run(local.LocalCluster(config, children, None, etcd, as_json=True).run())
"""


def config_of(folder: Path, **flags: object) -> Config:
    named = {f"cluster.{name}": value for name, value in flags.items()}
    named["node.data_folder"] = str(folder)
    return load_config(yaml_text="", environ={}, flags=named)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return what looks like an etcd; it is the one on the path."""
    file = tmp_path / "bin" / "etcd"
    file.parent.mkdir()
    file.write_text(LOOKS_LIKE_ETCD.format(python=sys.executable))
    file.chmod(0o755)
    monkeypatch.setenv("PATH", str(file.parent))
    return file


def local_etcd(program: Path | str, folder: Path, held: ExitStack) -> LocalEtcd:
    client, peer = (f"127.0.0.1:{port}" for port in free_ports("127.0.0.1", 2, held))
    return LocalEtcd(str(program), folder / "etcd", client, peer)


def test_an_etcd_on_the_path_is_taken_with_its_data_beside_the_nodes(program, tmp_path, held):
    found = etcd_for(config_of(tmp_path), held, is_wanted=None)

    assert found is not None
    assert (found.program, found.folder) == (str(program), tmp_path / "etcd")
    assert found.endpoint != found.peer


def test_none_is_started_if_nodes_have_one_or_nobody_wants_topics(program, tmp_path, held):
    assert etcd_for(config_of(tmp_path, etcd="etcd-1:2379"), held, is_wanted=None) is None
    assert etcd_for(config_of(tmp_path), held, is_wanted=False) is None


def test_without_one_there_are_streams_only_unless_topics_are_asked_for(
    tmp_path, monkeypatch, held
):
    monkeypatch.setenv("PATH", str(tmp_path))

    assert etcd_for(config_of(tmp_path), held, is_wanted=None) is None
    with pytest.raises(BadConfig, match="apt install etcd-server, or a release from https"):
        etcd_for(config_of(tmp_path), held, is_wanted=True)


def test_nodes_are_told_where_it_is_and_how_many_they_are(held):
    flags = {"cluster.grpc_port": 0, "cluster.http_port": 0, "cluster.gossip_port": 0}
    nodes = plan(load_config(yaml_text="", environ={}, flags=flags), 3, held)

    words = command(nodes[0], nodes, [], None, "127.0.0.1:2379")

    assert "cluster.etcd=127.0.0.1:2379" in words
    assert "cluster.expect=3" in words
    assert not any("etcd" in word for word in command(nodes[0], nodes, [], None))


def test_ports_that_were_drawn_are_held_while_the_nodes_and_it_are_there(
    program, tmp_path, monkeypatch
):
    drawn: list[str] = []

    async def run(cluster: LocalCluster) -> None:
        etcd = cluster._etcd
        assert etcd is not None
        drawn.extend([etcd.endpoint, etcd.peer, *(each.node.gossip for each in cluster._children)])
        for address in drawn:
            with closing(socket.socket()) as other, pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", int(address.rpartition(":")[2])))

    monkeypatch.setattr(LocalCluster, "run", run)
    run_local_cluster(
        config_of(tmp_path, gossip_port=0, grpc_port=0, http_port=0),
        2, [], has_topics=None, as_json=True,
    )  # fmt: skip

    assert len(drawn) == 4


def test_it_is_there_before_the_nodes_and_ends_after_them(program, tmp_path, held):
    etcd = local_etcd(program, tmp_path, held)
    node = NODE.replace("ENDPOINT", etcd.endpoint)
    words = [etcd.program, str(etcd.folder), etcd.endpoint, etcd.peer, node]
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND, *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            shown = json.loads(process.stdout.readline())
            assert shown["etcd"]["endpoint"] == etcd.endpoint
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate()
        finally:
            process.kill()
    assert (process.returncode, said) == (0, "etcd was there at the end\n")
    with pytest.raises(ProcessLookupError):
        os.kill(shown["etcd"]["pid"], 0)


async def test_one_that_is_killed_is_told_and_started_again(program, tmp_path, monkeypatch, held):
    monkeypatch.setattr("waterclock.cli.commands.cluster.etcd.RESTART_S", 0.0)
    said: asyncio.Queue[str] = asyncio.Queue()
    async with running_etcd(local_etcd(program, tmp_path, held), said.put_nowait) as running:
        assert running is not None
        for _ in range(2):
            assert running.process is not None
            running.process.kill()
            assert "etcd ended (-9) and is started again" in await said.get()
            assert await said.get() == "etcd is back"


async def test_one_that_does_not_start_is_an_error_that_says_where_to_look(program, tmp_path, held):
    program.write_text(f"#!{sys.executable}\nprint('no room')\n")

    with pytest.raises(NodeFailed, match=r"etcd did not start: .*etcd.log says why"):
        async with running_etcd(local_etcd(program, tmp_path, held), print):
            pytest.fail("it did not start")
    assert (tmp_path / "etcd.log").read_text() == "no room\n"


async def test_debians_etcd_takes_the_flags_and_finds_its_data_again(tmp_path, held):
    claim("etcd")
    found = programs().find("etcd")
    shown: dict[str, Any] = {}
    for at, path in enumerate(("put", "range")):
        # On other ports each time, as the nodes are.
        async with running_etcd(local_etcd(found, tmp_path, held), print) as running:
            assert running is not None
            body = {"key": "a2V5"} | ({"value": "dmFsdWU="} if at == 0 else {})
            url = f"http://{running.etcd.endpoint}/v3/kv/{path}"
            request = urllib.request.Request(url, json.dumps(body).encode())
            with await asyncio.to_thread(urllib.request.urlopen, request) as answer:
                shown = json.load(answer)
    assert [each["value"] for each in shown["kvs"]] == ["dmFsdWU="]
