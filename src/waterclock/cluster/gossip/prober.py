"""Failure detection: ping one node after the other, then ask others to, then ping over TCP.

Once an interval the next node is pinged. If it does not answer in time, a few others are asked to
ping it, and it is pinged over TCP; the asker waits for the rest of the interval, longer the more it
doubts itself. A helper that gets no answer says so (nack): then the asker knows that its network is
well, and doubts itself no more for it.
"""

from random import Random

from waterclock.cluster.gossip.config import GossipConfig
from waterclock.cluster.gossip.effects import OpenStreamPing, PacketsBlocked
from waterclock.cluster.gossip.lifeguard import Awareness
from waterclock.cluster.gossip.members import Members, Node
from waterclock.cluster.gossip.membership import Membership
from waterclock.cluster.gossip.messages import (
    U32_MAX,
    Ack,
    Address,
    IndirectPing,
    Nack,
    Ping,
    Suspect,
)
from waterclock.cluster.gossip.outbox import Outbox
from waterclock.cluster.gossip.streams import State
from waterclock.cluster.gossip.timers import Timer, Timers

RELAYS_MAX = 1_024
"""Pings for others that are under way at once; above it they are not asked for."""
_STREAM_PING_PROTOCOL_MIN = 3
_NACK_PROTOCOL_MIN = 4
_FEW_NODES = 3


class _Probe:
    """The node that is being checked."""

    __slots__ = ("deadline_ms", "has_streams", "nacks_missing", "node", "seq_no", "timer")

    def __init__(self, node: Node, seq_no: int, deadline_ms: int, timer: Timer) -> None:
        self.node = node
        self.seq_no = seq_no
        self.deadline_ms = deadline_ms
        self.timer = timer
        self.nacks_missing: int | None = None
        """None if nobody was asked who would send one."""
        self.has_streams = False
        """Whether it answered over TCP."""


