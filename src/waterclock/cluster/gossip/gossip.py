"""The core: who is in the cluster, told by packets, streams and time.

It does nothing by itself. Whoever runs it hands in what arrives and calls `tick` when
`next_deadline` has come; every call returns effects, which are to be performed in their order.
Nothing happens between events: there is no timer for news while there are none, and one for probes.

Joining is a push/pull with any member. memberlist forgets the dead after half a minute, and two
halves of a cluster that lost each other for longer would never meet again; so seeds, and members
that failed, are tried again from time to time, as Serf does.

When many join at once there is more news than packets carry, and the last of it would take ten
seconds in a cluster of a hundred. So a node that learned of others by joining exchanges again after
a second, and then ever more rarely until it does so at the usual interval.
"""

from collections.abc import Callable, Iterable, Mapping
from math import ceil, log2
from random import Random
from typing import Any, Final

from waterclock.cluster.gossip.config import GossipConfig
from waterclock.cluster.gossip.effects import Effect, Member, MergeRefused, OpenPushPull
from waterclock.cluster.gossip.lifeguard import Awareness
from waterclock.cluster.gossip.members import Members, Node
from waterclock.cluster.gossip.membership import Membership
from waterclock.cluster.gossip.messages import (
    Ack,
    Address,
    Alive,
    Dead,
    ErrorAnswer,
    IndirectPing,
    Message,
    Nack,
    Ping,
    Suspect,
    User,
)
from waterclock.cluster.gossip.outbox import Outbox
from waterclock.cluster.gossip.packets import unpacked
from waterclock.cluster.gossip.prober import Prober
from waterclock.cluster.gossip.reconnecting import Reconnecting
from waterclock.cluster.gossip.serf import VERSIONS, encode_tags, leave_intent, mismatch
from waterclock.cluster.gossip.streams import PushPull, State
from waterclock.cluster.gossip.timers import Timer, Timers

_PUSH_PULL_SCALES_FROM = 32
_PUSH_PULL_SOON_MS = 1_000
_INTENT = "\0leave"
"""The subject of the leave intent; no node has this name."""


