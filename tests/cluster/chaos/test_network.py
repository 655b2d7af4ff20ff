"""The filter of a node drops what it should; the network is there, cut and healed, and goes."""

import os
import subprocess

import pytest

from tests.cluster.chaos.network import (
    AT_LEAST,
    DESTINATION,
    DROP,
    EQUAL,
    ETHERTYPE,
    IPV4,
    LOAD_HALF,
    LOAD_WORD,
    PASS,
    RANDOM,
    RETURN,
    Namespaces,
    NoNamespaces,
    bytecode,
    program,
)

CLIENT = "10.0.0.254"
SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], 9), timeout=0.2): pass
"""


def verdict(instructions, target, *, chance=0, kind=IPV4):
    """Run a filter on a frame, as the kernel does."""
    loaded = {ETHERTYPE: kind, RANDOM: chance}
    loaded[DESTINATION] = int.from_bytes(bytes(map(int, target.split("."))))
    place = value = 0
    while True:
        operation, if_so, if_not, constant = instructions[place]
        place += 1
        match operation:
            case _ if operation == RETURN:
                return constant
            case _ if operation in (LOAD_HALF, LOAD_WORD):
                value = loaded[constant]
            case _ if operation == EQUAL:
                place += if_so if value == constant else if_not
            case _ if operation == AT_LEAST:
                place += if_so if value >= constant else if_not


@pytest.mark.parametrize("cut_off", [[], ["10.0.0.2"], ["10.0.0.1", "10.0.0.2", "10.0.0.3"]])
def test_who_is_cut_off_gets_nothing_and_others_all(cut_off):
    instructions = program(cut_off, CLIENT, 0.0)

    targets = [f"10.0.0.{number}" for number in (1, 2, 3)]
    dropped = [each for each in targets if verdict(instructions, each) == DROP]
    assert dropped == cut_off
    assert verdict(instructions, CLIENT) == PASS
    assert verdict(instructions, targets[0], kind=0x0806) == PASS


def test_a_share_is_lost_but_none_of_what_is_for_clients():
    instructions = program(["10.0.0.2"], CLIENT, 0.25)

    quarter = 0xFFFFFFFF // 4
    assert verdict(instructions, "10.0.0.1", chance=quarter - 9) == DROP
    assert verdict(instructions, "10.0.0.1", chance=quarter + 9) == PASS
    assert verdict(instructions, "10.0.0.2", chance=quarter + 9) == DROP
    assert verdict(instructions, CLIENT, chance=0) == PASS


def test_a_filter_is_written_as_tc_takes_it():
    assert bytecode([(RETURN, 0, 0, DROP), (RETURN, 0, 0, PASS)]) == "2,6 0 0 2,6 0 0 4294967295"


def reaches(network, index, host):
    """Say whether a node gets any answer from a host, be it that nobody listens."""
    words = [*network.command(index), "python3", "-c", SEND, host]
    run = subprocess.run(words, capture_output=True, text=True, check=False)
    return "ConnectionRefusedError" in run.stderr


def test_nodes_are_cut_off_and_meet_again_and_nothing_is_left():
    try:
        with Namespaces(2) as network:
            first, second = network.hosts
            assert reaches(network, 0, second)
            network.harm(0, cut_off=[1])
            assert not reaches(network, 0, second)
            assert not reaches(network, 1, first)  # its answers are dropped
            assert reaches(network, 0, network.client)
            network.harm(0)
            assert reaches(network, 0, second)
    except (NoNamespaces, FileNotFoundError) as none:
        pytest.skip(f"no networks here: {none}")
    left = subprocess.run(["ip", "-br", "link"], capture_output=True, text=True, check=True)
    assert f"wc{os.getpid()}" not in left.stdout