class Prober:
    """Pings others, and for others."""

    def __init__(
        self,
        config: GossipConfig,
        members: Members,
        *,
        membership: Membership,
        outbox: Outbox,
        timers: Timers,
        awareness: Awareness,
    ) -> None:
        self._config = config
        self._members = members
        self._me = members.me
        self._membership = membership
        self._outbox = outbox
        self._timers = timers
        self._awareness = awareness
        self._seq_no = 0
        self._next_ms = 0
        self._probe: _Probe | None = None
        self._relays: dict[int, tuple[Address, int]] = {}
        self._is_stopped = False
        self.probes = 0
        self.failed_probes = 0
        """Nobody was there, by whatever way it was asked."""
        self.reaped: list[Node] = []
        """Nodes that are forgotten, for whoever takes them out."""

    def start(self, rng: Random, now_ms: int) -> None:
        """Begin at a random moment of the interval, so that nodes do not probe in step."""
        self._timers.at(now_ms + rng.randrange(self._config.probe_interval_ms), self._begin)

    def stop(self) -> None:
        """Probe no more; pings are still answered."""
        self._is_stopped = True

    def stood_still(self, now_ms: int) -> None:
        """We did not run for a while: the answer to our ping may be here, and not be read yet."""
        if self._probe is not None:
            self._end(self._probe, now_ms)

    def pinged(self, ping: Ping, source: Address) -> None:
        """Answer a ping that is for us."""
        if ping.node in ("", self._me.name):
            self._outbox.send(Ack(ping.seq_no), to=ping.source or source)

    def asked(self, request: IndirectPing, source: Address, now_ms: int) -> None:
        """Ping a node for another one."""
        if len(self._relays) >= RELAYS_MAX:
            return
        seq_no = self._next_seq_no()
        asker = request.source or source
        self._relays[seq_no] = (asker, request.seq_no)

        def time_out(_now_ms: int) -> None:
            if self._relays.pop(seq_no, None) is not None and request.wants_nack:
                self._outbox.send(Nack(request.seq_no), to=asker)

        self._timers.at(now_ms + self._config.probe_timeout_ms, time_out)
        ping = Ping(seq_no, request.node, self._me.address, self._me.name)
        self._outbox.send(ping, to=request.target)

    def acked(self, ack: Ack, now_ms: int) -> None:
        """A node answered, us or the one we ping for."""
        relay = self._relays.pop(ack.seq_no, None)
        if relay is not None:
            asker, seq_no = relay
            self._outbox.send(Ack(seq_no), to=asker)
        elif self._probe is not None and self._probe.seq_no == ack.seq_no:
            self._awareness.change(-1)
            self._membership.answered(now_ms)
            self._end(self._probe, now_ms)

    def nacked(self, nack: Nack) -> None:
        """A helper got no answer, and is there itself."""
        probe = self._probe
        if probe is not None and probe.seq_no == nack.seq_no and probe.nacks_missing:
            probe.nacks_missing -= 1

    def stream_acked(self, seq_no: int) -> None:
        """The node answered over TCP. Go on waiting: an answer over UDP is worth more."""
        if self._probe is not None and self._probe.seq_no == seq_no:
            self._probe.has_streams = True

    def _begin(self, now_ms: int) -> None:
        if self._is_stopped:
            return
        config = self._config
        self._next_ms = now_ms + self._interval_ms()
        keep_ms = config.gossip_to_dead_ms
        node, reaped = self._members.next_to_probe(now_ms, keep_dead_ms=keep_ms)
        self.reaped += reaped
        if node is None:
            self._timers.at(self._next_ms, self._begin)
            return
        self.probes += 1
        seq_no = self._next_seq_no()
        deadline_ms = now_ms + self._awareness.scaled(config.probe_interval_ms)
        timer = self._timers.at(now_ms + config.probe_timeout_ms, self._ask_others)
        self._probe = _Probe(node, seq_no, deadline_ms, timer)
        ping = Ping(seq_no, node.name, self._me.address, self._me.name)
        if node.state == State.ALIVE:
            self._outbox.send(ping, to=node)
        else:  # with what it has to refute
            accusation = Suspect(node.incarnation, node.name, self._me.name)
            self._outbox.send_alone(ping, accusation, to=node)

    def _interval_ms(self) -> int:
        # Where two must notice the death of a third, each is checked every interval: with one ping
        # an interval it would be every second, and up to three with bad luck of the shuffle.
        few = len(self._members) <= _FEW_NODES
        return self._config.probe_interval_ms // (2 if few else 1)

    def _ask_others(self, _now_ms: int) -> None:
        probe = self._probe
        assert probe is not None
        node = probe.node
        helpers = self._members.pick(
            self._config.indirect_checks,
            lambda other: other is not node and other.state == State.ALIVE,
        )
        request = IndirectPing(
            probe.seq_no, node.address, node.name, True, self._me.address, self._me.name
        )
        for helper in helpers:
            wants_nack = helper.protocol_max >= _NACK_PROTOCOL_MIN
            if wants_nack:
                probe.nacks_missing = (probe.nacks_missing or 0) + 1
            self._outbox.send(request._replace(wants_nack=wants_nack), to=helper)
        if node.protocol_max >= _STREAM_PING_PROTOCOL_MIN:
            ping = Ping(probe.seq_no, node.name, self._me.address, self._me.name)
            self._outbox.add(OpenStreamPing(node.address, ping, probe.deadline_ms))
        probe.timer = self._timers.at(probe.deadline_ms, self._give_up)

    def _give_up(self, now_ms: int) -> None:
        probe = self._probe
        assert probe is not None
        if probe.has_streams:
            self._awareness.change(-1)
            self._outbox.add(PacketsBlocked(probe.node.view()))
        else:
            self.failed_probes += 1
            self._awareness.change(1 if probe.nacks_missing is None else probe.nacks_missing)
            claim = Suspect(probe.node.incarnation, probe.node.name, self._me.name)
            self._membership.suspect(claim, now_ms)
        self._end(probe, now_ms)

    def _end(self, probe: _Probe, now_ms: int) -> None:
        probe.timer.cancel()
        self._probe = None
        self._timers.at(max(now_ms, self._next_ms), self._begin)

    def _next_seq_no(self) -> int:
        self._seq_no = self._seq_no + 1 if self._seq_no < U32_MAX else 1
        return self._seq_no
