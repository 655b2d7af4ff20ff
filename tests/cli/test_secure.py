"""`waterclock secure`: from nothing to a credential, and what is said when something is amiss."""

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from waterclock.runtime.clock import SystemClock
from waterclock.security.authenticator import Authenticator
from waterclock.security.credential import Credential
from waterclock.security.folder import SecureFolder

DAY_MS = 86_400_000


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data folder that is secured; tests that change it copy it."""
    folder = tmp_path_factory.mktemp("secured")
    now_ms = SystemClock().now_ms()
    SecureFolder(folder / "secure").make(grpc_port=9000, http_port=8080, now_ms=now_ms)
    return folder


@pytest.fixture
def data(made, tmp_path):
    """Return a secured data folder of this test's own."""
    path = tmp_path / "data"
    subprocess.run(["cp", "-a", str(made), str(path)], check=True)
    return path


@pytest.fixture
def secure(waterclock, data):
    """Return a function that runs `waterclock secure` on the folder."""

    def run(command, *args):
        return waterclock("secure", command, *args, "--data", data)

    return run


def principal(data, text):
    """Return who a node takes the holder of a credential for."""
    known = Authenticator(SecureFolder(data / "secure").load())
    return known.principal_of(Credential.parse(text).token, SystemClock().now_ms())


def listed(secure):
    found = json.loads(secure("list", "--json").stdout)
    return {each["name"]: each for each in found["principals"]}


def test_a_folder_is_made_and_says_what_to_type_next(waterclock, tmp_path):
    data = tmp_path / "data"

    result = waterclock("secure", "init", "--data", data, "--host", "node-1.example")

    assert result.exit_code == 0, result.output
    assert f"{data}/secure is made" in result.stdout
    assert "secure add billing --publish 'orders.*'" in result.stdout
    admin = data / "secure" / "admin.credential"
    assert f"WATERCLOCK_CREDENTIAL=@{admin}" in result.stdout
    assert principal(data, admin.read_text()).rights.is_admin
    assert admin.read_text().strip() not in result.output, "the secret stays in its file"
    assert stat.S_IMODE(data.stat().st_mode) == 0o750


def test_making_it_again_changes_nothing(secure, data):
    before = (data / "secure" / "principals.json").read_bytes()

    result = secure("init", "--json")

    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "folder": str(data / "secure"),
        "is_new": False,
        "admin_credential": str(data / "secure" / "admin.credential"),
    }
    assert (data / "secure" / "principals.json").read_bytes() == before


@pytest.mark.parametrize(
    "command", [("init",), ("add", "x", "--read", "*"), ("revoke", "admin"), ("rotate",)]
)
def test_a_folder_from_before_gets_keys_for_a_cluster(secure, data, command):
    file = data / "secure" / "cluster.json"
    file.unlink()

    assert secure("list").exit_code == 0
    assert not file.exists(), "who only looks changes nothing"
    result = secure(*command)

    assert result.exit_code == 0, result.output
    assert len(json.loads(file.read_text())["keys"]) == 2
    assert ("new keys for a cluster" in result.stderr) == (command != ("rotate",))


def test_credentials_lead_to_the_host_and_the_ports_that_are_named(waterclock, tmp_path):
    options = ("--host", "node-1.example", "--grpc-port", 9001, "--http-port", 8443)
    waterclock("secure", "init", "--data", tmp_path, *options)

    credential = Credential.read(f"@{tmp_path}/secure/admin.credential")

    assert credential.grpc_address == "node-1.example:9001"
    assert credential.http_address == "https://node-1.example:8443"


def test_somebody_is_let_in_with_a_credential_alone_on_stdout(secure, data):
    result = secure(
        "add", "billing", "--publish", "orders.*", "--consume", "orders.*:billing", "--read", "r",
        "--schedule", "s", "--rate", "10MiB/s", "--requests", "100/s", "--connections", 5,
        "--topics", 1, "--partitions", 2, "--groups", 3, "--streams", 4, "--expires", "30d",
    )  # fmt: skip

    assert result.exit_code == 0, result.output
    assert result.stdout.count("\n") == 1
    billing = principal(data, result.stdout)
    assert billing.rights.allows("publish", topic="orders.eu")
    assert billing.rights.allows("consume", topic="orders.eu", group="billing")
    assert not billing.rights.allows("consume", topic="orders.eu", group="other")
    assert not billing.rights.allows("publish", topic="other")
    assert listed(secure)["billing"]["quotas"] == {
        "bytes_per_s": 10 << 20, "requests_per_s": 100, "connections": 5, "topics": 1,
        "partitions": 2, "groups": 3, "streams": 4,
    }  # fmt: skip
    left_ms = (billing.expires_ms or 0) - SystemClock().now_ms()
    assert 29 * DAY_MS < left_ms <= 30 * DAY_MS


def test_a_tenant_and_an_admin_are_let_in(secure, data):
    acme = principal(data, secure("add", "acme", "--tenant", "acme").stdout)
    boss = principal(data, secure("add", "boss", "--admin").stdout)

    assert acme.rights.allows("publish", topic="acme.orders")
    assert not acme.rights.allows("publish", topic="orders")
    assert boss.rights.is_admin


def test_machines_get_json(secure, data):
    result = json.loads(secure("add", "billing", "--read", "*", "--json").stdout)

    assert result["name"] == "billing"
    assert principal(data, result["credential"]).expires_ms == result["expires_ms"] // 1_000 * 1_000


