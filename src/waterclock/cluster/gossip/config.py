"""What gossip trades: how soon the dead are noticed, against packets and false alarms.

The presets are memberlist's: `lan` for one data centre, `wan` for nodes across the world, `local`
for one machine. All nodes of a cluster should have the same.
"""

from dataclasses import dataclass

from waterclock.model.errors import BadConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class GossipConfig:
    """Intervals, multipliers and limits; each says what it trades."""

    probe_interval_ms: int = 1_000
    """Time between failure checks. Lower finds the dead sooner and sends more packets."""
    probe_timeout_ms: int = 500
    """How long a ping may take before others are asked to ping too: above the 99th percentile of
    the round trip. Lower finds the dead no sooner, and asks more."""
    indirect_checks: int = 3
    """How many others are asked. More rule out a bad path, and send more when a node fails."""
    suspicion_mult: int = 4
    """A suspect has `suspicion_mult * max(1, log10(nodes)) * probe_interval_ms` at least to refute.
    Higher forgives longer pauses, and finds the dead later."""
    suspicion_max_mult: int = 6
    """A suspect that nobody else suspects has so many times longer: it may be us who are slow."""
    awareness_max: int = 8
    """How many times its interval a node that doubts itself stretches its checks, at most."""
    gossip_interval_ms: int = 200
    """Time between rounds of news. Lower spreads faster and sends more while there is news."""
    gossip_nodes: int = 3
    """To how many nodes news go in each round."""
    gossip_to_dead_ms: int = 30_000
    """How long the dead get news, so that one who is not dead can say so; then they are reaped."""
    retransmit_mult: int = 4
    """News are sent `retransmit_mult * (1 + ceil(log10(nodes + 1)))` times, in a cluster so small
    that each round reaches all once less. More survive more loss."""
    push_pull_interval_ms: int = 30_000
    """Time between exchanges of all that is known, which mend what news left out. It grows with the
    cluster."""
    reconnect_interval_ms: int = 30_000
    """Time between tries to reach nodes that failed and seeds that are not members: what joins two
    halves again after they forgot each other."""
    reconnect_for_ms: int = 24 * 3_600_000
    """How long a failed node is tried again."""
    dead_reclaim_ms: int = 0
    """After how long another address may take the name of a dead node; 0: once it is reaped."""
    packet_bytes_max: int = 1_400
    """Of a packet that is sent: what passes any path in one piece."""
    stream_timeout_ms: int = 10_000
    """How long one exchange over TCP may take."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            least = 0 if name in ("dead_reclaim_ms", "indirect_checks") else 1
            if getattr(self, name) < least:
                raise BadConfig(f"gossip.{name}", f"must be at least {least}")
        if self.probe_timeout_ms >= self.probe_interval_ms:
            raise BadConfig("gossip.probe_timeout_ms", "must be below gossip.probe_interval_ms")
        if self.packet_bytes_max < 700:
            raise BadConfig("gossip.packet_bytes_max", "must have room for metadata: 700 or more")

    @classmethod
    def lan(cls) -> "GossipConfig":
        """For one data centre."""
        return cls()

    @classmethod
    def wan(cls) -> "GossipConfig":
        """For nodes far from each other."""
        return cls(
            probe_interval_ms=5_000,
            probe_timeout_ms=3_000,
            suspicion_mult=6,
            gossip_interval_ms=500,
            gossip_nodes=4,
            gossip_to_dead_ms=60_000,
            push_pull_interval_ms=60_000,
            reconnect_interval_ms=60_000,
            stream_timeout_ms=30_000,
        )

    @classmethod
    def local(cls) -> "GossipConfig":
        """For one machine."""
        return cls(
            probe_timeout_ms=200,
            indirect_checks=1,
            suspicion_mult=3,
            gossip_interval_ms=100,
            gossip_to_dead_ms=15_000,
            retransmit_mult=2,
            push_pull_interval_ms=15_000,
            reconnect_interval_ms=15_000,
            stream_timeout_ms=1_000,
        )
