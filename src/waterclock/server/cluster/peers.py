"""The links of a node to all others: one each, dialled again when it breaks.

Both nodes of a pair may dial. Of two connections that one is used which the node with the lower id
dialled: both sides decide the same without a word, and the other one is closed once its last
request is answered.

A link that breaks says that the other node has gone, or that the network between has. If the other
node's machine then refuses the next connection, nobody listens there: its process is gone.
"""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from random import Random
from typing import Final

from waterclock.cluster.peer_link.channels import Channel, Listener
from waterclock.cluster.peer_link.frames import Hello
from waterclock.model.errors import Unreachable
from waterclock.server.addresses import bind_errors
from waterclock.server.cluster.link import PeerLink

DIAL_S: Final = 5.0
STOP_S: Final = 1.0
PAUSE_S: Final = 0.1
PAUSE_S_MAX: Final = 5.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PeerSecurity:
    """How nodes know each other: a secret, certificates, or neither on a loopback address."""

    secrets: tuple[bytes, ...] = ()
    """The first is used; the others are believed as well, while they are rotated."""
    server: ssl.SSLContext | None = None
    client: ssl.SSLContext | None = None


class Peers:
    """All links of this node.

    `on_request(node id, channel, method, body, is_last)` is called for what other nodes ask;
    `on_up(node id)` and `on_down(node id, why)` when a node can, and can no longer, be asked;
    `on_moved(node id)` when it is asked over another connection from now on; `on_gone(node id)`
    when its process is gone.
    """

    def __init__(
        self,
        hello: Hello,
        security: PeerSecurity,
        *,
        on_request: Callable[[str, Channel, int, bytes, bool], None],
        on_up: Callable[[str], None],
        on_down: Callable[[str, str], None],
        on_gone: Callable[[str], None],
        on_moved: Callable[[str], None] = lambda node_id: None,
        random: Random,
    ) -> None:
        self._hello = hello
        self.security = security
        """For links that are made from now on."""
        self._on_request = on_request
        self._on_up = on_up
        self._on_down = on_down
        self._on_gone = on_gone
        self._on_moved = on_moved
        self._random = random
        self._links: dict[str, PeerLink] = {}
        self._strangers: set[PeerLink] = set()
        """Connections that are not introduced yet, or are to be closed."""
        self._broken: set[str] = set()
        """Nodes whose link broke, until there is another, or it is known why."""
        self._dials: dict[str, asyncio.Task[None]] = {}
        self._addresses: dict[str, tuple[str, int]] = {}
        self._met_by: dict[str, set[str]] = {}
        """Who knows of a node, each for itself: gossip, the coordinator."""
        self.address: tuple[str, int] = ("", 0)
        """Where this node listens."""

    def __repr__(self) -> str:
        return f"<Peers {len(self._links)} of {len(self._addresses)} linked>"

    @property
    def linked(self) -> list[str]:
        """The nodes that can be asked."""
        return sorted(self._links)

    @asynccontextmanager
    async def listening(self, host: str, port: int) -> AsyncIterator[None]:
        """Take connections, and dial those that `meet` names, for as long as the block runs.

        Raises BadConfig if the address cannot be listened on.
        """
        loop = asyncio.get_running_loop()
        if self.security.server is not None:
            self.security.server.sni_callback = self._show_newest
        with bind_errors("cluster.peer_port", host, port):
            server = await loop.create_server(
                lambda: self._link(is_dialler=False), host, port, ssl=self.security.server
            )
        self.address = server.sockets[0].getsockname()[:2]
        try:
            async with asyncio.TaskGroup() as self._tasks:
                try:
                    yield
                finally:
                    for node_id in list(self._addresses):
                        self._part(node_id)
        finally:
            server.close()
            await self._close()

    def _show_newest(
        self, connection: ssl.SSLObject, _: str | None, context: ssl.SSLContext
    ) -> None:
        connection.context = self.security.server or context

    async def _close(self) -> None:
        """End all links; who does not take the last words in a second is not waited for."""
        links = {*self._links.values(), *self._strangers}
        for link in links:
            link.close("the node stops")
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await asyncio.gather(*(link.ended.wait() for link in links))
        for link in links:
            link.abort()

    def meet(self, node_id: str, host: str, port: int, *, by: str = "gossip") -> None:
        """Keep a link to a node, from now on, as long as anyone knows of it."""
        if node_id == self._hello.node_id:
            return
        self._met_by.setdefault(node_id, set()).add(by)
        if self._addresses.get(node_id) != (host, port):
            self._addresses[node_id] = (host, port)
            self._dial(node_id)

    def part(self, node_id: str, *, by: str = "gossip") -> None:
        """Keep no link to a node: it is gone, if nobody else knows better. What is open ends."""
        knowing = self._met_by.get(node_id, set())
        knowing.discard(by)
        if not knowing:
            self._part(node_id)

    def _part(self, node_id: str) -> None:
        self._met_by.pop(node_id, None)
        self._addresses.pop(node_id, None)
        self._broken.discard(node_id)
        if (dial := self._dials.pop(node_id, None)) is not None:
            dial.cancel()

    def ask(
        self, node_id: str, method: int, body: bytes, caller: Listener, *, is_last: bool = True
    ) -> Channel:
        """Ask something of a node; the caller hears the answer. Raises Unreachable."""
        link = self._links.get(node_id)
        if link is None or not link.is_up:
            raise Unreachable(f"there is no link to {node_id} now")
        return link.channels.open(method, body, caller, is_last=is_last)

    def silent_ms(self, node_id: str) -> int:
        """Return for how long nothing has come over the link to a node; 0 if there is none."""
        link = self._links.get(node_id)
        now_s = asyncio.get_running_loop().time()
        return 0 if link is None else int((now_s - link.heard_at) * 1_000)

    # Links

    def _link(self, *, is_dialler: bool) -> PeerLink:
        link = PeerLink(
            self._hello,
            self.security.secrets,
            is_dialler=is_dialler,
            on_hello=self._introduced,
            on_request=self._asked,
            on_down=self._lost,
        )
        self._strangers.add(link)
        return link

    def _introduced(self, link: PeerLink, hello: Hello) -> None:
        known = self._links.get(hello.node_id)
        if known is None:
            self._use(link, hello.node_id)
            self._on_up(hello.node_id)
        elif not known.is_up or link.is_dialler == known.is_dialler:
            # It came back before we noticed that it was gone.
            self._use(link, hello.node_id)
            self._strangers.add(known)
            known.close("there is a newer link")
            self._on_moved(hello.node_id)
        else:
            we_should_dial = self._hello.node_id < hello.node_id
            if link.is_dialler == we_should_dial:
                self._use(link, hello.node_id)
                self._strangers.add(known)
                link = known
                self._on_moved(hello.node_id)
            # The other node may have asked something over this one: who dialled it ends it later.
            if link.is_dialler:
                link.close_when_idle("there is another link")

    def _use(self, link: PeerLink, node_id: str) -> None:
        self._strangers.discard(link)
        self._broken.discard(node_id)
        self._links[node_id] = link

    def _asked(
        self, link: PeerLink, channel: Channel, method: int, body: bytes, is_last: bool
    ) -> None:
        assert link.peer is not None
        self._on_request(link.peer.node_id, channel, method, body, is_last)

    def _lost(self, link: PeerLink, why: str) -> None:
        self._strangers.discard(link)
        if link.peer is None:
            _log.debug("a connection of no known node ended: %s", why)
            return
        node_id = link.peer.node_id
        if self._links.get(node_id) is not link:
            return
        del self._links[node_id]
        if not link.is_parted:
            self._broken.add(node_id)
        self._on_down(node_id, why)
        self._dial(node_id)

    # Dialling

    def _dial(self, node_id: str) -> None:
        if node_id in self._addresses and node_id not in self._dials:
            self._dials[node_id] = self._tasks.create_task(self._dial_until_linked(node_id))

    async def _dial_until_linked(self, node_id: str) -> None:
        pause_s = PAUSE_S
        try:
            while node_id in self._addresses and node_id not in self._links:
                await self._dial_once(node_id)
                # Nodes that were cut off together should not dial together.
                await asyncio.sleep(pause_s * self._random.uniform(0.5, 1))
                pause_s = min(pause_s * 2, PAUSE_S_MAX)
        finally:
            if self._dials.get(node_id) is asyncio.current_task():
                del self._dials[node_id]

    async def _dial_once(self, node_id: str) -> None:
        host, port = self._addresses[node_id]
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(DIAL_S):
                await loop.create_connection(
                    lambda: self._link(is_dialler=True), host, port, ssl=self.security.client
                )
        except (OSError, TimeoutError, ssl.SSLError) as error:
            _log.debug("%s at %s:%d does not answer: %s", node_id, host, port, error)
            if isinstance(error, ConnectionRefusedError) and node_id in self._broken:
                self._broken.discard(node_id)
                self._on_gone(node_id)
