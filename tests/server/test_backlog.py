"""What a connection has sent and no call was given: counted from what its socket says."""

import os
import resource
import socket

from waterclock.model.units import MIB
from waterclock.server.grpc.backlog import (
    Connection,
    Traffic,
    plain,
    resident_bytes,
    sockets,
    traffic_of,
)


def test_what_was_received_and_not_given_is_held():
    connection = Connection("10.0.0.1 1")
    assert connection.held(Traffic(sent=10, received=60 * MIB)) == 60 * MIB

    connection.given += 60 * MIB
    assert connection.held(Traffic(sent=10, received=60 * MIB)) == 0


def test_what_frames_and_windows_cost_is_not_held():
    connection = Connection("10.0.0.1 1")

    assert connection.held(Traffic(sent=1_000 * MIB, received=20 * MIB)) == 0


def test_being_given_more_than_was_sent_lends_nothing_for_later():
    connection = Connection("10.0.0.1 1")
    connection.given += 1_000 * MIB  # it was compressed
    connection.held(Traffic(0, 1 * MIB))

    assert connection.held(Traffic(0, 11 * MIB)) == 10 * MIB


def test_a_socket_is_found_by_whom_it_is_connected_to_and_tells_what_it_received():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        accepted, (host, port) = server.accept()
        with accepted:
            peer = plain(f"ipv4:{host}:{port}")
            client.sendall(bytes(1_000))
            assert len(accepted.recv(1_000, socket.MSG_WAITALL)) == 1_000

            assert sockets()[peer] == accepted.fileno()
            assert traffic_of(accepted.fileno(), peer) == Traffic(sent=0, received=1_000)
            assert traffic_of(accepted.fileno(), "10.0.0.1 1") is None


def test_names_of_peers_are_those_of_sockets():
    assert plain("ipv6:%5B::1%5D:9000") == "::1 9000"
    assert plain("ipv6:[::ffff:10.1.2.3]:9000") == "10.1.2.3 9000"


def test_looking_for_sockets_leaves_no_descriptor_open(tmp_path):
    with (tmp_path / "no-socket").open("wb"):
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            sockets()

        assert len(os.listdir("/proc/self/fd")) == before


def test_without_descriptors_nothing_is_known_and_nothing_fails():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        found, size = sockets(), resident_bytes()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert (found, size) == ({}, 0)
