"""Servers that are started at the same time are told different ports."""

import socket

import pytest

from benchmarks.peers.ports import HOST, PORTS, free_in_a_row, in_turn, part_of


def of_worker(name: str, count: int) -> range:
    return part_of(PORTS, {"PYTEST_XDIST_WORKER": name, "PYTEST_XDIST_WORKER_COUNT": str(count)})


def test_each_worker_has_ports_of_its_own():
    parts = [of_worker(f"gw{number}", 3) for number in range(3)]

    assert sum(map(len, parts)) == len(set().union(*parts)) > len(PORTS) - 3
    assert set().union(*parts) <= set(PORTS)
    assert of_worker("gw4", 3) == parts[1]
    assert part_of(PORTS, {}) == PORTS


def test_what_was_given_is_not_given_again_before_all_others_were():
    turns = in_turn(range(7), 5)

    assert [next(turns) for _ in range(9)] == [5, 6, 0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_a_row_has_no_port_that_somebody_has_or_may_have_in_a_moment(kind):
    first = free_in_a_row(6)
    with socket.socket(type=kind) as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((HOST, first + 1))  # and does not listen yet
        turns = in_turn(range(first, first + 6), 0)

        assert free_in_a_row(2, turns) == first + 2


def test_a_row_does_not_begin_anew_in_its_midst():
    first = free_in_a_row(3)

    assert free_in_a_row(2, in_turn(range(first, first + 3), 2)) == first + 1
