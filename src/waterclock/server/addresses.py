"""Where a node listens: one clear sentence if it cannot.

Ports are not shared (no SO_REUSEPORT): a second node on a port must fail, or it would silently
get half of the first one's clients. Only the processes of `up --processes` share theirs; the one
that runs them has looked before that nobody else has them.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from waterclock.model.errors import BadConfig


class Addresses(NamedTuple):
    """Where a node is reached, ports as they turned out."""

    host: str
    grpc_port: int
    http_port: int
    is_secure: bool = False
    own_http_port: int = 0
    """HTTP of this process alone, where others share the port for clients; 0: none do."""

    @property
    def alone(self) -> "Addresses":
        """Where this process is reached and no other."""
        return self._replace(http_port=self.own_http_port or self.http_port)

    @property
    def grpc(self) -> str:
        """The address for gRPC clients."""
        return address_of(self.host, self.grpc_port)

    @property
    def http(self) -> str:
        """The address for HTTP clients, as a URL."""
        scheme = "https" if self.is_secure else "http"
        return f"{scheme}://{address_of(self.host, self.http_port)}"


def address_of(host: str, port: int) -> str:
    """Return `host:port`, with the brackets that IPv6 needs."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextmanager
def bind_errors(setting: str, host: str, port: int) -> Iterator[None]:
    """Tell why an address cannot be listened on, and which setting to change."""
    try:
        yield
    except socket.gaierror as error:
        raise BadConfig(
            "server.host", f"{host!r} is no address of ours: {error.strerror}"
        ) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise BadConfig(setting, f"cannot listen on {address_of(host, port)}: {reason}") from error


def check_free(setting: str, host: str, port: int) -> None:
    """Raise BadConfig unless the address can be listened on at this moment.

    gRPC itself tells the reason only in the middle of its own log lines.
    """
    with bind_errors(setting, host, port):
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(address)
