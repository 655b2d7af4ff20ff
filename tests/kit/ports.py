"""Ports that are free, one after the other, as nodes of a local cluster have them."""

import random
import socket
from contextlib import ExitStack

PORTS = (10_240, 32_000)
"""Not those that the system gives to connections and to who asks for any: one of them would take
a port of the row before its node does."""


def free_in_a_row(count: int) -> int:
    """Return the first of some ports that nobody listens on now."""
    while True:
        first = random.SystemRandom().randrange(*PORTS)
        with ExitStack() as held:
            try:
                for port in range(first, first + count):
                    held.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            return first


def free_rows(rows: int, count: int) -> list[int]:
    """Return the first port of each of some rows, which have none in common."""
    first = free_in_a_row(rows * count)
    return [first + row * count for row in range(rows)]
