"""Seeds of a cloud: EC2, Compute Engine and Azure, by answers of their APIs kept in `samples`.

The answers are written after the references of the APIs: no account of a cloud is at hand.

The libraries that find credentials and speak to the APIs are the real ones; only where they ask is
another place: a server here, which answers with what is in the files.
"""

import json
import logging
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from waterclock.cluster.gossip import providers
from waterclock.cluster.gossip.discovery import Seeds, look_up_cloud, parse_seed
from waterclock.cluster.gossip.providers import CloudSeed
from waterclock.model.errors import BadConfig

SAMPLES = Path(__file__).parent / "samples" / "providers"
AWS = "provider=aws tag_key=cluster tag_value=orders region=eu-central-1"
GCE = "provider=gce tag_value=orders"
AZURE = "provider=azure subscription_id=1111"
TAGGED = f"{AZURE} tag_name=cluster tag_value=orders"
SCALE_SET = f"{AZURE} resource_group=shop vm_scale_set=orders"


class Cloud(BaseHTTPRequestHandler):
    """Answers as the APIs of the providers do, or as `failing` says."""

    asked: list[tuple[str, dict[str, str]]]
    failing: str | None

    def do_GET(self):
        split = urlsplit(self.path)
        self._answer(split.path, dict(parse_qsl(split.query)))

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(urlsplit(self.path).path, dict(parse_qsl(body.decode())))

    def _answer(self, path, words):
        if path.endswith("/token"):
            token = {"access_token": "let-me", "token_type": "Bearer", "resource": "any"}
            whole = {**token, "expires_in": 3_600, "expires_on": str(int(time.time()) + 3_600)}
            self._send(200, json.dumps(whole).encode())
            return
        cls = type(self)
        cls.asked.append((path, words))
        assert "let-me" in self.headers["Authorization"] or "AWS4" in self.headers["Authorization"]
        if cls.failing is not None:
            sample = SAMPLES / cls.failing
            self._send(403, sample.read_bytes() if sample.exists() else cls.failing.encode())
            return
        page = 2 if "page-2" in words.values() else 1
        name = {"/": f"ec2-{page}.xml"}.get(path, f"azure-{page}.json")
        if "aggregated" in path:
            name = f"gce-{page}.json"
        elif "virtualMachineScaleSets" in path:
            name = "azure-scale-set.json"
        here = f"http://{self.headers['Host']}".encode()
        self._send(200, (SAMPLES / name).read_bytes().replace(b"ENDPOINT", here))

    def _send(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Nobody reads it."""


@pytest.fixture(scope="module")
def server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Cloud)
    threading.Thread(target=server.serve_forever, args=[0.05], daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def service_account(server, tmp_path_factory):
    """What Google's tools keep for a program: a key, and where it is changed for a token."""
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    file = tmp_path_factory.mktemp("gce") / "credentials.json"
    account = {
        "type": "service_account",
        "project_id": "shop",
        "private_key": pem,
        "client_email": "node@shop.iam.gserviceaccount.com",
        "token_uri": f"{server}/token",
    }
    file.write_text(json.dumps(account))
    return file


@pytest.fixture
def cloud(server, service_account, tmp_path, monkeypatch):
    """Give each provider's tools credentials to find; return where the APIs are."""
    Cloud.asked, Cloud.failing = [], None
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(service_account))
    monkeypatch.setenv("IDENTITY_ENDPOINT", f"{server}/msi/token")
    monkeypatch.setenv("IDENTITY_HEADER", "header")
    return server


async def found(text, cloud):
    seed = parse_seed(f"{text} endpoint={cloud}")
    assert isinstance(seed, CloudSeed)
    return [host for host, _ in await look_up_cloud(seed)]


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        (AWS, ["10.0.1.11", "10.0.1.12", "10.0.2.13"]),
        (f"{AWS} addr_type=public_v4", ["54.194.252.215", "54.194.252.217"]),
        (f"{AWS} addr_type=public_v6", ["2001:db8:1234:1a2b::11"]),
        (GCE, ["10.132.0.2", "10.132.0.4", "10.128.0.5"]),
        (f"{GCE} zone_pattern=europe-.*", ["10.132.0.2", "10.132.0.4"]),
        (TAGGED, ["10.1.0.4", "10.1.0.6"]),
        (SCALE_SET, ["10.1.1.4", "10.1.1.5"]),
    ],
)
async def test_who_bears_the_tag_is_found_on_all_pages(text, hosts, cloud):
    assert await found(text, cloud) == hosts


