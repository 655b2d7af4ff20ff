"""Where a client connects, and as whom.

A credential says both. What is nearer to the call wins: an address that was given, then the one of
a credential that was given, then what the environment says, then this computer. A token goes only
to a node that shows a certificate of the credential's CA for the name it is called by, so another
address does not lead it astray.
"""

import os
from typing import NamedTuple

from waterclock.client.settings import ADDRESS_VARIABLE, DEFAULT_ADDRESS, DEFAULT_PORT
from waterclock.model.errors import BadInput
from waterclock.security.credential import CREDENTIAL_VARIABLE, PREFIX, Credential


class Target(NamedTuple):
    """A node, as `host:port` for gRPC, and the credential for it; None: it is asked in the open."""

    address: str
    credential: Credential | None = None

    @property
    def http_address(self) -> str | None:
        """Where the credential says HTTP is, if it is of the node that is asked."""
        credential = self.credential
        if credential is None or credential.grpc_address != self.address:
            return None
        return credential.http_address


def target_of(address: str | None = None, credential: Credential | str | None = None) -> Target:
    """Return where to connect, and as whom; either of them may be a credential's text.

    Raises BadInput, which shows no secret.
    """
    if address is not None and is_credential(address):
        if credential is not None:
            raise BadInput("a credential is given twice: as the address, and as itself")
        address, credential = None, address
    if isinstance(credential, str):
        credential = Credential.read(credential)
    if credential is not None:
        return Target(address_of(address or credential.grpc_address), credential)
    address = address or os.environ.get(ADDRESS_VARIABLE)
    if text := os.environ.get(CREDENTIAL_VARIABLE):
        credential = _named(text)
        address = address or credential.grpc_address
    return Target(address_of(address), credential)


def is_credential(text: str) -> bool:
    """Return whether a text is meant to be a credential, and so must not be shown."""
    return text.strip().startswith(f"{PREFIX}.")


def address_of(address: str | None) -> str:
    """Return where to connect: as given, else by WATERCLOCK_ADDRESS, else on this computer."""
    given = address or os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS
    scheme, slashes, found = given.strip().rpartition("://")
    found = found.removesuffix("/")
    host, colon, port = found.rpartition(":")
    if not colon or (host.startswith("[") is not host.endswith("]")) or port.endswith("]"):
        host, port = found, str(DEFAULT_PORT)
    if slashes and scheme.lower() != "grpc":
        # Its port is likely that of HTTP, so taking it for gRPC's would only fail later.
        raise BadInput(
            f"address {given!r} is not of the form host:port: clients speak gRPC, not "
            f"{scheme.upper()}. Type {host}:{DEFAULT_PORT}, or the port the node has for gRPC"
        )
    if not host or "/" in host or " " in host or not port.isdecimal():
        raise BadInput(f"address {given!r} is not of the form host:port, as in {DEFAULT_ADDRESS}")
    if not 0 < int(port) < 65_536:
        raise BadInput(
            f"address {given!r} is not of the form host:port: a port is a number from 1 to 65535"
        )
    return f"{host}:{port}"


def _named(text: str) -> Credential:
    try:
        return Credential.read(text)
    except BadInput as error:
        raise BadInput(f"{CREDENTIAL_VARIABLE}: {error}") from None
