"""Where to find the first members: hosts, DNS SRV records, tags of a cloud; looked up repeatedly.

    10.0.0.1:7946    node-1    [::1]:7946    srv:_gossip._udp.example.com
    provider=aws tag_key=cluster tag_value=orders    (see `providers`)

Addresses of nodes come and go (pods above all), so a seed is a name and is asked for anew each time
the seeds are needed. A seed that cannot be found is left out and logged: others may be enough.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable
from itertools import chain
from typing import NamedTuple, TypeAlias

from waterclock.cluster.gossip.messages import Address
from waterclock.cluster.gossip.providers import (
    PREFIX,
    CloudSeed,
    find_instances,
    parse_cloud_seed,
)
from waterclock.model.errors import BadConfig

PORT = 7946
CLOUD_S_MAX = 20
"""How long a provider may take, all its pages together: other seeds wait for it."""
_SRV = "srv:"

_log = logging.getLogger(__name__)

LookUpHost: TypeAlias = Callable[[str, int], Awaitable[list[Address]]]
LookUpService: TypeAlias = Callable[[str], Awaitable[list[tuple[str, int]]]]
LookUpCloud: TypeAlias = Callable[[CloudSeed], Awaitable[list[tuple[str, int]]]]


class Seed(NamedTuple):
    """Where a member may be: a host and a port, or a service in DNS (then without a port)."""

    name: str
    port: int | None


def parse_seed(text: str, *, port: int = PORT) -> Seed | CloudSeed:
    """Return a seed; raise BadConfig if the text is none."""
    if text.startswith(PREFIX):
        return parse_cloud_seed(text, port=port)
    if text.startswith(_SRV):
        return Seed(_checked(text.removeprefix(_SRV), text), None)
    host, colon, tail = text.rpartition(":")
    is_address_of_ipv6 = ":" in host and not host.endswith("]")
    if text.endswith("]") or is_address_of_ipv6:
        host, colon = text, ""
    elif not colon:
        host = tail
    if colon:
        if not tail.isascii() or not tail.isdecimal() or not 0 < int(tail[:6]) <= 65_535:
            raise BadConfig("cluster.bootstrap_nodes", f"{text!r} has no port that can be")
        port = int(tail)
    return Seed(_checked(host.removeprefix("[").removesuffix("]"), text), port)


async def look_up_host(name: str, port: int) -> list[Address]:
    """Ask the system for the addresses of a host."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(name, port, type=socket.SOCK_DGRAM)
    return [(str(address[0]), int(address[1])) for *_, address in found]


async def look_up_service(name: str) -> list[tuple[str, int]]:
    """Ask DNS for the hosts and ports of a service; needs the extra `dns`."""
    try:
        from dns import asyncresolver, exception
    except ImportError as error:
        raise BadConfig(
            "cluster.bootstrap_nodes", "a seed srv:… needs: pip install 'waterclock[dns]'"
        ) from error
    try:
        answer = await asyncresolver.resolve(name, "SRV")
    except exception.DNSException as error:
        raise OSError(f"no SRV record of {name}: {error}") from error
    return [(str(record.target).rstrip("."), int(record.port)) for record in answer]


async def look_up_cloud(seed: CloudSeed) -> list[tuple[str, int]]:
    """Ask a provider for the addresses of its instances."""
    try:
        async with asyncio.timeout(CLOUD_S_MAX):
            hosts = await asyncio.to_thread(find_instances, seed)
    except TimeoutError:
        raise OSError(f"{seed.provider} does not answer in {CLOUD_S_MAX} s") from None
    return [(host, seed.port) for host in hosts]


class Seeds:
    """The seeds of one node."""

    def __init__(
        self,
        texts: Iterable[str],
        *,
        host: LookUpHost = look_up_host,
        service: LookUpService = look_up_service,
        cloud: LookUpCloud = look_up_cloud,
    ) -> None:
        self._seeds = [parse_seed(text) for text in texts]
        self._look_up_host = host
        self._look_up_service = service
        self._look_up_cloud = cloud

    async def addresses(self) -> list[Address]:
        """Return where they are now, each once."""
        found = await asyncio.gather(*map(self._addresses_of, self._seeds))
        return list(dict.fromkeys(chain.from_iterable(found)))

    async def _addresses_of(self, seed: Seed | CloudSeed) -> list[Address]:
        found: list[Address] = []
        try:
            for host, port in await self._places_of(seed):
                found += await self._look_up_host(host, port)
        except OSError as error:
            name = seed if isinstance(seed, CloudSeed) else seed.name
            _log.warning("seed_not_found seed=%s reason=%s", name, error)
        return found

    async def _places_of(self, seed: Seed | CloudSeed) -> list[tuple[str, int]]:
        if isinstance(seed, CloudSeed):
            return await self._look_up_cloud(seed)
        if seed.port is None:
            return await self._look_up_service(seed.name)
        return [(seed.name, seed.port)]


def _checked(name: str, text: str) -> str:
    if not name or any(char.isspace() or char in "/[]" for char in name):
        raise BadConfig("cluster.bootstrap_nodes", f"{text!r} is no host")
    return name