def test_a_certificate_is_made_beside_the_credential(secure, tmp_path):
    result = secure("add", "billing", "--read", "*", "--certificate", tmp_path / "tls")

    assert result.exit_code == 0, result.output
    assert sorted(file.name for file in (tmp_path / "tls").iterdir()) == [
        "billing.key",
        "billing.pem",
    ]


def test_who_is_known_elsewhere_gets_no_credential(secure):
    result = secure("add", "ada", "--read", "*", "--outside")

    assert (result.exit_code, result.stdout) == (0, "")
    assert "ada is known by tokens of another issuer" in result.stderr


def test_a_name_that_is_taken_says_what_can_be_done(secure, data):
    old = secure("add", "billing", "--read", "*").stdout

    again = secure("add", "billing", "--read", "*")
    assert (again.exit_code, again.stdout) == (2, "")
    assert "--renew gives it one more credential, --replace ends those it has" in again.stderr

    renewed = secure("add", "billing", "--renew").stdout
    assert principal(data, old).name == principal(data, renewed).name == "billing"

    replaced = secure("add", "billing", "--publish", "x", "--replace")
    assert replaced.exit_code == 0
    assert listed(secure)["billing"]["rights"] == {"publish": ["x"]}
    assert len(listed(secure)["billing"]["credentials"]) == 1


def test_who_is_revoked_is_gone(secure):
    secure("add", "billing", "--read", "*")

    assert secure("revoke", "billing").exit_code == 0
    assert list(listed(secure)) == ["admin"]
    gone = secure("revoke", "billing")
    assert (gone.exit_code, gone.stderr) == (2, "error: there is no principal 'billing'\n")


def test_the_list_is_for_people(secure):
    secure("add", "billing", "--consume", "orders.*:b", "--rate", "1MiB", "--topics", 1)
    secure("add", "ada", "--read", "*", "--outside")

    shown = " ".join(secure("list").stdout.split())

    assert "admin admin for 364 d 23 h" in shown
    assert "billing consume orders.*:b 1 MiB/s, 1 topic for 364 d 23 h" in shown
    assert "ada read * its issuer says" in shown


def test_a_rotation_says_what_it_made(secure, data):
    before = (data / "secure" / "node.pem").read_bytes()

    result = secure("rotate", "--host", "node-2.example")
    assert result.exit_code == 0
    assert "node-2.example" in result.stderr
    assert (data / "secure" / "node.pem").read_bytes() != before

    rotated = json.loads(secure("rotate", "--json").stdout)
    assert "node-2.example" in rotated["hosts"]


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("add", "billing"), "billing could do nothing: add --publish"),
        (("add", "a b", "--read", "*"), "principal name 'a b'"),
        (("add", "billing", "--publish", "o:g"), "only consume has groups"),
        (("add", "billing", "--publish", "or?ers"), "names have letters"),
        (("add", "billing", "--read", "*", "--rate", "fast"), "--rate 'fast': write a size"),
        (("add", "billing", "--read", "*", "--rate", "0"), "as in 10MiB/s"),
        (("add", "billing", "--read", "*", "--requests", "9/m"), "as in 100/s"),
        (("add", "billing", "--read", "*", "--expires", "soon"), "as in 365d"),
        (("add", "billing", "--tenant", "a b"), "tenant name 'a b'"),
        (("add", "billing", "--renew"), "there is no principal 'billing'"),
        (("add", "admin", "--renew", "--read", "*"), "rights and quotas need --replace"),
        (("rotate", "--host", "a b"), "neither a host name nor an address"),
    ],
)
def test_a_mistake_is_one_line_that_helps_and_changes_nothing(secure, data, args, why):
    before = (data / "secure" / "principals.json").read_bytes()

    result = secure(*args)

    assert (result.exit_code, result.stdout) == (2, "")
    assert why in result.stderr
    assert result.stderr.count("\n") == 1
    assert (data / "secure" / "principals.json").read_bytes() == before


@pytest.mark.parametrize(
    "command", [("add", "x", "--read", "*"), ("list",), ("revoke", "x"), ("rotate",)]
)
def test_a_folder_that_is_not_there_says_how_to_begin(waterclock, tmp_path, command):
    result = waterclock("secure", *command, "--data", tmp_path)

    assert result.exit_code == 2
    assert "make it with `waterclock secure init`" in result.stderr


def test_a_folder_that_cannot_be_read_is_told_by_init_too(secure, data):
    (data / "secure" / "principals.json").write_text("{")

    for command in (("init",), ("list",), ("add", "x", "--read", "*")):
        result = secure(*command)
        assert result.exit_code == 2
        assert "principals.json" in result.stderr


def test_settings_name_the_folder_as_they_do_for_a_node(waterclock, tmp_path, monkeypatch):
    monkeypatch.setenv("WATERCLOCK_SECURITY__FOLDER", str(tmp_path / "elsewhere"))

    assert waterclock("secure", "init").exit_code == 0
    assert (tmp_path / "elsewhere" / "admin.credential").exists()


@pytest.mark.parametrize("module", ["cryptography", "jwt"])
def test_nobody_who_secures_nothing_loads_cryptography(module):
    program = (
        "import sys, waterclock, waterclock.cli.app, waterclock.security.credential, "
        "waterclock.security.rights, waterclock.security.quotas, waterclock.security.principals; "
        f"sys.exit({module!r} in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
