"""TLS 1.3 between a server and clients, in memory: who is let in, and who is not."""

import ssl
from pathlib import Path

import pytest

from waterclock.model.errors import BadInput
from waterclock.security.certificates import (
    KeyPair,
    make_ca,
    make_client_certificate,
    make_node_certificate,
)
from waterclock.security.tls import client_context, common_name_of, server_context


@pytest.fixture(scope="module")
def now_ms() -> int:
    import time

    return time.time_ns() // 1_000_000


@pytest.fixture(scope="module")
def ca(now_ms: int) -> KeyPair:
    return make_ca("Waterclock", now_ms=now_ms)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, ca: KeyPair, now_ms: int) -> Path:
    """Return a folder with a CA, a node and a client."""
    folder = tmp_path_factory.mktemp("tls")
    node = make_node_certificate(ca, ["localhost", "127.0.0.1"], now_ms=now_ms)
    client = make_client_certificate(ca, "billing", now_ms=now_ms)
    for name, pair in (("ca", ca), ("node", node), ("client", client)):
        (folder / f"{name}.pem").write_bytes(pair.certificate_pem)
        (folder / f"{name}.key").write_bytes(pair.key_pem)
    return folder


def shaken(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> tuple[str, object]:
    """Shake hands in memory; return the version and what the server knows of the client."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    theirs = client.wrap_bio(to_client, to_server, server_hostname=host)
    ours = server.wrap_bio(to_server, to_client, server_side=True)
    waiting = [theirs, ours]
    for _ in range(10):
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                pass
    assert not waiting
    return str(ours.version()), ours.getpeercert()


@pytest.fixture
def server(files: Path) -> ssl.SSLContext:
    return server_context(files / "node.pem", files / "node.key", files / "ca.pem")


def test_a_client_with_the_ca_of_its_credential_gets_tls_1_3(server, ca):
    version, certificate = shaken(server, client_context(ca.certificate_pem), "localhost")

    assert version == "TLSv1.3"
    assert common_name_of(certificate) is None


def test_a_client_that_shows_a_certificate_is_known_by_it(server, ca, files):
    client = client_context(ca.certificate_pem, files / "client.pem", files / "client.key")

    _, certificate = shaken(server, client, "127.0.0.1")

    assert common_name_of(certificate) == "billing"


def test_nobody_gets_tls_1_2(server, ca):
    client = client_context(ca.certificate_pem)
    client.minimum_version = ssl.TLSVersion.TLSv1_2
    client.maximum_version = ssl.TLSVersion.TLSv1_2

    with pytest.raises(ssl.SSLError):
        shaken(server, client, "localhost")


def test_a_server_of_tls_1_2_is_refused(files, ca):
    server = server_context(files / "node.pem", files / "node.key")
    server.minimum_version = ssl.TLSVersion.TLSv1_2
    server.maximum_version = ssl.TLSVersion.TLSv1_2

    with pytest.raises(ssl.SSLError):
        shaken(server, client_context(ca.certificate_pem), "localhost")


def test_a_server_of_another_name_is_refused(server, ca):
    with pytest.raises(ssl.SSLCertVerificationError):
        shaken(server, client_context(ca.certificate_pem), "other.example")


def test_a_server_of_another_ca_is_refused(server, now_ms):
    other = make_ca("Waterclock", now_ms=now_ms)

    with pytest.raises(ssl.SSLCertVerificationError):
        shaken(server, client_context(other.certificate_pem), "localhost")


def test_a_client_with_a_certificate_of_another_ca_is_refused(server, ca, now_ms, tmp_path):
    other = make_ca("Waterclock", now_ms=now_ms)
    forged = make_client_certificate(other, "admin", now_ms=now_ms)
    (tmp_path / "c.pem").write_bytes(forged.certificate_pem)
    (tmp_path / "c.key").write_bytes(forged.key_pem)
    client = client_context(ca.certificate_pem, tmp_path / "c.pem", tmp_path / "c.key")

    with pytest.raises(ssl.SSLError):
        shaken(server, client, "localhost")


def test_a_client_does_not_pass_for_a_server(files, ca):
    server = server_context(files / "client.pem", files / "client.key")

    with pytest.raises(ssl.SSLCertVerificationError):
        shaken(server, client_context(ca.certificate_pem), "localhost")


def test_files_that_do_not_fit_are_named(files, tmp_path):
    with pytest.raises(
        BadInput, match=r"node\.pem.*client\.key: are not a certificate and its key"
    ):
        server_context(files / "node.pem", files / "client.key")
    with pytest.raises(BadInput, match="No such file"):
        server_context(tmp_path / "absent", files / "node.key")


@pytest.mark.parametrize("pem", [b"", b"none", b"\xff"])
def test_what_is_no_ca_is_refused(pem):
    with pytest.raises(BadInput):
        client_context(pem)


@pytest.mark.parametrize(
    ("certificate", "name"),
    [
        (None, None),
        ({}, None),
        ({"subject": ((("commonName", "billing"),),)}, "billing"),
        ({"subject": ((("commonName", "a"),), (("commonName", "b"),))}, None),
        ({"subject": ((("organizationName", "a"),),)}, None),
    ],
)
def test_a_certificate_names_one_principal_or_none(certificate, name):
    assert common_name_of(certificate) == name
