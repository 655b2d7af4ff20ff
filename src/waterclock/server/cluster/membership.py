"""The nodes of the cluster, as gossip tells of them: who is linked, who is on the ring.

Gossip says who is there; `RingMembers` says who of them owns streams. Members of other clusters,
and those that are no nodes at all, are shown and have no part in it. A node whose process is seen
to be gone (its link broke, and its machine refuses another) is declared failed at once, and not
after gossip's suspicion: whoever lives refutes that.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from waterclock.cluster.gossip import (
    BadPacket,
    Conflicted,
    Failed,
    Joined,
    Left,
    Member,
    MemberEvent,
    MergeRefused,
    PacketsBlocked,
    State,
    Updated,
)
from waterclock.cluster.gossip.agent import Agent
from waterclock.cluster.gossip.discovery import Seeds
from waterclock.cluster.node_tags import LEAVING, UP, NodeTags, decode_tags
from waterclock.cluster.ring_members import RingMembers
from waterclock.model.cluster_views import EventView, MemberView
from waterclock.model.views import NodeAddress
from waterclock.server.addresses import address_of
from waterclock.server.cluster.ownership import RingOwnership
from waterclock.server.cluster.peers import Peers

EVENTS_MAX: Final = 1_000
PROCESS_GONE: Final = "its link broke, and its machine refuses another: the process is gone"

_STATES: Final = {
    State.ALIVE: "alive",
    State.SUSPECT: "suspect",
    State.DEAD: "failed",
    State.LEFT: "left",
}

_log = logging.getLogger(__name__)


class Membership:
    """What this node knows of the others. Give `handle` what gossip tells, and set `agent`."""

    agent: Agent

    def __init__(
        self,
        name: str,
        tags: NodeTags,
        peers: Peers,
        ownership: RingOwnership,
        *,
        loop: asyncio.AbstractEventLoop,
        now_ms: Callable[[], int],
    ) -> None:
        self.name = name
        self.tags = tags
        self.events: deque[EventView] = deque(maxlen=EVENTS_MAX)
        """What happened, the last 1,000."""
        self._loop = loop
        self._peers = peers
        self._ownership = ownership
        self._now_ms = now_ms
        self._ring = RingMembers(name)
        self._nodes: dict[str, NodeTags] = {}
        """Other nodes of this cluster that are there."""
        self._timer: asyncio.TimerHandle | None = None
        self._has_others = asyncio.Event()
        """Set once other nodes are on the ring."""
        self._update_ring()

    def __repr__(self) -> str:
        return f"<Membership of {self.name}, {len(self._nodes)} others>"

    def __len__(self) -> int:
        """How many nodes of the cluster are there, this one included."""
        return 1 + len(self._nodes)

    def __contains__(self, name: str) -> bool:
        """Whether a node of the cluster is there, or leaves; this one is."""
        return name == self.name or name in self._nodes

    def is_anyone_up(self) -> bool:
        """Whether another node is there, and is not leaving."""
        return any(tags.state == UP for tags in self._nodes.values())

    def members(self) -> list[MemberView]:
        """Return all members that gossip knows, this node first; the dead until it forgets them."""
        linked = frozenset(self._peers.linked)
        return [self._view(member, linked) for member in self.agent.members()]

    def addresses(self) -> tuple[NodeAddress, ...]:
        """Return where clients reach the nodes of the cluster that are there, this one first; not
        those that leave."""
        nodes = {self.name: self.tags, **self._nodes}
        return tuple(
            NodeAddress(name, tags.grpc, tags.http)
            for name, tags in nodes.items()
            if tags.grpc and tags.state == UP
        )

    async def settled(self) -> None:
        """Return when the node knows who owns streams, for the first time: itself among others, or
        alone, as nobody is where it looked. The caller says how long that may take."""
        await self.agent.tried.wait()
        if self._nodes:
            await self._has_others.wait()

    # What is told

    def handle(self, event: MemberEvent) -> None:
        """Gossip tells of a member."""
        match event:
            case Joined(member):
                self._seen(member, "joined")
            case Updated(member):
                self._seen(member, "updated")
            case Left(member):
                self._lost(member, "left", "")
            case Failed(member):
                self._lost(member, "failed", "it does not answer")
            case Conflicted(member, address):
                other = address_of(*address)
                self._note("conflicted", member.name, f"{other} claims its name: rename one")
            case PacketsBlocked(member):
                self._note("blocked", member.name, "it answers over TCP, and not over UDP")
            case MergeRefused(reason):
                self._note("refused", "", reason)
        self._look()

    def linked(self, name: str) -> None:
        """A node can be asked."""
        self._note("linked", name, "")

    def unlinked(self, name: str, why: str) -> None:
        """A node can be asked no more, for now."""
        self._note("unlinked", name, why)

    def process_gone(self, name: str) -> None:
        """A node's process is gone: say so to all."""
        self._note("gone", name, PROCESS_GONE)
        self.agent.declare_failed(name)

    # What is done

    def follow(self, seeds: Seeds, zone: str) -> None:
        """Join by these from now on, and say that the node is there."""
        self.agent.set_seeds(seeds)
        if zone != self.tags.zone:
            self._say(self.tags._replace(zone=zone))

    def begin_leaving(self) -> None:
        """Own no streams any more, and say so: the others own them from now on."""
        self._say(self.tags._replace(state=LEAVING))
        self._ring.leave()
        self._note("leaving", self.name, "")
        self._look()

    async def leave(self) -> None:
        """Tell the others that this node goes, and wait until they were told."""
        self.close()
        await self.agent.leave()

    def close(self) -> None:
        """Change nothing any more by itself."""
        if self._timer is not None:
            self._timer.cancel()

    def _say(self, tags: NodeTags) -> None:
        self.tags = tags
        self.agent.set_tags(tags.encode())

    # What follows from it

    def _seen(self, member: Member, kind: str) -> None:
        tags = _tags_of(member)
        if tags is None:
            self._forget(member.name)
            self._note(kind, member.name, "it is no node of Waterclock")
        elif why := self.tags.why_apart(tags):
            self._forget(member.name)
            self._note("refused", member.name, why)
        else:
            self._nodes[member.name] = tags
            self._peers.meet(member.name, tags.peer_host, tags.peer_port)
            self._note(kind, member.name, f"{tags.http} {tags.state}")

    def _lost(self, member: Member, kind: str, why: str) -> None:
        self._forget(member.name)
        self._note(kind, member.name, why)

    def _forget(self, name: str) -> None:
        if self._nodes.pop(name, None) is not None:
            self._peers.part(name)

    def _look(self) -> None:
        """Take over who is there, now and when the time of those who wait has come."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now_ms = round(self._loop.time() * 1_000)
        up = {name for name, tags in self._nodes.items() if tags.state == UP}
        self._ring.present(up, now_ms)
        self._ring.tick(now_ms)
        self._update_ring()
        due_ms = self._ring.next_deadline()
        if due_ms is not None:
            self._timer = self._loop.call_at(due_ms / 1_000, self._look)

    def _update_ring(self) -> None:
        http = {name: tags.http for name, tags in self._nodes.items()} | {self.name: self.tags.http}
        version = self._ownership.version
        self._ownership.update({name: http[name] for name in self._ring.nodes})
        if self._ownership.others:
            self._has_others.set()
        if self._ownership.version != version:
            nodes = self._ownership.ring.nodes
            self._note("ring", "", f"{len(nodes)} nodes own streams: {', '.join(nodes)}")

    def _note(self, kind: str, member: str, detail: str) -> None:
        self.events.append(EventView(self._now_ms(), kind, member, detail))
        is_trouble = kind in ("refused", "conflicted", "blocked", "failed")
        level = logging.WARNING if is_trouble else logging.INFO
        _log.log(level, "cluster_%s member=%s: %s", kind, member, detail)

    def _view(self, member: Member, linked: frozenset[str]) -> MemberView:
        tags = _tags_of(member)
        state = _STATES[member.state]
        if tags is not None and tags.state == LEAVING and state == "alive":
            state = LEAVING
        return MemberView(
            name=member.name,
            address=address_of(*member.address),
            state=state,
            http="" if tags is None else tags.http,
            peer="" if tags is None else tags.peer,
            zone="" if tags is None else tags.zone,
            level=0 if tags is None else tags.level,
            is_self=member.name == self.name,
            is_linked=member.name in linked,
        )


def _tags_of(member: Member) -> NodeTags | None:
    try:
        return decode_tags(member.tags)
    except BadPacket:
        return None
