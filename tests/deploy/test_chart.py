"""deploy/helm/waterclock: real Helm lints and renders it, and Kubernetes would take what comes."""

import json
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

import waterclock
from benchmarks.peers.cache import go, python
from tests.deploy.container import Container, container, volume
from tests.deploy.fetching import fetched
from tests.kit.timed_lines import untimed
from waterclock.model.config import Config, load_config

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "waterclock"
HELM = "helm.sh/helm/v3/cmd/helm", "v3.22.0"
SCHEMAS_VERSION = "1.37.0"
KUBERNETES = "1.31"
EVERYTHING = {
    "hosts": ["mq.example.com"],
    "config": {"log": {"fsync": "always"}, "server": {"hosts": ["proxy.example.com"]}},
    "secure": {"existingSecret": "keys"},
    "networkPolicy": {"enabled": True, "metricsFrom": [{"namespaceSelector": {}}]},
    "metrics": {"serviceMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}},
    "podAnnotations": {"a": "b"}, "podLabels": {"c": "d"}, "nodeSelector": {"e": "f"},
    "tolerations": [{"operator": "Exists"}], "affinity": {"podAntiAffinity": {}},
    "priorityClassName": "high", "extraEnv": [{"name": "TZ", "value": "UTC"}],
    "imagePullSecrets": [{"name": "registry"}], "image": {"digest": f"sha256:{'0' * 64}"},
    "persistence": {"storageClass": "fast", "annotations": {"g": "h"}},
    "service": {"annotations": {"i": "j"}},
}  # fmt: skip
CLUSTER = EVERYTHING | {"replicas": 3}
CUSTOM = {"ServiceMonitor", "PrometheusRule"}
"""Kinds of an operator, which Kubernetes itself has no schema of."""


class Rendered(NamedTuple):
    """What Helm made of the chart."""

    objects: list[dict[str, Any]]

    def one(self, kind: str, suffix: str = "") -> dict[str, Any]:
        """Return the object of a kind."""
        (found,) = (
            it for it in self.objects
            if it["kind"] == kind and it["metadata"]["name"] == f"prod-waterclock{suffix}"
        )  # fmt: skip
        return found

    @property
    def pod(self) -> dict[str, Any]:
        """The pod of the StatefulSet."""
        found: dict[str, Any] = self.one("StatefulSet")["spec"]["template"]["spec"]
        return found

    @property
    def config(self) -> Config:
        """The node's settings, by its own loader."""
        text = self.one("ConfigMap")["data"]["node.yml"]
        return load_config(yaml_text=text, environ={}, flags={})


def helm(*words: str, values: dict[str, Any]) -> "subprocess.CompletedProcess[str]":
    """Call Helm; no cluster is asked."""
    program = fetched(lambda: go(*HELM)) / "helm"
    return subprocess.run(
        [str(program), *words, "--values", "-"],
        input=json.dumps(values), capture_output=True, text=True, check=False,
    )  # fmt: skip


def template(values: dict[str, Any], chart: Path = CHART) -> "subprocess.CompletedProcess[str]":
    asked = ["template", "prod", str(chart), "--namespace", "mq"]
    return helm(*asked, "--kube-version", f"{KUBERNETES}.0", values=values)


def render(values: dict[str, Any], chart: Path = CHART) -> Rendered:
    done = template(values, chart)
    assert done.returncode == 0, done.stderr
    return Rendered([it for it in yaml.safe_load_all(done.stdout) if it])


@pytest.fixture(scope="module")
def plain() -> Rendered:
    return render({})


@pytest.fixture(scope="module")
def full() -> Rendered:
    return render(EVERYTHING)


@pytest.fixture(scope="module")
def cluster() -> Rendered:
    return render(CLUSTER)


@pytest.mark.parametrize("values", [{}, EVERYTHING, CLUSTER], ids=["plain", "full", "cluster"])
def test_the_chart_lints(values):
    version = ["--kube-version", f"{KUBERNETES}.0"]
    done = helm("lint", str(CHART), "--strict", *version, values=values)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"replicas": 0}, "replicas"),
        ({"replicas": 3}, "need secure.existingSecret: nodes of a cluster share one"),
        ({"config": {"lgo": {}}}, "lgo"),
        ({"persistence": {"accessMode": "ReadWriteMany"}}, "accessMode"),
        ({"terminationGracePeriodSeconds": 1}, "terminationGracePeriodSeconds"),
    ],
)
def test_values_that_mean_nothing_are_refused(values, named):
    done = template(values)

    assert done.returncode != 0
    assert named in done.stderr


