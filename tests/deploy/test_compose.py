"""Files of Compose: services are hardened, say what programs accept, and work together."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from benchmarks.peers.cache import python
from tests.deploy import compose
from tests.deploy.compose import CLUSTER, FOLDER, ONE_NODE, Project
from tests.deploy.container import Container, container
from tests.deploy.fetching import fetched
from tests.dispatch.redis_servers import programs
from tests.kit import needs
from tests.kit.timed_lines import untimed
from waterclock.dispatch.config import DispatcherConfig, WorkerConfig
from waterclock.dispatch.config import load_config as load_dispatch_config
from waterclock.model.config import load_config

CHECKER_VERSION = "0.39.0"
ADMIN = "@/var/lib/waterclock/data/secure/admin.credential"


def seconds(text: str) -> int:
    return int(text.removesuffix("s"))


@pytest.fixture(params=[ONE_NODE, CLUSTER])
def file(request: pytest.FixtureRequest) -> str:
    """Return the name of each file there is."""
    return str(request.param)


def test_every_service_is_hardened(file):
    for name, service in compose.services(file).items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["tmpfs"], name
        assert "privileged" not in service, name


def test_the_file_is_one_that_compose_takes(file):
    checker = fetched(lambda: python("check-jsonschema", CHECKER_VERSION))
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec",
         str(FOLDER / file)],
        env={**os.environ, "PYTHONPATH": str(checker)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_mounted_and_waited_for_exists(file):
    everything = compose.services(file)
    volumes = set(compose.content(file)["volumes"])
    for service in everything.values():
        for mount in compose.mounts(service):
            is_there = (
                (FOLDER / mount.source).exists() if "/" in mount.source else mount.source in volumes
            )
            assert is_there, mount
        assert set(service.get("depends_on", ())) <= set(everything)


def test_ports_are_open_to_this_machine_only(file):
    ports = [port for it in compose.services(file).values() for port in it.get("ports", ())]

    assert len({port.rpartition(":")[0] for port in ports}) == len(ports) > 0
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


def test_the_settings_are_accepted_and_a_stop_has_time_to_drain():
    dispatch = (FOLDER / "dispatch.yml").read_text()
    node = load_config(yaml_text=(FOLDER / "node.yml").read_text(), environ={}, flags={})
    # The secret is read from its file when the process starts.
    named = dispatch.replace("@/run/waterclock/dispatch.secret", "0123456789abcdef")
    load_dispatch_config(DispatcherConfig, yaml_text=named, environ={}, flags={})
    worker = load_dispatch_config(WorkerConfig, yaml_text=named, environ={}, flags={})

    started = compose.services(ONE_NODE)
    assert node.server.host == "0.0.0.0"
    assert node.server.hosts == ("node",)
    assert seconds(started["node"]["stop_grace_period"]) * 1_000 > node.server.drain_ms
    assert seconds(started["worker"]["stop_grace_period"]) * 1_000 > worker.drain_ms_max


@contextmanager
def redis(beside: Container) -> Iterator[Callable[..., object]]:
    """Run a Redis on the loopback of a container; give what sends it a command."""
    needs.claim("redis")
    its = fetched(programs)
    enter = ["nsenter", "--target", str(beside.process.pid), "--net"]
    quiet = ["--save", "", "--appendonly", "no"]
    with subprocess.Popen(
        [*enter, its.find("redis-server"), *quiet], env=its.environ(), stdout=subprocess.PIPE
    ) as server:
        assert server.stdout is not None
        try:
            assert any(b"Ready to accept connections" in line for line in server.stdout)
            command = [*enter, its.find("redis-cli")]
            yield lambda *words: subprocess.run(
                [*command, *words], env=its.environ(), check=True, capture_output=True
            )
        finally:
            server.kill()


def test_nodes_of_the_cluster_accept_their_settings_and_name_each_other():
    text = (FOLDER / "cluster.yml").read_text()
    nodes = {name: it for name, it in compose.services(CLUSTER).items() if name != "secure"}
    for name, it in nodes.items():
        config = load_config(yaml_text=text, environ=it["environment"], flags={})
        assert config.node.name == config.cluster.advertise == name
        assert config.cluster.bootstrap_nodes == tuple(
            f"{each}:{config.cluster.gossip_port}" for each in nodes
        )
        assert config.server.hosts == tuple(nodes)
        assert seconds(it["stop_grace_period"]) * 1_000 > config.server.drain_ms
    hosts = compose.commands(CLUSTER)["secure"]
    assert {*nodes} <= {*hosts}


def test_a_message_of_redis_comes_to_a_topic_of_the_secured_node(image, tmp_path):
    project = Project(image, tmp_path, ONE_NODE)
    commands = compose.commands(ONE_NODE)
    with ExitStack() as started:

        def start(name: str, beside: Container | None = None) -> Container:
            arguments = project.arguments(name)
            return started.enter_context(
                container(
                    image, arguments.pop("folder"), *commands[name], beside=beside, **arguments
                )
            )

        assert start("secure").process.wait() == 0
        node = start("node")
        assert node.ready()["is_secure"] is True
        asked = node.run(*image.stage.last("HEALTHCHECK").words())
        assert asked.returncode == 0, asked.stdout
        make = ["waterclock", "topics", "create", "readings"]
        assert node.run(*make, WATERCLOCK_CREDENTIAL=ADMIN).returncode == 0
        send = started.enter_context(redis(node))
        for name in ("dispatcher", "worker"):
            start(name, node).stdout.readline()
        send("XADD", "readings", "*", "data", '{"celsius": 21.5}')
        read = ["waterclock", "subscribe", "readings", "--from", "earliest", "--count", "1"]
        came = node.run(*read, WATERCLOCK_CREDENTIAL=ADMIN)
        stranger = node.run("waterclock", "publish", "readings", "mine")

        assert came.returncode == 0, came.stderr
        assert "21.5" in came.stdout
        assert stranger.returncode != 0


def test_a_message_to_one_node_of_the_cluster_is_received_through_another(image, tmp_path):
    project = Project(image, tmp_path, CLUSTER)
    commands = compose.commands(CLUSTER)
    admin = {"WATERCLOCK_CREDENTIAL": "@/run/waterclock/data/secure/admin.credential"}
    with ExitStack() as started:

        def start(name: str, beside: Container | None = None) -> Container:
            arguments = project.arguments(name)
            return started.enter_context(
                container(
                    image, arguments.pop("folder"), *commands[name], beside=beside, **arguments
                )
            )

        assert start("secure").process.wait() == 0
        first = start("node-1")
        others = [start(name, first) for name in ("node-2", "node-3")]
        assert [it.ready()["is_secure"] for it in (first, *others)] == [True] * 3
        joined = "waterclock cluster events --follow | grep --max-count 1 '3 nodes own streams'"
        assert first.run("sh", "-c", joined, **admin).returncode == 0
        healthy = first.run(*image.stage.last("HEALTHCHECK").words())
        sent = first.run("waterclock", "send", "greetings", "hello", **admin)
        receive = ["waterclock", "receive", "greetings", "--address", "node-3:9000"]
        received = first.run(*receive, **admin)
        stranger = first.run(*receive)

    assert healthy.returncode == 0, healthy.stdout
    assert sent.returncode == 0, sent.stderr
    assert untimed(received.stdout) == "1  hello\n", received.stderr
    assert stranger.returncode != 0
