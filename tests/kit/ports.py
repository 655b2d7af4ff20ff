"""Ports that are free, one after the other, as nodes of a local cluster have them."""

import socket
from contextlib import ExitStack


def free_in_a_row(count: int) -> int:
    """Return the first of some ports that nobody listens on now."""
    while True:
        with ExitStack() as held:
            first = held.enter_context(socket.create_server(("127.0.0.1", 0)))
            port = int(first.getsockname()[1])
            try:
                for more in range(1, count):
                    held.enter_context(socket.create_server(("127.0.0.1", port + more)))
            except (OSError, OverflowError):
                continue
            return port