class Gossip:
    """One node of the cluster."""

    def __init__(
        self,
        config: GossipConfig,
        *,
        name: str,
        address: Address,
        tags: Mapping[str, str],
        incarnation: int,
        rng: Random,
        overhead_bytes: int = 0,
    ) -> None:
        """`incarnation` is the time in seconds: above any that an earlier run of the node had.

        `overhead_bytes` is what a seal adds to each packet.
        """
        self._config: Final = config
        self._rng: Final = rng
        me = Node(Alive(incarnation, name, address, encode_tags(tags), VERSIONS), 0)
        me.become(State.ALIVE, incarnation, 0)
        self._me: Final = me
        self._members: Final = Members(me, rng)
        self._timers: Final = Timers()
        self._awareness: Final = Awareness(config.awareness_max)
        self._outbox: Final = Outbox(config, self._members, overhead_bytes=overhead_bytes)
        self._reconnecting: Final = Reconnecting(config, self._members, rng)
        self._membership: Final = Membership(
            config, self._members,
            outbox=self._outbox, timers=self._timers, awareness=self._awareness,
            was_lost=self._reconnecting.is_lost,
        )  # fmt: skip
        self._prober: Final = Prober(
            config, self._members,
            membership=self._membership, outbox=self._outbox, timers=self._timers,
            awareness=self._awareness,
        )  # fmt: skip
        self._news_timer: Timer | None = None
        self._reconnect_timer: Timer | None = None
        self._push_pull_timer: Timer | None = None
        self._push_pull_soon_ms: int | None = None
        """The time until the next exchange while it is below the usual one."""
        self._news_phase_ms = 0
        self._handlers: Final[dict[type, Callable[[Any, Address, int], None]]] = {
            Ping: lambda ping, source, now_ms: self._prober.pinged(ping, source),
            IndirectPing: self._prober.asked,
            Ack: lambda ack, source, now_ms: self._prober.acked(ack, now_ms),
            Nack: lambda nack, source, now_ms: self._prober.nacked(nack),
            Alive: lambda claim, source, now_ms: self._membership.alive(claim, now_ms, source),
            Suspect: lambda claim, source, now_ms: self._membership.suspect(claim, now_ms, source),
            Dead: lambda claim, source, now_ms: self._membership.dead(claim, now_ms, source),
            User: lambda body, source, now_ms: None,  # of Serf, and not for us
            ErrorAnswer: lambda answer, source, now_ms: None,
        }

    def __repr__(self) -> str:
        return f"<Gossip {self._me.name}, {len(self._members)} nodes, {self.score} of self-doubt>"

    @property
    def score(self) -> int:
        """How far the node doubts itself (Lifeguard's local health): 0 is not at all."""
        return self._awareness.score

    @property
    def probes(self) -> tuple[int, int]:
        """How often a member was checked, and how often nobody was there."""
        return self._prober.probes, self._prober.failed_probes

    @property
    def has_sent_all(self) -> bool:
        """Whether what was to be told, a leave above all, was sent as often as it should be."""
        return not len(self._outbox.broadcasts) and self._me.is_gone == self._membership.has_left

    def members(self) -> list[Member]:
        """Return all nodes that are known, ourselves first; the dead until they are reaped."""
        return [node.view() for node in self._members.all()]

    def start(self, now_ms: int) -> list[Effect]:
        """Begin to probe and to exchange. Each node begins at moments of its own."""
        self._prober.start(self._rng, now_ms)
        self._news_phase_ms = now_ms + self._rng.randrange(self._config.gossip_interval_ms)
        first_ms = now_ms + self._rng.randrange(self._config.push_pull_interval_ms)
        self._push_pull_timer = self._timers.at(first_ms, self._push_pull_due)
        self._await_reconnect(now_ms)
        self._outbox.broadcast(self._me.name, self._me.alive())
        return self._done(now_ms)

    def join(self, addresses: Iterable[Address], now_ms: int) -> list[Effect]:
        """Meet the nodes at these addresses now, and try again while they are not members."""
        self._reconnecting.seeds = [each for each in addresses if each != self._me.address]
        for address in self._reconnecting.seeds_missing():
            self._open_push_pull(address, is_join=True)
        self._await_reconnect(now_ms)
        return self._done(now_ms)

    def packet_received(self, payload: bytes, source: Address, now_ms: int) -> list[Effect]:
        """A datagram came. Raise BadPacket, having done nothing, if it is none of ours."""
        messages: list[Message] = unpacked(payload)
        for message in messages:
            self._handlers[type(message)](message, source, now_ms)
        return self._done(now_ms)

    def push_pull_received(self, remote: PushPull, now_ms: int) -> tuple[PushPull, list[Effect]]:
        """A node sent its state. Return ours for it, as it was before, and effects."""
        answer = self._state(is_join=remote.is_join)
        self._merge(remote, now_ms)
        return answer, self._done(now_ms)

    def push_pull_answered(self, remote: PushPull, now_ms: int) -> list[Effect]:
        """The node of an `OpenPushPull` sent its state."""
        known = self._members.count_present()
        self._merge(remote, now_ms)
        if remote.is_join and self._members.count_present() > known:
            self._push_pull_soon_ms = _PUSH_PULL_SOON_MS
            self._await_push_pull(now_ms)
        return self._done(now_ms)

    def stream_ping_received(self, ping: Ping) -> Ack | None:
        """Return the answer to a ping over TCP, None if it is for another node."""
        return Ack(ping.seq_no) if ping.node in ("", self._me.name) else None

    def stream_acked(self, seq_no: int, now_ms: int) -> list[Effect]:
        """The node of an `OpenStreamPing` answered."""
        self._prober.stream_acked(seq_no)
        return self._done(now_ms)

    def set_tags(self, tags: Mapping[str, str], now_ms: int) -> list[Effect]:
        """Say something else of ourselves. Raise LimitExceeded if it is too long."""
        self._membership.describe(encode_tags(tags), now_ms)
        return self._done(now_ms)

    def declare_failed(self, name: str, now_ms: int) -> list[Effect]:
        """Tell everyone that a node is gone: its process was seen to be. It may refute that."""
        self._membership.declare_failed(name, now_ms)
        self._tell_news(now_ms)
        return self._done(now_ms)

    def leave(self, now_ms: int) -> list[Effect]:
        """Tell everyone that we go. Run on until `has_sent_all`, for a second or two."""
        if self._membership.has_left:
            return []
        self._membership.has_left = True
        self._prober.stop()
        intent = leave_intent(self._me.name, time=self._me.incarnation)
        self._outbox.broadcast(_INTENT, intent)
        self._tell_news(now_ms)

        # An agent of Serf that hears of the leave before the intent shows a failure for a moment.
        def leave(now_ms: int) -> None:
            claim = Dead(self._me.incarnation, self._me.name, self._me.name)
            self._membership.dead(claim, now_ms)
            self._tell_news(now_ms)

        self._timers.at(now_ms + self._config.gossip_interval_ms, leave)
        return self._done(now_ms)

    def tick(self, now_ms: int) -> list[Effect]:
        """Do what is due."""
        due_ms = self._timers.next_deadline()
        late_ms = 0 if due_ms is None else now_ms - due_ms
        if late_ms >= self._config.probe_interval_ms:
            # We stood still, and have not read what came meanwhile: nobody is to blame for that.
            self._prober.stood_still(now_ms)
            self._membership.stood_still(late_ms)
        self._timers.run(now_ms)
        return self._done(now_ms)

    def next_deadline(self) -> int | None:
        """Return when `tick` is to be called; it may change with each event."""
        return self._timers.next_deadline()

    def check_invariants(self) -> None:
        """Assert what must hold between any two events."""
        self._members.check_invariants()
        assert self._me.is_gone <= self._membership.has_left
        assert not len(self._outbox.broadcasts) or self._news_timer is not None

    def _done(self, now_ms: int) -> list[Effect]:
        if len(self._outbox.broadcasts) and self._news_timer is None:
            interval_ms = self._config.gossip_interval_ms
            wait_ms = (self._news_phase_ms - now_ms) % interval_ms or interval_ms
            self._news_timer = self._timers.at(now_ms + wait_ms, self._news_due)
        if self._prober.reaped:
            self._reconnecting.lost(self._prober.reaped, now_ms)
            self._prober.reaped = []
        return self._outbox.taken()

    def _news_due(self, now_ms: int) -> None:
        self._news_timer = None
        self._tell_news(now_ms)

    def _tell_news(self, now_ms: int) -> None:
        oldest_ms = now_ms - self._config.gossip_to_dead_ms

        def is_target(node: Node) -> bool:
            # The dead too, for a while: one that is not dead must hear that it is thought so.
            is_dead_yet = node.state == State.DEAD and node.changed_ms >= oldest_ms
            return node.state <= State.SUSPECT or is_dead_yet

        chosen = self._members.pick(self._config.gossip_nodes, is_target)
        if not chosen:
            # Alone: whoever joins learns everything by a push/pull.
            self._outbox.broadcasts.clear()
        for node in chosen:
            self._outbox.send_news(to=node)

    def _merge(self, remote: PushPull, now_ms: int) -> None:
        local = [node.snapshot() for node in self._members.all()]
        reason = mismatch(remote.states, local)
        if reason is None:
            self._membership.merge(remote.states, now_ms)
        else:
            self._outbox.add(MergeRefused(reason))

    def _push_pull_due(self, now_ms: int) -> None:
        for node in self._members.pick(1, lambda node: node.state == State.ALIVE):
            self._open_push_pull(node.address, is_join=False)
        self._await_push_pull(now_ms)

    def _await_push_pull(self, now_ms: int) -> None:
        if self._push_pull_timer is not None:
            self._push_pull_timer.cancel()
        wait_ms = self._push_pull_interval_ms()
        if self._push_pull_soon_ms is not None:
            # With some chance: those who joined together must not exchange together.
            soon_ms = int(self._push_pull_soon_ms * (0.75 + self._rng.random() / 2))
            is_soon = soon_ms < wait_ms
            wait_ms = min(soon_ms, wait_ms)
            self._push_pull_soon_ms = 2 * self._push_pull_soon_ms if is_soon else None
        self._push_pull_timer = self._timers.at(now_ms + wait_ms, self._push_pull_due)

    def _push_pull_interval_ms(self) -> int:
        scale, count = 1, len(self._members)
        if count > _PUSH_PULL_SCALES_FROM:
            scale = ceil(log2(count) - log2(_PUSH_PULL_SCALES_FROM)) + 1
        return scale * self._config.push_pull_interval_ms

    def _reconnect_due(self, now_ms: int) -> None:
        for address in self._reconnecting.chosen(now_ms):
            self._open_push_pull(address, is_join=True)
        self._await_reconnect(now_ms)

    def _await_reconnect(self, now_ms: int) -> None:
        if self._reconnect_timer is not None:
            self._reconnect_timer.cancel()
        due_ms = now_ms + self._reconnecting.delay_ms()
        self._reconnect_timer = self._timers.at(due_ms, self._reconnect_due)

    def _open_push_pull(self, address: Address, *, is_join: bool) -> None:
        self._outbox.add(OpenPushPull(address, self._state(is_join=is_join)))

    def _state(self, *, is_join: bool) -> PushPull:
        return PushPull(tuple(node.snapshot() for node in self._members.all()), is_join)
