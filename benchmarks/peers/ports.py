"""Free ports of loopback, for servers that are told where to listen.

Those that the system gives to connections, and to who asks for any, are not among them: one of them
would take a port before its server does, or while that is away. Whoever asks gets the next that
nobody has, from a place that differs from run to run; so what was given is not given again before
its server listens. Workers of pytest-xdist, which ask at the same time, have a part each.
"""

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from itertools import cycle
from random import SystemRandom

PORTS = range(10_240, 32_768)
HOST = "127.0.0.1"


def part_of(ports: range, environ: Mapping[str, str]) -> range:
    """Return those that are this process's: all, if it is no worker."""
    count = int(environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    # One that takes the place of a worker that died has a higher number.
    number = int(environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % count
    size = len(ports) // count
    return ports[number * size : (number + 1) * size]


def in_turn(ports: range, first: int) -> Iterator[int]:
    """Return each, from the one at an index on, again and again; threads may share it."""
    return cycle([*ports[first:], *ports[:first]])


def free_in_a_row(count: int, turns: Iterator[int] | None = None) -> int:
    """Return the first of some ports, one after the other, that nobody has for streams or packets
    now."""
    turns = turns or _turns
    while True:
        row = [next(turns) for _ in range(count)]
        if row[-1] - row[0] == count - 1 and _are_free(row):
            return row[0]


def _are_free(ports: list[int]) -> bool:
    with ExitStack() as held:
        try:
            for port in ports:
                for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                    held.enter_context(socket.socket(type=kind)).bind((HOST, port))
        except OSError:
            return False
        return True


_part = part_of(PORTS, os.environ)
_turns = in_turn(_part, SystemRandom().randrange(len(_part)))
