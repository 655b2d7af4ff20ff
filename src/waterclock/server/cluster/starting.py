"""A node's part in its cluster, from the configuration to the last word.

The order matters. A node answers requests before it is linked, is linked before it joins, and only
then do others give it streams. Until it knows them, or that nobody is there, requests for streams
wait: a node that comes back would else begin streams anew that others have. It leaves the other way
round: it says that it owns nothing more, hands over what it has, says goodbye, and only then stops
to answer.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from random import SystemRandom
from typing import Final

from waterclock.cluster.gossip import GossipConfig
from waterclock.cluster.gossip.agent import WILDCARDS, AgentSettings, route_out, running_agent
from waterclock.cluster.gossip.discovery import Seeds
from waterclock.cluster.node_tags import NodeTags
from waterclock.cluster.peer_link.frames import NAME_BYTES_MAX, Hello
from waterclock.model.clock import Clock
from waterclock.model.config import Config
from waterclock.model.errors import BadConfig
from waterclock.node.node import Node
from waterclock.security.folder import folder_in_use
from waterclock.server.access import Access
from waterclock.server.addresses import Addresses, address_of, bind_errors
from waterclock.server.cluster.cluster import Cluster
from waterclock.server.cluster.membership import Membership
from waterclock.server.cluster.processes.neighbours import Neighbours
from waterclock.server.cluster.replication.node_replication import NodeReplication
from waterclock.server.cluster.replication.start_watch import awaited
from waterclock.server.cluster.replication.starting import coordinator_name, replicating
from waterclock.server.cluster.shared_keys import SharedKeys
from waterclock.server.cluster.single_node import refusal_of_store

GOSSIP: Final[dict[str, Callable[[], GossipConfig]]] = {
    "lan": GossipConfig.lan,
    "wan": GossipConfig.wan,
    "local": GossipConfig.local,
}
"""By `cluster.preset`."""
RECLAIM_MS: Final = 3_000
"""After how long a node that failed may come back at another address, as pods do."""
SETTLE_S_MAX: Final = 3.0
"""How long a node that starts waits for others before it goes on alone."""
SILENCE_MS: Final = {"lan": 5_000, "wan": 20_000, "local": 3_000}
"""How long a link may be silent at most, by preset; there are five heartbeats in it."""

LOOPBACK: Final = "127.0.0.1"

log = logging.getLogger(__name__)


class ClusteredNode:
    """A node that has others, or is to have."""

    def __init__(self, config: Config, name: str) -> None:
        """Raises BadConfig, BadInput or StorageFailed if it cannot be one of a cluster."""
        settings = config.cluster
        for path, text in (("node.name", name), ("cluster.name", settings.name)):
            if len(text.encode()) > NAME_BYTES_MAX:
                raise BadConfig(path, f"may have {NAME_BYTES_MAX} bytes among other nodes")
        silence_ms = SILENCE_MS[settings.preset]
        if settings.is_replicated:
            # Who asked a leader that hangs waits no longer than until another leads.
            silence_ms = min(silence_ms, settings.lease_ms)
        hello = Hello(name, settings.name, silence_ms // 5, silence_ms)
        self._config = config
        self._name = name
        self._node: Node
        self._keys = SharedKeys(folder_in_use(config), settings.name)
        points = config.hash_ring.virtual_nodes
        security = self._keys.peer_security()
        self.cluster = Cluster(hello, security, SystemRandom(), points=points)
        self._replication: NodeReplication | None = None
        self._neighbours: Neighbours | None = None

    def __repr__(self) -> str:
        return f"<ClusteredNode {self._name} of {self._config.cluster.name}>"

    @asynccontextmanager
    async def replicating(self, clock: Clock) -> AsyncIterator[NodeReplication]:
        """Replicate topics while inside: before the node runs, which begins with their records."""
        _, ip = await self._hosts()
        port = self._config.cluster.peer_port
        async with (
            self.cluster.peers.listening(self._bind, port),
            replicating(self._config, clock, self.cluster, self._name, ip) as replication,
        ):
            self._replication = replication
            yield replication

    def awaited(self) -> str:
        """Return what the node cannot start without; empty: nothing."""
        if self._replication is None:
            return ""
        return awaited(self._replication.replicator, coordinator_name(self._config))

    def take(self, node: Node) -> None:
        """Take up the node, which runs by now."""
        self._node = node
        self._share_token_keys()
        node.persister.refusal = refusal_of_store(self._config)
        node.is_joining = self.cluster.ownership.is_joining = True
        if self._replication is not None:
            node.more_problems.append(self._replication.problems)
        if self._config.cluster.is_process:
            self._neighbours = Neighbours(self._config.cluster.expect, node.clock.now_ms)
            node.more_problems.append(self._neighbours.problems)

    @asynccontextmanager
    async def joined(self, addresses: Addresses, access: Access) -> AsyncIterator[None]:
        """Be one of the cluster while inside; clients must be answered by now, and until the end.

        Raises BadConfig if a port is taken. Call `leave` before the end, or others take it for a
        failure.
        """
        cluster, settings = self.cluster, self._config.cluster
        host, ip = await self._hosts()
        bind, is_process = self._bind, settings.is_process
        async with AsyncExitStack() as stack:
            if self._replication is None:
                await stack.enter_async_context(cluster.peers.listening(bind, settings.peer_port))
            tags = NodeTags(
                cluster=settings.name,
                http=addresses.alone._replace(host=host).http,
                peer_host=ip,
                peer_port=cluster.peers.address[1],
                points=self._config.hash_ring.virtual_nodes,
                zone=settings.zone or "",
                # Processes have one address, which whoever asks for it has.
                grpc_port=0 if is_process else addresses.grpc_port,
            )
            membership = self._membership_of(tags)
            agent = AgentSettings(
                name=self._name,
                bind=(bind, settings.gossip_port),
                advertise=ip,
                tags=tags.encode(),
                gossip=replace(GOSSIP[settings.preset](), dead_reclaim_ms=RECLAIM_MS),
                keyring=self._keys.keyring,
                seeds=Seeds(self._seeds()),
            )
            with bind_errors("cluster.gossip_port", bind, settings.gossip_port):
                running = running_agent(agent, membership.handle)
                membership.agent = await stack.enter_async_context(running)
            cluster.membership = membership  # from here on it can be asked for members
            if self._neighbours is not None:
                self._neighbours.membership = membership
            stack.callback(membership.close)
            if access.is_secure:
                access.on_reloaded.append(lambda: self._reload_keys(access))
            gossip = address_of(*membership.agent.address)
            log.info("joining name=%s gossip=%s peer=%s", self._name, gossip, tags.peer)
            with suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_S_MAX):
                    await membership.settled()
            self._node.is_joining = cluster.ownership.is_joining = False
            yield

    def _seeds(self) -> tuple[str, ...]:
        """Return by whom to join: as configured, else whoever is registered in etcd."""
        configured = self._config.cluster.bootstrap_nodes
        if configured or self._replication is None:
            return configured
        nodes = self._replication.replicator.session.view.nodes
        found = {each.gossip for each in nodes.values() if each.gossip}
        return tuple(sorted(found))

    async def leave(self) -> None:
        """Hand over what the node leads and owns, and tell the others that it goes. Streams that
        they have not taken within `server.drain` are lost."""
        self._node.stop_serving()
        if self._replication is not None:
            await self._replication.hand_over(self._node.groups.save_all)
        membership, handover = self.cluster.membership, self.cluster.handover
        assert membership is not None, "it has not joined"
        assert handover is not None, "it is not served"
        membership.begin_leaving()
        drain_s = self._config.server.drain_ms / 1_000
        try:
            async with asyncio.timeout(drain_s):
                await handover.leave(membership.is_anyone_up)
        except TimeoutError:
            log.warning("streams_left_behind streams=%d", len(self._node.streams.table))
        await membership.leave()

    def configure(self, config: Config) -> None:
        """Go on under other settings, as far as they can change."""
        settings = config.cluster
        if self.cluster.membership is not None and settings != self._config.cluster:
            seeds = Seeds(settings.bootstrap_nodes)
            self.cluster.membership.follow(seeds, settings.zone or "")
        self._config = config

    @property
    def _bind(self) -> str:
        """Where other nodes are listened to: of processes, all others are on this machine."""
        return LOOPBACK if self._config.cluster.is_process else self._config.server.host

    async def _hosts(self) -> tuple[str, str]:
        """Return how clients reach this node, and the address that other nodes do."""
        named, bind = self._config.cluster.advertise, self._config.server.host
        if self._config.cluster.is_process:
            return named or (LOOPBACK if bind in WILDCARDS else bind), LOOPBACK
        if named is None and bind in WILDCARDS:
            try:
                ip = route_out(socket.AF_INET6 if ":" in bind else socket.AF_INET)
            except OSError as error:
                problem = f"set the address that others reach: there is no route ({error.strerror})"
                raise BadConfig("cluster.advertise", problem) from error
            return ip, ip
        host = named or bind
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except OSError as error:
            field = "server.host" if named is None else "cluster.advertise"
            raise BadConfig(field, f"{host!r} is no host: {error.strerror}") from error
        # Gossip is bound to one address: of several, to what the system binds a name.
        ips = [str(address[0]) for _, _, _, _, address in found]
        return host, next((ip for ip in ips if ":" not in ip), ips[0])

    def _membership_of(self, tags: NodeTags) -> Membership:
        cluster = self.cluster
        return Membership(
            self._name,
            tags,
            cluster.peers,
            cluster.ownership,
            loop=asyncio.get_running_loop(),
            now_ms=self._node.clock.now_ms,
        )

    def _reload_keys(self, access: Access) -> None:
        security = self._keys.reload(access.state)
        if security is not None:
            self.cluster.peers.security = security
        self._share_token_keys()

    def _share_token_keys(self) -> None:
        for key in reversed(self._keys.token_keys):
            self._node.stream_tokens.share(key)
