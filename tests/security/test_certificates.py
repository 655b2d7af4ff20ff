"""Certificates: what OpenSSL takes, for whom they are, and what is refused."""

import ssl
import subprocess

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from tests.security.moments import DAY_MS, NOW_MS
from waterclock.model.errors import BadInput
from waterclock.security.certificates import (
    CA_DAYS,
    LEAF_DAYS,
    KeyPair,
    check_pair,
    expires_ms_of,
    hosts_of,
    make_ca,
    make_client_certificate,
    make_node_certificate,
)

HOSTS = ["node-1.example", "*.example", "localhost", "127.0.0.1", "::1"]
CA = make_ca("Waterclock", now_ms=NOW_MS)
NODE = make_node_certificate(CA, HOSTS, now_ms=NOW_MS)
OTHER_CA = make_ca("Waterclock", now_ms=NOW_MS)


def leaf(pair: KeyPair) -> x509.Certificate:
    return x509.load_pem_x509_certificates(pair.certificate_pem)[0]


def test_a_node_certificate_is_for_its_hosts_and_signed_by_the_ca():
    check_pair(NODE, CA.certificate_pem)

    assert hosts_of(NODE.certificate_pem) == HOSTS
    assert expires_ms_of(NODE.certificate_pem) == NOW_MS + LEAF_DAYS * DAY_MS
    assert expires_ms_of(CA.certificate_pem) == NOW_MS + CA_DAYS * DAY_MS
    assert NODE.certificate_pem.endswith(CA.certificate_pem), "servers send the whole chain"


def test_keys_are_of_the_curve_that_grpc_knows():
    for pair in (CA, NODE):
        key = leaf(pair).public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        assert isinstance(key.curve, ec.SECP256R1)


def test_openssl_verifies_it_for_servers_and_clients(tmp_path):
    (tmp_path / "ca.pem").write_bytes(CA.certificate_pem)
    (tmp_path / "node.pem").write_bytes(NODE.certificate_pem)
    for purpose in ("sslserver", "sslclient"):
        run = subprocess.run(
            ["openssl", "verify", "-x509_strict", "-CAfile", "ca.pem", "-purpose", purpose,
             "-verify_hostname", "node-1.example", "-attime", str(NOW_MS // 1_000), "node.pem"],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert run.returncode == 0, run.stderr


def test_a_client_certificate_names_its_principal_and_is_for_no_server(tmp_path):
    client = make_client_certificate(CA, "billing", now_ms=NOW_MS)
    check_pair(client, CA.certificate_pem)

    certificate = leaf(client)
    purposes = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert certificate.subject.rfc4514_string() == "CN=billing"
    assert list(purposes) == [x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH]


def test_the_subject_of_a_node_is_the_name_of_no_principal():
    assert leaf(NODE).subject.rfc4514_string() == "CN=node:node-1.example"


def test_a_certificate_that_was_signed_signs_no_other():
    basic = leaf(NODE).extensions.get_extension_for_class(x509.BasicConstraints)
    ca_basic = leaf(CA).extensions.get_extension_for_class(x509.BasicConstraints)

    assert (basic.critical, basic.value.ca) == (True, False)
    assert (ca_basic.critical, ca_basic.value.ca, ca_basic.value.path_length) == (True, True, 0)


@pytest.mark.parametrize(
    ("pair", "ca", "why"),
    [
        (NODE, OTHER_CA, "not signed by the CA"),
        (KeyPair(NODE.certificate_pem, OTHER_CA.key_pem), CA, "not the certificate's"),
        (KeyPair(NODE.certificate_pem, b"no key"), CA, "cannot be read"),
        (KeyPair(b"none", NODE.key_pem), CA, "cannot be read"),
    ],
)
def test_what_does_not_fit_together_is_refused(pair, ca, why):
    with pytest.raises(BadInput, match=why):
        check_pair(pair, ca.certificate_pem)


@pytest.mark.parametrize(
    "host",
    ["", "a b", "-a", "a-", "a..b", "é.example", "a" * 64, "a." * 127 + "b", "*", "x/y", "a\n"],
)
def test_what_is_no_host_is_refused(host):
    with pytest.raises(BadInput, match="neither a host name nor an address"):
        make_node_certificate(CA, [host], now_ms=NOW_MS)


def test_a_node_without_a_host_and_a_principal_without_room_are_refused():
    with pytest.raises(BadInput):
        make_node_certificate(CA, [], now_ms=NOW_MS)
    with pytest.raises(BadInput, match="64"):
        make_client_certificate(CA, "x" * 65, now_ms=NOW_MS)


def test_a_long_host_has_room():
    host = ".".join(["a" * 63] * 3)

    assert hosts_of(make_node_certificate(CA, [host], now_ms=NOW_MS).certificate_pem) == [host]


def test_no_key_is_shown():
    assert NODE.key_pem.decode()[40:60] not in repr(NODE)
    assert "hidden" in repr(NODE)


def test_pythons_ssl_reads_them():
    assert ssl.PEM_cert_to_DER_cert(CA.certificate_pem.decode())
