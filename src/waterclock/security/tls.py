"""TLS 1.3 and nothing older, for servers and clients that use Python's `ssl`.

A client trusts the one CA of its credential and checks the host's name. A server can ask clients
for a certificate of the same CA: who shows none is known by a token, or not at all.
"""

import ssl
from pathlib import Path

from waterclock.model.errors import BadInput


def server_context(certificate: Path, key: Path, ca: Path | None = None) -> ssl.SSLContext:
    """Return the context of a server; with a CA, clients may show certificates that it signed.

    Raises BadInput if the files are not a certificate and its key.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    show(context, certificate, key)
    if ca is not None:
        context.load_verify_locations(cafile=ca)
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def client_context(
    ca_pem: bytes, certificate: Path | None = None, key: Path | None = None
) -> ssl.SSLContext:
    """Return the context of a client that trusts one CA, and perhaps shows a certificate.

    Raises BadInput if they are none.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_verify_locations(cadata=ca_pem.decode("ascii"))
    except (ssl.SSLError, UnicodeDecodeError, ValueError):
        raise BadInput("the CA of the credential is not a certificate") from None
    if certificate is not None and key is not None:
        show(context, certificate, key)
    return context


def common_name_of(certificate: object) -> str | None:
    """Return the common name of what `SSLSocket.getpeercert()` answers, None if there is none."""
    subject = certificate.get("subject", ()) if isinstance(certificate, dict) else ()
    names = [value for part in subject for key, value in part if key == "commonName"]
    return names[0] if len(names) == 1 else None


def show(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Let a context show a certificate; raise BadInput if the files are not one and its key."""
    try:
        # With a password, OpenSSL does not stop to ask for one.
        context.load_cert_chain(certificate, key, password="")
    except OSError as error:
        is_foreign = isinstance(error, ssl.SSLError)
        reason = "are not a certificate and its key" if is_foreign else error.strerror
        raise BadInput(f"certificate {certificate} and key {key}: {reason}") from None