def test_kubernetes_takes_every_object(plain, full, cluster):
    sys.path.append(str(fetched(lambda: python("kubernetes-validate", SCHEMAS_VERSION))))
    try:
        import kubernetes_validate  # type: ignore[import-not-found]

        for it in (*plain.objects, *full.objects, *cluster.objects):
            if it["kind"] not in CUSTOM:
                kubernetes_validate.validate(it, KUBERNETES, strict=True)
    finally:
        sys.path.pop()

    kinds = {it["kind"] for it in full.objects} - {it["kind"] for it in plain.objects}
    assert kinds == {"NetworkPolicy", *CUSTOM}


def test_the_node_accepts_its_settings(plain, full):
    own = {
        "prod-waterclock", "prod-waterclock.mq", "prod-waterclock.mq.svc",
        "prod-waterclock.mq.svc.cluster.local",
        "prod-waterclock-0.prod-waterclock-headless.mq.svc.cluster.local",
    }  # fmt: skip

    assert plain.config.server.host == full.config.server.host == "0.0.0.0"
    assert set(plain.config.server.hosts) == own
    assert set(full.config.server.hosts) == own | {"mq.example.com", "proxy.example.com"}
    assert (full.config.log.fsync, full.config.log.format) == ("always", "json")
    assert full.config.security.folder == "/run/waterclock/secure"


def test_a_stop_has_time_to_drain(plain):
    seconds = plain.pod["terminationGracePeriodSeconds"]

    assert seconds * 1_000 > plain.config.server.drain_ms


def test_every_section_of_settings_can_be_given():
    schema = json.loads((CHART / "values.schema.json").read_text())
    sections = schema["properties"]["config"]["propertyNames"]["enum"]

    assert sorted(sections) == sorted(Config.__dataclass_fields__)


def test_the_chart_is_of_this_version():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())

    assert chart["appVersion"] == waterclock.__version__


