"""Where a node listens, and why it cannot."""

import socket

import pytest

from waterclock.model.errors import BadConfig
from waterclock.server.addresses import Addresses, address_of, check_free


def test_addresses_are_written_as_clients_take_them():
    assert address_of("127.0.0.1", 9000) == "127.0.0.1:9000"
    assert address_of("::1", 9000) == "[::1]:9000"
    assert Addresses("::1", 9000, 8080).grpc == "[::1]:9000"
    assert Addresses("localhost", 9000, 8080).http == "http://localhost:8080"


def test_a_free_port_passes_and_a_taken_one_is_named():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(BadConfig) as raised:
            check_free("cluster.grpc_port", "127.0.0.1", port)

    check_free("cluster.grpc_port", "127.0.0.1", port)
    assert raised.value.field == "cluster.grpc_port"
    assert f"cannot listen on 127.0.0.1:{port}" in str(raised.value)


def test_an_address_of_another_machine_is_refused():
    with pytest.raises(BadConfig, match=r"cannot listen on 192\.0\.2\.1:9000"):
        check_free("cluster.grpc_port", "192.0.2.1", 9000)
