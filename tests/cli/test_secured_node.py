"""A secured node and a dispatcher, started as anybody would start them: three commands to the first
publish, TLS 1.3 alone on every port, and no secret in anything they write."""

import base64
import json
import os
import re
import socket
import ssl
import stat
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.dispatch.certificates import certificates
from waterclock import NotAuthenticated, WaterclockError, connect_blocking
from waterclock.security.credential import Credential
from waterclock.security.tls import client_context

PASSWORD = "planted-password-of-a-database"
SECRET = "planted-secret-of-the-dispatchers"
AWAY = "127.0.0.1:1"
"""Where nobody listens."""


class Secured(NamedTuple):
    """A node that runs, and who knows it."""

    data: Path
    log: Path
    ports: dict[str, int]
    credential: Credential
    admin: Credential

    def ask(self, method: str, path: str, bearer: str, body: str | None = None) -> tuple[int, str]:
        """Send one request over HTTP; return the answer with its headers."""
        context = client_context(self.credential.ca_pem)
        connection = HTTPSConnection("localhost", self.ports["http"], context=context, timeout=30)
        try:
            headers = {"Authorization": bearer} if bearer else {}
            connection.request(method, path, body=body, headers=headers)
            answer = connection.getresponse()
            return answer.status, f"{answer.headers}{answer.read().decode(errors='replace')}"
        finally:
            connection.close()


def run(*words: object, **options: Any) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "waterclock", *map(str, words)]
    environ = {name: value for name, value in os.environ.items() if "WATERCLOCK" not in name}
    return subprocess.run(command, text=True, capture_output=True, env=environ, **options)


