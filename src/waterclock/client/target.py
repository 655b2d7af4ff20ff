"""Where a client connects, and as whom.

A credential says both. What is nearer to the call wins: an address that was given, then the one of
a credential that was given, then what the environment says, then this computer. A token goes only
to a node that shows a certificate of the credential's CA for the name it is called by, so another
address does not lead it astray.

Wherever an address is given there may be several, of nodes of one cluster: with commas between
them, or in a program as a list.
"""

import os
from collections.abc import Sequence
from ipaddress import ip_address
from typing import NamedTuple

from waterclock.client.settings import ADDRESS_VARIABLE, DEFAULT_ADDRESS, DEFAULT_PORT
from waterclock.model.errors import BadInput
from waterclock.security.credential import CREDENTIAL_VARIABLE, PREFIX, Credential

Given = str | Sequence[str]
"""The address of a node, or of several of its cluster: with commas between them, or as a list."""


class Target(NamedTuple):
    """A node, as `host:port` for gRPC, and the credential for it; None: it is asked in the open."""

    address: str
    credential: Credential | None = None
    others: tuple[str, ...] = ()
    """Of nodes that will do as well."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """All that were given."""
        return (self.address, *self.others)

    @property
    def http_address(self) -> str | None:
        """Where the credential says HTTP is, if it is of a node that is asked."""
        credential = self.credential
        if credential is None or credential.grpc_address not in self.addresses:
            return None
        return credential.http_address


def target_of(address: Given | None = None, credential: Credential | str | None = None) -> Target:
    """Return where to connect, and as whom; either of them may be a credential's text.

    Raises BadInput, which shows no secret.
    """
    if isinstance(address, str) and is_credential(address):
        if credential is not None:
            raise BadInput("a credential is given twice: as the address, and as itself")
        address, credential = None, address
    if isinstance(credential, str):
        credential = Credential.read(credential)
    if credential is not None:
        return _target(address or credential.grpc_address, credential)
    address = address or os.environ.get(ADDRESS_VARIABLE)
    if text := os.environ.get(CREDENTIAL_VARIABLE):
        credential = _named(text)
        address = address or credential.grpc_address
    return _target(address or DEFAULT_ADDRESS, credential)


def is_credential(text: str) -> bool:
    """Return whether a text is meant to be a credential, and so must not be shown."""
    return text.strip().startswith(f"{PREFIX}.")


def addresses_of(given: Given) -> tuple[str, ...]:
    """Return the addresses that were given, each once and as it is connected to."""
    named = given.split(",") if isinstance(given, str) else given
    if not all(isinstance(each, str) and each.strip() for each in named):
        raise BadInput("address: one of several is empty: they are as in host1:9000,host2:9000")
    if any(map(is_credential, named)):
        raise BadInput("address: a credential stands among several; give it as the credential")
    return tuple(dict.fromkeys(map(address_of, named)))


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


def host_of(address: str) -> str:
    """Return the host of `host:port`, without the brackets of IPv6."""
    return address.rpartition(":")[0].strip("[]")


def is_own_host(host: str) -> bool:
    """Return whether each machine calls itself so."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _target(given: Given, credential: Credential | None) -> Target:
    first, *others = addresses_of(given)
    return Target(first, credential, tuple(others))


def _named(text: str) -> Credential:
    try:
        return Credential.read(text)
    except BadInput as error:
        raise BadInput(f"{CREDENTIAL_VARIABLE}: {error}") from None