def test_there_is_one_node_as_nobodys_root(plain):
    pod = plain.pod
    security = pod["securityContext"]

    assert plain.one("StatefulSet")["spec"]["replicas"] == 1
    assert (security["runAsNonRoot"], security["runAsUser"]) == (True, 10001)
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    for it in (*pod["initContainers"], *pod["containers"]):
        assert it["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_probes_and_services_lead_to_ports_of_the_node(plain):
    (node,) = plain.pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in node["ports"]}
    probes = [node[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")]
    cluster = plain.config.cluster

    assert ports == {"grpc": cluster.grpc_port, "https": cluster.http_port}
    assert {(probe["scheme"], probe["port"]) for probe in probes} == {("HTTPS", "https")}
    assert [probe["path"] for probe in probes] == ["/health/ready", "/health/live", "/health/ready"]
    for suffix in ("", "-headless"):
        service = plain.one("Service", suffix)["spec"]
        assert {port["targetPort"] for port in service["ports"]} == set(ports)
        assert service["selector"].items() <= (
            plain.one("StatefulSet")["spec"]["template"]["metadata"]["labels"].items()
        )
    assert plain.one("StatefulSet")["spec"]["serviceName"] == "prod-waterclock-headless"


def test_replicas_are_a_cluster_whose_nodes_find_each_other_by_the_names_of_their_pods(cluster):
    (node,) = cluster.pod["containers"]
    environ = {each["name"]: each.get("value") for each in node["env"]}
    ports = {(each["containerPort"], each["protocol"]) for each in node["ports"]}
    pods = [
        f"prod-waterclock-{number}.prod-waterclock-headless.mq.svc.cluster.local"
        for number in range(3)
    ]
    settings = cluster.config.cluster

    assert cluster.one("StatefulSet")["spec"]["replicas"] == 3
    assert settings.bootstrap_nodes == tuple(f"{pod}:{settings.gossip_port}" for pod in pods)
    assert set(pods) <= set(cluster.config.server.hosts)
    assert environ["WATERCLOCK_NODE__NAME"] == "$(POD_NAME)"
    assert (
        environ["WATERCLOCK_CLUSTER__ADVERTISE"].replace("$(POD_NAME)", "prod-waterclock-0") in pods
    )
    assert ports == {
        (settings.grpc_port, "TCP"), (settings.http_port, "TCP"), (settings.peer_port, "TCP"),
        (settings.gossip_port, "TCP"), (settings.gossip_port, "UDP"),
    }  # fmt: skip
    _, dns = cluster.pod["initContainers"]
    assert dns["command"][-1] == environ["WATERCLOCK_CLUSTER__ADVERTISE"]
    assert dns["securityContext"] == node["securityContext"]
    headless = cluster.one("Service", "-headless")["spec"]
    assert {port["targetPort"] for port in headless["ports"]} == {
        each["name"] for each in node["ports"]
    }
    assert headless["publishNotReadyAddresses"] is True


def test_nodes_of_a_cluster_are_let_in_by_each_other_and_no_one_else(cluster):
    policy = cluster.one("NetworkPolicy")["spec"]
    (among,) = (
        rule for rule in policy["ingress"] if {"port": "peer", "protocol": "TCP"} in rule["ports"]
    )

    assert among["from"] == [{"podSelector": policy["podSelector"]}]


def test_one_node_names_no_others(plain):
    assert plain.config.cluster.bootstrap_nodes == ()
    assert "env" not in plain.pod["containers"][0]


def test_the_rules_of_prometheus_are_those_of_the_docs(full):
    files = sorted((ROOT / "docs" / "alerts").glob("*.yml"))
    groups = [group for file in files for group in yaml.safe_load(file.read_text())["groups"]]

    assert groups
    assert full.one("PrometheusRule")["spec"]["groups"] == groups


def test_the_notes_say_how_to_let_somebody_in(tmp_path):
    # Helm shows notes only of what it has installed; here they are the data of one object more.
    chart = shutil.copytree(CHART, tmp_path / "waterclock")
    notes = (chart / "templates" / "NOTES.txt").read_text()
    shown = (
        'kind: Notes\nmetadata: {name: prod-waterclock}\ntext: {{ include "notes" . | quote }}\n'
    )
    (chart / "templates" / "shown.yaml").write_text(
        f'{{{{- define "notes" -}}}}{notes}{{{{- end -}}}}\n{shown}'
    )
    plain, full, cluster = (
        render(values, chart).one("Notes")["text"] for values in ({}, EVERYTHING, CLUSTER)
    )

    assert "prod-waterclock-0 -c node -- waterclock secure add billing" in plain
    assert "prod-waterclock.mq.svc.cluster.local:9000" in plain
    assert "are those of the Secret keys" in full
    assert "create secret generic waterclock-prometheus" in full
    assert "a cluster of 3 nodes, prod-waterclock-0 to prod-waterclock-2" in cluster


def test_a_pod_secures_itself_and_then_serves(image, plain, tmp_path):
    (settings := tmp_path / "node.yml").write_text(plain.one("ConfigMap")["data"]["node.yml"])
    data = volume(image, "/var/lib/waterclock", tmp_path / "data")
    binds = {data: "/var/lib/waterclock", settings: "/etc/waterclock/node.yml:ro"}
    (secure,), (node,) = plain.pod["initContainers"], plain.pod["containers"]

    with container(image, tmp_path / "secure", *secure["args"], binds=binds) as it:
        assert it.process.wait() == 0
    with container(image, tmp_path / "node", *node["args"], binds=binds) as it:
        assert it.ready()["is_secure"] is True
        healthy = it.run(*image.stage.last("HEALTHCHECK").words())

        assert healthy.returncode == 0, healthy.stdout


def test_keys_of_a_secret_are_in_memory_only(image, full, tmp_path):
    (secure,), (node,) = full.pod["initContainers"], full.pod["containers"]
    (settings := tmp_path / "node.yml").write_text(full.one("ConfigMap")["data"]["node.yml"])
    data = volume(image, "/var/lib/waterclock", tmp_path / "data")
    memory = volume(image, "/run/waterclock", tmp_path / "memory")
    made = [sys.executable, "-m", "waterclock", "secure", "init", "--data", str(tmp_path / "made")]
    subprocess.run(made, check=True, capture_output=True)
    (secret := tmp_path / "secret").mkdir()
    pack = ["tar", "-czf", str(secret / "secure.tar.gz"), "-C", str(tmp_path / "made"), "secure"]
    subprocess.run(pack, check=True)
    binds = {
        data: "/var/lib/waterclock", memory: "/run/waterclock",
        settings: "/etc/waterclock/node.yml:ro", secret: "/run/secret:ro",
    }  # fmt: skip

    words = [*secure["command"], *secure["args"]]
    with container(image, tmp_path / "unpack", entrypoint=words, binds=binds) as it:
        assert it.process.wait() == 0
    binds[memory] = "/run/waterclock:ro"
    with container(image, tmp_path / "node", *node["args"], binds=binds) as it:
        assert it.ready()["is_secure"] is True
    assert not (data / "data" / "secure").exists()


def environ_of(node: dict[str, Any], pod: str) -> dict[str, str]:
    """Return the environment of a container, as Kubernetes fills it in for a pod."""
    given = [each for each in node["env"] if "value" in each]
    return {each["name"]: each["value"].replace("$(POD_NAME)", pod) for each in given}


def test_pods_find_each_other_and_share_streams(image, tmp_path):
    rendered = render({"replicas": 2, "secure": {"existingSecret": "keys"}})
    (node,) = rendered.pod["containers"]
    names = [seed.rpartition(":")[0] for seed in rendered.config.cluster.bootstrap_nodes]
    (settings := tmp_path / "node.yml").write_text(rendered.one("ConfigMap")["data"]["node.yml"])
    # All pods are on one loopback here, each at an address of its own.
    addresses = {"localhost": "127.0.0.1", names[0]: "127.0.0.1", names[1]: "127.0.0.2"}
    (hosts := tmp_path / "hosts").write_text(
        "".join(f"{address} {name}\n" for name, address in addresses.items())
    )
    memory = volume(image, "/run/waterclock", tmp_path / "memory")
    binds = {
        memory: "/run/waterclock", settings: "/etc/waterclock/node.yml:ro", hosts: "/etc/hosts:ro",
    }  # fmt: skip
    called = [word for name in rendered.config.server.hosts for word in ("--host", name)]
    init = ["secure", "init", "--data", "/run/waterclock", *called]
    with container(image, tmp_path / "secure", *init, binds=binds) as it:
        assert it.process.wait() == 0

    with ExitStack() as started:
        first: Container | None = None
        for name in names:
            pod = name.partition(".")[0]
            data = volume(image, "/var/lib/waterclock", tmp_path / f"data-{pod}")
            own = environ_of(node, pod) | {"WATERCLOCK_SERVER__HOST": addresses[name]}
            place = {**binds, data: "/var/lib/waterclock"}
            it = started.enter_context(
                container(
                    image, tmp_path / pod, *node["args"], binds=place, environ=own, beside=first
                )
            )
            assert it.ready()["name"] == pod
            first = first or it
        joined = "waterclock cluster events --follow | grep --max-count 1 '2 nodes own streams'"
        admin = {
            "WATERCLOCK_CREDENTIAL": "@/run/waterclock/secure/admin.credential",
            "WATERCLOCK_ADDRESS": f"{names[0]}:9000",
        }
        assert it.run("sh", "-c", joined, **admin).returncode == 0
        sent = it.run("waterclock", "send", "greetings", "hello", **admin)
        admin["WATERCLOCK_ADDRESS"] = f"{names[1]}:9000"
        received = it.run("waterclock", "receive", "greetings", **admin)

    assert sent.returncode == 0, sent.stderr
    assert untimed(received.stdout) == "1  hello\n", received.stderr