async def test_ec2_is_asked_for_what_runs_and_bears_the_tag(cloud):
    await found(AWS, cloud)

    ((_, first), (_, second)) = Cloud.asked
    assert first["Action"] == "DescribeInstances"
    assert (first["Filter.1.Name"], first["Filter.1.Value.1"]) == ("tag:cluster", "orders")
    assert (first["Filter.2.Name"], first["Filter.2.Value.1"]) == ("instance-state-name", "running")
    assert second["NextToken"] == "page-2"


@pytest.mark.parametrize(
    ("text", "project"), [(GCE, "shop"), (f"{GCE} project_name=other", "other")]
)
async def test_the_project_is_that_of_the_credentials_unless_it_is_named(text, project, cloud):
    await found(text, cloud)

    path = f"/compute/v1/projects/{project}/aggregated/instances"
    assert [each for each, _ in Cloud.asked] == [path, path]
    assert Cloud.asked[0][1]["filter"] == "status=RUNNING"


async def test_azure_is_asked_in_the_subscription(cloud):
    await found(SCALE_SET, cloud)

    scale_set = "resourceGroups/shop/providers/Microsoft.Compute/virtualMachineScaleSets/orders"
    asked = (f"/subscriptions/1111/{scale_set}/networkInterfaces", {"api-version": "2018-10-01"})
    assert Cloud.asked == [asked]


@pytest.mark.parametrize(
    ("text", "answer", "reason"),
    [
        (AWS, "ec2-error.xml", "not authorized to perform this operation"),
        (GCE, "gce-error.json", "403 Required 'compute.instances.list' permission"),
        (TAGGED, "azure-error.json", "403 The client 'orders' does not have authorization"),
        (GCE, "no JSON", "403 without a JSON object"),
        (TAGGED, "[]", "403 without a JSON object"),
    ],
)
async def test_a_refusal_is_told_in_one_line_and_other_seeds_go_on(
    text, answer, reason, cloud, caplog
):
    Cloud.failing = answer
    seeds = Seeds([f"{text} endpoint={cloud}", "127.0.0.1:5"])

    with caplog.at_level(logging.WARNING, "waterclock"):
        assert await seeds.addresses() == [("127.0.0.1", 5)]

    (line,) = caplog.messages
    assert line.startswith(f"seed_not_found seed={text}")
    assert reason in line
    assert "\n" not in line


@pytest.mark.parametrize("text", [AWS, GCE, TAGGED])
async def test_a_provider_that_is_not_there_is_told_in_one_line(text, cloud):
    with pytest.raises(OSError, match=r"^[^\n]*(connect|refused)[^\n]*$"):
        await found(text, "http://127.0.0.1:1")


async def test_an_answer_of_another_shape_is_no_crash(monkeypatch):
    def find(options):
        return [options["missing"]]

    seed = CloudSeed("aws", {}, 1)
    monkeypatch.setattr("waterclock.cluster.gossip.providers.aws.find", find)

    with pytest.raises(OSError, match="an answer that is not understood: KeyError"):
        await look_up_cloud(seed)


@pytest.mark.parametrize(("text", "port"), [(AWS, 7_946), (f"{AWS} port=8000", 8_000)])
def test_the_port_is_that_of_gossip_unless_it_is_told(text, port):
    options = {"tag_key": "cluster", "tag_value": "orders", "region": "eu-central-1"}

    assert parse_seed(text) == CloudSeed("aws", options, port)
    assert str(parse_seed(text)) == AWS


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("provider=moon tag_value=a", "there is no provider 'moon', there are aws, gce, azure"),
        ("provider=", "words name=value"),
        ("provider=aws tag_key", "words name=value"),
        ("provider=gce tag_value=a tag_value=b", "each once"),
        ("provider=aws tag_key=a", "aws must be told tag_key and tag_value"),
        (AZURE, "must be told subscription_id and tag_name and tag_value, or "),
        (f"{GCE} region=a", "gce knows no region, it knows endpoint, project_name, "),
        (f"{AWS} secret_access_key=a", "secret_access_key is no part of a seed"),
        (f"{AWS} port=0", "has no port that can be"),
        (f"{AWS} addr_type=private_v5", "no addr_type private_v5, there are private_v4, "),
        (f"{AWS} endpoint=here", "the endpoint of aws is no URL"),
        (f"{GCE} zone_pattern=(", "zone_pattern is no regular expression"),
    ],
)
def test_what_is_no_seed_is_refused_in_a_sentence(text, reason):
    with pytest.raises(BadConfig, match=r"cluster\.bootstrap_nodes") as caught:
        parse_seed(text)
    assert reason in str(caught.value)


def test_a_provider_without_its_library_names_the_extra(monkeypatch):
    monkeypatch.setattr(providers, "find_spec", lambda name: None)

    with pytest.raises(BadConfig, match=r"needs: pip install 'waterclock\[gcp\]'"):
        parse_seed(GCE)
