"""Calling a node that is not there says what to do; interrupting a call ends it quietly."""

import signal
import socket
import subprocess
import sys

import pytest

from waterclock.cli.connection import call
from waterclock.client.errors import NotConnected
from waterclock.client.streams.http_request import ConnectionBroken
from waterclock.model.errors import BadInput, Unreachable


@pytest.fixture
def nobody():
    """Return an address at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    return address


def test_a_node_that_is_not_there_is_told_in_one_line(waterclock, nobody):
    result = waterclock("topics", "--address", nobody)

    assert result.exit_code == 2
    assert result.stderr == (
        f"error: no node answers at {nobody}: start one with `waterclock up`, or name another with"
        " --address or WATERCLOCK_ADDRESS\n"
    )


def test_the_address_may_come_from_the_environment(waterclock, node, nobody, monkeypatch):
    monkeypatch.setenv("WATERCLOCK_ADDRESS", nobody)

    assert nobody in waterclock("topics").stderr
    assert waterclock("topics", "--address", node.address).exit_code == 0


def test_of_several_addresses_one_that_answers_is_enough(waterclock, node, nobody, monkeypatch):
    assert waterclock("topics", "--address", f"{nobody},{node.address}").exit_code == 0
    monkeypatch.setenv("WATERCLOCK_ADDRESS", f"{nobody},{node.address}")
    assert waterclock("topics").exit_code == 0


def test_if_none_of_several_answers_all_are_told(waterclock, nobody):
    result = waterclock("topics", "--address", f"{nobody},localhost:1")

    assert f"no node answers at {nobody}, localhost:1: start one" in result.stderr


def test_an_address_that_is_none_is_refused(waterclock):
    result = waterclock("topics", "--address", "here:there")

    assert result.exit_code == 2
    assert "is not of the form host:port" in result.stderr


def test_the_port_of_http_is_told_and_what_to_type(waterclock, node):
    host, _, port = node.shown["http_address"].removeprefix("http://").rpartition(":")

    bare = waterclock("topics", "--address", f"{host}:{port}")
    whole = waterclock("topics", "--address", node.shown["http_address"])

    assert (bare.exit_code, whole.exit_code) == (2, 2)
    assert f"{host}:{port} speaks HTTP, and clients need gRPC" in bare.stderr
    assert f"Type {host}:9000" in whole.stderr


def test_an_interrupted_call_ends_quietly(node, topic):
    # Made before: of the two below, the one that comes first would say that it made the topic.
    call(node.address, lambda client: client.topics.create(topic))
    command = [sys.executable, "-m", "waterclock", "publish", topic, "-", "--address", node.address]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        process.stdin.write("one\n")
        process.stdin.flush()
        watch = [sys.executable, "-m", "waterclock", "subscribe", topic, "-n", "1", "-g", "g"]
        subprocess.run([*watch, "--address", node.address], check=True, capture_output=True)
        process.send_signal(signal.SIGINT)
        said = (process.stdout.read(), process.stderr.read())  # type: ignore[union-attr]

    assert (process.returncode, said) == (130, ("", ""))


def test_of_several_problems_at_once_one_of_ours_is_told(node):
    async def work(client):
        ours = ExceptionGroup("below", [BadInput("the value is missing")])
        raise ExceptionGroup("several", [ValueError("not ours"), ours])

    with pytest.raises(BadInput, match="the value is missing"):
        call(node.address, work)


def test_a_connection_that_is_lost_on_the_way_is_told_apart_from_a_node_that_is_not_there(node):
    async def lose(client):
        raise ConnectionBroken("what was asked may have happened")

    async def fail_to_connect(client):
        raise NotConnected("nobody there")

    with pytest.raises(Unreachable, match="may have happened"):
        call(node.address, lose)
    with pytest.raises(Unreachable, match="no node answers"):
        call(node.address, fail_to_connect)
