"""Nodes of a local cluster: each has its name, folder and ports, and knows the others."""

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.kit.ports import free_in_a_row, free_rows
from waterclock.cli.commands.cluster import plan as planning
from waterclock.cli.commands.cluster.plan import LOOPBACK, PORT_MAX, command, free_ports, plan
from waterclock.model.config import Config, load_config
from waterclock.model.errors import BadConfig


def config_of(**flags: object) -> Config:
    named = {name.replace("__", "."): value for name, value in flags.items()}
    return load_config(yaml_text="", environ={}, flags=named)


def test_ports_of_one_kind_follow_each_other_and_folders_are_apart(tmp_path, held):
    grpc_port, http_port, gossip_port = free_rows(3, 3)
    config = config_of(
        node__data_folder=str(tmp_path),
        cluster__grpc_port=grpc_port,
        cluster__http_port=http_port,
        cluster__gossip_port=gossip_port,
    )

    nodes = plan(config, 3, held)

    assert [node.name for node in nodes] == ["node-1", "node-2", "node-3"]
    assert [node.data for node in nodes] == [tmp_path / f"node-{n}" for n in (1, 2, 3)]
    assert [node.grpc_port - grpc_port for node in nodes] == [0, 1, 2]
    assert [node.http_port - http_port for node in nodes] == [0, 1, 2]
    assert [node.gossip for node in nodes] == [f"127.0.0.1:{gossip_port + n}" for n in range(3)]


def test_free_ports_are_taken_if_asked_for_and_those_of_gossip_are_known_beforehand(held):
    config = config_of(cluster__grpc_port=0, cluster__http_port=0, cluster__gossip_port=0)

    nodes = plan(config, 9, held)

    assert {(node.grpc_port, node.http_port) for node in nodes} == {(0, 0)}
    assert len({node.gossip for node in nodes}) == 9
    assert not any(node.gossip.endswith(":0") for node in nodes)


def test_ports_that_two_nodes_would_have_are_told(held):
    first = free_in_a_row(4)
    config = config_of(
        cluster__grpc_port=first, cluster__http_port=0, cluster__gossip_port=first + 1
    )

    with pytest.raises(
        BadConfig, match=rf"gossip_port: would be {first + 1} at one node, as clust"
    ):
        plan(config, 2, held)


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_a_port_that_is_taken_is_told_before_anything_is_started(kind, held):
    first = free_in_a_row(3)
    config = config_of(cluster__grpc_port=0, cluster__http_port=0, cluster__gossip_port=first)
    with socket.socket(socket.AF_INET, kind) as taken:
        taken.bind(("127.0.0.1", first + 1))
        if kind is socket.SOCK_STREAM:
            taken.listen()
        with pytest.raises(
            BadConfig, match=rf"gossip_port: cannot listen on 127.0.0.1:{first + 1}"
        ):
            plan(config, 3, held)


def test_ports_that_do_not_exist_are_refused(held):
    with pytest.raises(BadConfig, match=r"cluster.http_port: 3 nodes would need ports up to 65537"):
        plan(config_of(cluster__http_port=65_535, cluster__gossip_port=0), 3, held)


def test_a_node_is_started_with_what_was_typed_and_then_with_what_is_its_own(held):
    config = config_of(cluster__grpc_port=0, cluster__http_port=0, cluster__gossip_port=0)
    nodes = plan(config, 2, held)

    words = command(nodes[1], nodes, ["--verbose", "--set", "node.name=x"], Path("/keys"))

    settings = [words[at + 1] for at, word in enumerate(words) if word == "--set"]
    both = f"{nodes[0].gossip},{nodes[1].gossip}"
    assert settings.index("node.name=x") < settings.index("node.name=node-2")
    assert f"cluster.bootstrap_nodes={both}" in settings
    assert "security.folder=/keys" in settings
    assert words[words.index("--data") + 1].endswith("waterclock-data/node-2")
    assert "--verbose" in words


def bound(port: int, *, is_reused: bool) -> socket.socket:
    """Return a socket that has the port."""
    its = socket.socket()
    its.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(is_reused))
    try:
        its.bind((LOOPBACK, port))
    except OSError:
        its.close()
        raise
    return its


def test_a_port_that_was_drawn_is_a_nodes_and_nobody_elses_until_the_command_ends():
    with ExitStack() as held:
        (port,) = free_ports(LOOPBACK, 1, held)
        with pytest.raises(OSError, match="in use"):
            bound(port, is_reused=False)
        for _ in range(2):  # a node that is away finds it again
            with bound(port, is_reused=True) as node:
                node.listen()
            with pytest.raises(OSError, match="in use"):
                bound(port, is_reused=False)

    with bound(port, is_reused=False) as other:
        other.listen()


def test_a_port_that_is_held_is_not_drawn_again(held, monkeypatch):
    first = free_in_a_row(3)
    monkeypatch.setattr(planning, "_drawn_from", lambda: range(first, first + 3))

    drawn = [*free_ports(LOOPBACK, 2, held), *free_ports(LOOPBACK, 1, held)]

    assert sorted(drawn) == [first, first + 1, first + 2]


@pytest.mark.parametrize(
    ("given", "drawn"),
    [
        ("32768\t60999\n", range(10_240, 32_768)),
        ("10240\t60999\n", range(61_000, PORT_MAX + 1)),
        ("1024\t60999\n", range(61_000, PORT_MAX + 1)),
        ("1024\t65535\n", range(10_240, PORT_MAX + 1)),  # there are no others
        ("nothing\n", range(10_240, 32_768)),
    ],
)
def test_ports_are_drawn_from_those_the_system_gives_to_no_connection(
    tmp_path, monkeypatch, given, drawn
):
    monkeypatch.setattr(planning, "_GIVEN_PORTS", tmp_path / "range")
    (tmp_path / "range").write_text(given)

    assert planning._drawn_from() == drawn
