"""Certificates: a CA of our own, and what it signs for nodes and clients (RFC 5280).

Keys are ECDSA P-256: BoringSSL, which gRPC brings, has no certificates of Ed25519. A node's
certificate is for servers and for clients, so that nodes can show it to each other; its subject
cannot be the name of a principal. A client's has its principal as the common name.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING, NamedTuple

from waterclock.model.errors import BadInput

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

CA_DAYS = 3_650
LEAF_DAYS = 825
"""What clients of some vendors take at most, also of a CA that is not public."""
HOST_CHARS_MAX = 253
NODE_PREFIX = "node:"
"""How the common name of a node begins. No principal has a colon in its name."""
_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST = re.compile(rf"(?:\*\.)?{_LABEL}(?:\.{_LABEL})*", re.ASCII)
_CLOCKS_DIFFER = timedelta(hours=1)
"""How long before now a certificate is valid: machines do not agree on what time it is."""


class KeyPair(NamedTuple):
    """A certificate, with those above it, and its key, both as PEM."""

    certificate_pem: bytes
    key_pem: bytes

    def __repr__(self) -> str:
        return f"<KeyPair certificate of {len(self.certificate_pem)} bytes, key hidden>"


def make_ca(name: str, *, now_ms: int) -> KeyPair:
    """Return a new CA; it can sign certificates of nodes and clients, and no other CA."""
    from cryptography import x509

    key = _new_key()
    subject = _subject(f"{name} CA")
    builder = (
        _builder(subject, subject, key, now_ms=now_ms, days=CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(is_ca=True), critical=True)
    )
    return KeyPair(_signed(builder, key), _key_pem(key))


def make_node_certificate(ca: KeyPair, hosts: Sequence[str], *, now_ms: int) -> KeyPair:
    """Return a certificate for a node that is reached by these names and addresses.

    Raises BadInput for what is neither.
    """
    from cryptography import x509

    if not hosts:
        raise BadInput("a node needs a host name or an address")
    names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
    subject = f"{NODE_PREFIX}{hosts[0]}"[:64]  # RFC 5280 has no more room
    return _leaf(ca, subject, names, now_ms=now_ms)


def make_client_certificate(ca: KeyPair, principal: str, *, now_ms: int) -> KeyPair:
    """Return a certificate with which a client is known as a principal."""
    if len(principal) > 64:
        raise BadInput(f"{principal[:20]}… has more than 64 characters: no certificate has room")
    return _leaf(ca, principal, None, now_ms=now_ms)


def hosts_of(certificate_pem: bytes) -> list[str]:
    """Return the names and addresses that a node's certificate is for."""
    from cryptography import x509

    certificate = _loaded(certificate_pem)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]


def expires_ms_of(certificate_pem: bytes) -> int:
    """Return when a certificate ends."""
    return int(_loaded(certificate_pem).not_valid_after_utc.timestamp() * 1_000)


def check_pair(pair: KeyPair, ca_pem: bytes) -> None:
    """Raise BadInput unless the key is the certificate's, and the CA has signed that."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    certificate = _loaded(pair.certificate_pem)
    try:
        key = load_pem_private_key(pair.key_pem, password=None)
        certificate.verify_directly_issued_by(_loaded(ca_pem))
    except InvalidSignature:
        raise BadInput("the certificate is not signed by the CA") from None
    except (ValueError, TypeError):
        raise BadInput("the certificate, its key or its CA cannot be read") from None
    if key.public_key() != certificate.public_key():
        raise BadInput("the key is not the certificate's")


def _leaf(
    ca: KeyPair, subject: str, names: "x509.SubjectAlternativeName | None", *, now_ms: int
) -> KeyPair:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from cryptography.x509.oid import ExtendedKeyUsageOID as Purpose

    issuer = _loaded(ca.certificate_pem)
    ca_key = load_pem_private_key(ca.key_pem, password=None)
    assert isinstance(ca_key, EllipticCurvePrivateKey)
    key = _new_key()
    purposes = (
        [Purpose.CLIENT_AUTH] if names is None else [Purpose.CLIENT_AUTH, Purpose.SERVER_AUTH]
    )
    builder = (
        _builder(_subject(subject), issuer.subject, key, now_ms=now_ms, days=LEAF_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(is_ca=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
    )
    if names is not None:
        builder = builder.add_extension(names, critical=False)
    return KeyPair(_signed(builder, ca_key) + ca.certificate_pem, _key_pem(key))


def _builder(
    subject: "x509.Name",
    issuer: "x509.Name",
    key: "EllipticCurvePrivateKey",
    *,
    now_ms: int,
    days: int,
) -> "x509.CertificateBuilder":
    from cryptography import x509

    now = datetime.fromtimestamp(now_ms // 1_000, UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, is_ca: bool) -> "x509.KeyUsage":
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not is_ca, key_cert_sign=is_ca, crl_sign=is_ca, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
        decipher_only=False,
    )  # fmt: skip


def _subject(name: str) -> "x509.Name":
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def is_host(host: str) -> bool:
    """Say if a certificate can be for a host of this name."""
    return len(host) <= HOST_CHARS_MAX and _HOST.fullmatch(host) is not None


def _general_name(host: str) -> "x509.GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ip_address(host.strip("[]")))
    except ValueError:
        pass
    if not is_host(host):
        raise BadInput(f"host {host[:50]!a} is neither a host name nor an address")
    return x509.DNSName(host)


def _new_key() -> "EllipticCurvePrivateKey":
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _signed(builder: "x509.CertificateBuilder", key: "EllipticCurvePrivateKey") -> bytes:
    from cryptography.hazmat.primitives import hashes, serialization

    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _key_pem(key: "EllipticCurvePrivateKey") -> bytes:
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _loaded(certificate_pem: bytes) -> "x509.Certificate":
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(certificate_pem)
    except ValueError:
        raise BadInput("a certificate cannot be read") from None
