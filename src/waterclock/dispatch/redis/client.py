"""Redis, whichever server it is today: one, a master among several, or a cluster.

Give it one address, or several. If the first that answers is a node of a cluster, keys are sent to
the masters of their slots, and redirections (MOVED, ASK) are followed. Otherwise the addresses are
of one master and its replicas, and the one that says it is the master is used; after a failover the
others are asked who it is now. Two that both say so is a matter for the operator who promoted one
of them: the first in the list is taken.

A command is sent once. If the connection breaks the caller hears `RedisAway`, and the next command
opens a new one.
"""

import asyncio
import ssl
from collections.abc import Sequence
from functools import partial

from waterclock.dispatch.redis.keys import SLOTS, slot_of
from waterclock.dispatch.redis.link import (
    SILENCE_S_MAX,
    RedisAddress,
    RedisAway,
    RedisLink,
    RedisRefused,
    Reply,
    Word,
    connect,
)

REDIRECTS_MAX = 5
NOT_NOW = frozenset(
    {"BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "NOREPLICAS", "READONLY", "TRYAGAIN"}
)
"""Errors of a server that is not, or not yet, the one to ask. The command was not run."""

HostPort = tuple[str, int]


class RedisClient:
    """Connections to all the servers that are needed, each opened when it first is."""

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        silence_s_max: float = SILENCE_S_MAX,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._addresses = [RedisAddress.parse(each) for each in addresses]
        assert self._addresses
        self._connect = partial(connect, silence_s_max=silence_s_max, tls=tls)
        self._links: dict[HostPort, RedisLink] = {}
        self._slots: dict[int, HostPort] | None = None
        """Which server has which slot; None: not a cluster, or not asked yet."""
        self._master: RedisLink | None = None
        self._opening = asyncio.Lock()
        self.is_cluster = False

    def __repr__(self) -> str:
        where = ", ".join(map(str, self._addresses))
        return f"<RedisClient of {'cluster ' if self.is_cluster else ''}{where}>"

    async def call(self, key: str, *args: Word) -> Reply:
        """Run a command at the server that has the key."""
        return (await self.run(key, args))[0]

    async def run(self, key: str, *commands: Sequence[Word]) -> list[Reply]:
        """Run commands in order on one connection, that of the server that has the key. The first
        of them decides about redirections; if it is refused, the others are of no consequence."""
        link = await self.link_for(key)
        is_asking = False
        for _ in range(REDIRECTS_MAX):
            futures = []
            for args in commands:
                if is_asking:  # it holds for one command
                    link.call("ASKING").add_done_callback(_read)
                futures.append(link.call(*args))
            answers = await asyncio.gather(*futures, return_exceptions=True)
            refused = answers[0]
            kind = refused.kind if isinstance(refused, RedisRefused) else ""
            if kind not in NOT_NOW and kind not in ("MOVED", "ASK"):
                for answer in answers:
                    if isinstance(answer, BaseException):
                        raise answer
                return answers
            if kind in NOT_NOW:
                self._give_up(link)
                raise RedisAway(f"Redis at {link.address} is not ready: {refused}")
            is_asking = kind == "ASK"
            # Where it says, not where somebody thinks who may have heard of it later.
            place = _place(str(refused).rpartition(" ")[2], link.address)
            async with self._opening:
                link = await self._link(place)
            if kind == "MOVED":
                self._slots = None
        self._slots = None
        raise RedisAway(f"the servers of the cluster do not agree where {key!r} is")

    async def link_for(self, key: str) -> RedisLink:
        """Return the connection to the server that has the key."""
        if self._slots is not None:
            link = self._links.get(self._slots.get(slot_of(key), ("", 0)))
            if link is not None and link.is_open:
                return link
        elif self._master is not None and self._master.is_open:
            return self._master
        async with self._opening:
            return await self._found(key)

    async def separate_link(self, key: str) -> RedisLink:
        """Open another connection to that server, for subscriptions or commands that wait."""
        return await self._connect((await self.link_for(key)).address)

    def close(self) -> None:
        for link in (*self._links.values(), *([self._master] if self._master else [])):
            link.close()
        self._links.clear()
        self._master, self._slots = None, None

    def _give_up(self, link: RedisLink) -> None:
        link.close()
        self._slots = None

    async def _found(self, key: str) -> RedisLink:
        if self._slots is None and (self._master is None or not self._master.is_open):
            await self._find_servers()
        if self._slots is None:
            assert self._master is not None
            return self._master
        place = self._slots.get(slot_of(key))
        if place is None:
            self._slots = None
            raise RedisAway(f"no server of the cluster has slot {slot_of(key)}")
        try:
            return await self._link(place)
        except RedisAway:
            self._slots = None  # it may have a successor by now
            raise

    async def _link(self, place: HostPort) -> RedisLink:
        link = self._links.get(place)
        if link is None or not link.is_open:
            address = self._addresses[0].at(*place)
            link = self._links[place] = await self._connect(address)
        return link

    async def _find_servers(self) -> None:
        """Ask each address who it is, until one is the master or knows the cluster."""
        known = [link.address for link in self._links.values()]
        problems: list[str] = []
        for address in dict.fromkeys([*self._addresses, *known]):
            try:
                link = await self._connect(address)
            except RedisAway as away:
                problems.append(str(away))
                continue
            try:
                if await self._is_found(link, problems):
                    return
            except RedisAway as away:
                problems.append(str(away))
            except BaseException:  # it does not let us in, or we were cancelled
                link.close()
                raise
            link.close()
        raise RedisAway("; ".join(problems) or "no server answers")

    async def _is_found(self, link: RedisLink, problems: list[str]) -> bool:
        """Ask a server who it is; if it is the one we look for, keep the connection."""
        address = link.address
        if b"cluster_enabled:1" in await link.call("INFO", "cluster"):
            self.is_cluster = True
            slots = _slots(await link.call("CLUSTER", "SLOTS"), address)
            if len(slots) < SLOTS:
                problems.append(f"{address} does not know all of the cluster")
                return False
            self._slots = slots
            known = self._links.get((address.host, address.port))
            if known is not None:
                known.close()
            self._links[address.host, address.port] = link
            return True
        if (await link.call("ROLE"))[0] == b"master":
            self._master = link
            return True
        problems.append(f"{address} is not the master")
        return False


def _place(text: str, asked: RedisAddress) -> HostPort:
    host, _, port = text.rpartition(":")
    return host or asked.host, int(port)


def _slots(reply: Reply, asked: RedisAddress) -> dict[int, HostPort]:
    found = {}
    for first, last, master, *_ in reply:
        # A node that has no name yet is the one that was asked.
        place = ((master[0] or b"").decode() or asked.host, master[1])
        found.update(dict.fromkeys(range(first, last + 1), place))
    return found


def _read(future: "asyncio.Future[Reply]") -> None:
    """Look at an answer nobody waits for, lest asyncio complain about its error."""
    if not future.cancelled():
        future.exception()
