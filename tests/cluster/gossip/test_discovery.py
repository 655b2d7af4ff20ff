"""Seeds: hosts, addresses and SRV records, looked up anew each time."""

import logging

import pytest
from dns import asyncresolver, rdataclass, rdatatype, resolver
from dns import name as dns_name
from dns.rdtypes.IN.SRV import SRV

from waterclock.cluster.gossip.discovery import (
    Seed,
    Seeds,
    look_up_host,
    look_up_service,
    parse_seed,
)
from waterclock.model.errors import BadConfig


@pytest.mark.parametrize(
    ("text", "seed"),
    [
        ("10.0.0.1:8000", Seed("10.0.0.1", 8_000)),
        ("node-1", Seed("node-1", 7_946)),
        ("[::1]:8000", Seed("::1", 8_000)),
        ("[::1]", Seed("::1", 7_946)),
        ("::1", Seed("::1", 7_946)),
        ("srv:_gossip._udp.example.com", Seed("_gossip._udp.example.com", None)),
    ],
)
def test_a_seed_is_a_host_perhaps_with_a_port_or_a_service(text, seed):
    assert parse_seed(text) == seed


@pytest.mark.parametrize(
    "text", ["", ":1", "node:", "node:x", "node:0", "node:70000", "a b", "srv:", "http://a:1"]
)
def test_what_is_no_seed_is_refused_by_name(text):
    with pytest.raises(BadConfig, match=r"cluster\.bootstrap_nodes"):
        parse_seed(text)


async def test_a_service_is_looked_up_and_then_its_hosts_each_once():
    async def service(name):
        assert name == "_gossip._udp.example.com"
        return [("b", 1), ("a", 2)]

    async def host(name, port):
        return [(f"10.0.0.{ord(name[0]) - ord('a')}", port)]

    seeds = Seeds(["a:2", "srv:_gossip._udp.example.com"], host=host, service=service)

    assert await seeds.addresses() == [("10.0.0.0", 2), ("10.0.0.1", 1)]


async def test_a_seed_that_cannot_be_found_is_left_out_and_logged(caplog):
    async def host(name, port):
        if name == "gone":
            raise OSError("no such host")
        return [("10.0.0.1", port)]

    with caplog.at_level(logging.WARNING):
        assert await Seeds(["gone", "here"], host=host).addresses() == [("10.0.0.1", 7_946)]

    assert "seed_not_found seed=gone reason=no such host" in caplog.text


async def test_a_service_is_asked_of_dns_and_one_that_is_not_there_is_a_seed_not_found(monkeypatch):
    async def resolve(name, kind):
        assert kind == "SRV"
        if name == "gone":
            raise resolver.NXDOMAIN
        target = dns_name.from_text("node-1.example.com.")
        return [SRV(rdataclass.IN, rdatatype.SRV, 1, 1, 8_000, target)]

    monkeypatch.setattr(asyncresolver, "resolve", resolve)

    assert await look_up_service("here") == [("node-1.example.com", 8_000)]
    with pytest.raises(OSError, match="no SRV record of gone"):
        await look_up_service("gone")


async def test_an_address_needs_no_look_up():
    assert await look_up_host("127.0.0.1", 5) == [("127.0.0.1", 5)]
