"""A node that asks for credentials and speaks no TLS: `python -m benchmarks.node.plaintext up …`.

No node that anyone runs is like this. It tells what tokens cost from what TLS costs: the listeners
of a secure node are given plain ports, and all else is as it is.
"""

# First: it sees to the variables that gRPC reads when it is loaded.
from waterclock.server.http import server as http_server  # isort: skip

from unittest.mock import patch

from grpc.aio import Server

from waterclock.cli import main


def _add_plain_port(server: Server, address: str, _: object) -> int:
    return server.add_insecure_port(address)


if __name__ == "__main__":
    with (
        patch("grpc.aio._server.Server.add_secure_port", _add_plain_port),
        patch.object(http_server, "tls_options", return_value={}),
    ):
        main()
