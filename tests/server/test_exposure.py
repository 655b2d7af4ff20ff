"""A node that asks nobody for a credential is reached by its own machine only."""

import logging

import pytest

from tests.server.served import config_in
from waterclock.model.errors import BadConfig
from waterclock.model.sections import ServerConfig
from waterclock.security.folder import folder_of
from waterclock.server.exposure import check_exposure, is_loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost", "nowhere.invalid"])
def test_loopback_needs_nothing(tmp_path, host):
    assert is_loopback(host)
    check_exposure(config_in(tmp_path, server=ServerConfig(host=host)))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "2001:db8::1"])
def test_another_address_is_refused_with_both_ways_out(tmp_path, host):
    with pytest.raises(BadConfig, match=r"secure init --data .* or start it with --insecure"):
        check_exposure(config_in(tmp_path, server=ServerConfig(host=host)))


def test_an_insecure_node_says_so_at_each_start(tmp_path, caplog):
    config = config_in(tmp_path, server=ServerConfig(host="0.0.0.0", insecure=True))
    for _ in range(2):
        check_exposure(config)

    said = "insecure host=0.0.0.0: whoever reaches this node can read, publish and delete"
    assert [(each.levelno, each.message) for each in caplog.records] == [
        (logging.WARNING, said)
    ] * 2


def test_a_secured_node_may_listen_anywhere(tmp_path, caplog):
    config = config_in(tmp_path / "data", server=ServerConfig(host="0.0.0.0"))
    folder_of(config).make(grpc_port=9_000, http_port=8_080, now_ms=1)
    check_exposure(config)
    assert not caplog.records

    check_exposure(config_in(tmp_path / "data", server=ServerConfig(host="0.0.0.0", insecure=True)))
    assert "insecure_ignored" in caplog.text