@contextmanager
def started(log: Path, *words: object) -> Iterator[dict[str, Any]]:
    """Have a command run under the loosest umask; give the first line it prints, as JSON."""
    command = [sys.executable, "-m", "waterclock", *map(str, words)]
    with (
        log.open("wb") as file,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, umask=0) as process,
    ):
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()
            process.wait()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Make a secured node by three commands, and have it refuse and take a publish."""
    folder = tmp_path_factory.mktemp("secured")
    data, log = folder / "data", folder / "node.log"
    begun = time.monotonic()
    assert run("secure", "init", "--data", data, umask=0).returncode == 0
    added = run("secure", "add", "billing", "--publish", "orders.*", "--data", data, umask=0)
    credential = Credential.parse(added.stdout)
    store = f"streams.store=postgresql://user:{PASSWORD}@{AWAY}/streams"
    settings = ["--set", "log.format=json", "--set", "log.preallocate_bytes=0", "--set", store]
    ports = ["--grpc-port", 0, "--http-port", 0]
    with started(log, "up", "--verbose", "--json", "--data", data, *ports, *settings) as shown:
        places = {
            name: int(shown[f"{name}_address"].rpartition(":")[2]) for name in ("grpc", "http")
        }
        address = f"localhost:{places['grpc']}"
        publish = ["publish", "orders.eu", "hello", "--address", address]
        denied, allowed = run(*publish), run(*publish, "--credential", added.stdout.strip())
        print(f"from nothing to a publish: {time.monotonic() - begun:.1f} s")
        assert (denied.returncode != 0, allowed.returncode) == (True, 0), allowed.stderr
        assert "credential" in denied.stderr
        admin = Credential.read(f"@{data}/secure/admin.credential")
        yield Secured(data, log, places, credential, admin)


def speaks(port: int, version: str, *words: str) -> bool:
    """Say whether `openssl s_client` comes to terms with a port."""
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", version, "-brief", *words]
    found = subprocess.run(command, input=b"", capture_output=True, check=False)
    said = (found.stdout + found.stderr).decode(errors="replace")
    assert ("CONNECTION ESTABLISHED" in said) == (found.returncode == 0), said
    return found.returncode == 0


@pytest.mark.parametrize("name", ["grpc", "http"])
def test_a_node_speaks_tls_1_3_and_nothing_older(node: Secured, name: str) -> None:
    port = node.ports[name]
    assert speaks(port, "-tls1_3", "-alpn", "h2,http/1.1")
    assert not speaks(port, "-tls1_2", "-alpn", "h2,http/1.1")
    assert not speaks(port, "-tls1_2", "-cipher", "ALL:@SECLEVEL=0")


def test_a_dispatcher_speaks_tls_1_3_and_nothing_older_and_tells_no_secret(tmp_path: Path) -> None:
    files, log = certificates(tmp_path / "files"), tmp_path / "dispatch.log"
    redis = f"redis://user:{PASSWORD}@{AWAY}/0"
    settings = {**files.settings(), "secret": SECRET}
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    own = ["-cert", str(files.certificate), "-key", str(files.key)]
    command = ["dispatch", "--verbose", "--json", "--port", 0, "--redis", redis, *words]
    with started(log, *command) as shown:
        port = int(shown["port"])
        assert speaks(port, "-tls1_3", *own)
        assert not speaks(port, "-tls1_2", *own)
        context = ssl._create_unverified_context()
        context.load_cert_chain(files.certificate, files.key)
        with (
            socket.create_connection(("127.0.0.1", port)) as plain,
            context.wrap_socket(plain) as wire,
        ):
            wire.sendall(b"no frame " + SECRET.encode())
            wire.recv(1_000)
    said = log.read_text() + json.dumps(shown)
    assert "Redis" in said or "redis" in said, "it says what it waits for"
    assert secrets_in(said, [PASSWORD, SECRET]) == []


def secrets_in(text: str, planted: list[str]) -> list[str]:
    return [secret[:12] for secret in planted if secret in text]


def planted_in(node: Secured) -> list[str]:
    """Return what nobody must find: signatures of tokens, keys of every kind, the password."""
    keys = [path.read_text() for path in (node.data / "secure").rglob("*.key")]
    lines = [line for key in keys for line in key.splitlines() if not line.startswith("-----")]
    signatures = [each.token.rpartition(".")[2] for each in (node.credential, node.admin)]
    return [*lines, *signatures, PASSWORD]


def test_no_log_metric_or_error_holds_a_secret(node: Secured, tmp_path: Path) -> None:
    said = [ask_badly(node), call_badly(node, tmp_path)]
    said.append(node.ask("GET", "/metrics", f"Bearer {node.admin.token}")[1])
    said.append(run("secure", "list", "--data", node.data).stdout)
    said.append(node.log.read_text())

    key = (tmp_path / "orders.keys").read_text().strip()
    assert "store_unavailable" in said[-1]
    assert "waterclock_" in said[2]
    found = [secrets_in(text, [*planted_in(node), key]) for text in said]
    assert found == [[]] * len(said)


def ask_badly(node: Secured) -> str:
    """Ask for what is refused, in many ways, over HTTP; return all that was answered."""
    good, path = f"Bearer {node.credential.token}", "/topics/orders.eu/messages"
    forged = good[:-6] + "AAAAAA"
    asked = [
        ("POST", path, "", "{}"),
        ("POST", path, forged, "{}"),
        ("POST", path, f"Basic {node.credential.token}", "{}"),
        ("POST", path, f"Bearer {node.credential.encode()}x", "{}"),
        ("POST", path, good, "{no json"),
        ("POST", path, good, '{"value": "x"}'),
        ("POST", "/topics/others/messages", good, '{"value": "x"}'),
        ("DELETE", "/topics/orders.eu", good, None),
        ("GET", f"/topics?token={node.credential.token}", good, None),
        ("POST", "/streams/send?store=true", f"Bearer {node.admin.token}", '{"streamId":"s"}'),
        ("GET", "/health/ready", "", None),
    ]  # fmt: skip
    answers = [node.ask(*each) for each in asked]
    assert {status for status, _ in answers} >= {201, 400, 401, 403}
    # Who asks for a path that is not there is told which; nobody else is.
    assert node.ask("GET", f"/{node.credential.encode()}", good)[0] == 404
    return "\n".join(text for _, text in answers)


def call_badly(node: Secured, folder: Path) -> str:
    """Do the same over gRPC, with a key that encrypts values; return what was raised, with the
    tracebacks."""
    keys = folder / "orders.keys"
    keys.write_text(base64.b64encode(os.urandom(32)).decode() + "\n")
    keys.chmod(0o600)
    address = f"localhost:{node.ports['grpc']}"
    said = []

    def attempt(work: Any, *given: Any) -> None:
        try:
            work(*given)
        except WaterclockError:
            said.append(traceback.format_exc())

    with connect_blocking(address, credential=node.credential, keys=keys) as client:
        said.append(repr(client))
        client.publish("orders.eu", b"encrypted")
        attempt(client.publish, "others", b"x")
        attempt(client.topics.delete, "orders.eu")
        attempt(client.fetch, "orders.eu", 0, 0)
    forged = replace(node.credential, token=node.credential.token[:-6] + "AAAAAA")
    attempt(connect_blocking(address, credential=forged).__enter__)
    assert any(NotAuthenticated.__name__ in each for each in said)
    assert len(said) >= 4
    return "\n".join(said)


def test_whatever_the_umask_only_the_node_and_its_group_read_what_it_stores(node: Secured) -> None:
    for path in [node.data, *node.data.rglob("*")]:
        if path.is_symlink():
            continue
        mode = stat.S_IMODE(path.stat().st_mode)
        is_secret = re.search(r"\.(key|credential)$|^cluster\.json$", path.name) is not None
        expected = 0o750 if path.is_dir() else 0o600 if is_secret else 0o640
        assert oct(mode) == oct(expected), path
