"""The cluster as one node sees it, as metrics. Labels are states, directions and topics."""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from waterclock.cluster.hash_ring import HashRing
from waterclock.server.cluster.replication_status import replication_families
from waterclock.server.families import Family, counter, gauge, one_counter, one_gauge

if TYPE_CHECKING:
    from waterclock.server.cluster.cluster import Cluster
    from waterclock.server.cluster.forwarder import Forwarder
    from waterclock.server.cluster.handover import Handover
    from waterclock.server.cluster.hot_streams import HotStreams
    from waterclock.server.cluster.membership import Membership

MEMBER_STATES = ("alive", "suspect", "leaving", "left", "failed")
BREAKER_STATES = ("closed", "open", "half open")
DIRECTIONS = ("sent", "received")


def cluster_families(cluster: "Cluster", name: str) -> Iterator[Family]:
    """Yield everything there is to count on the node of this name."""
    if cluster.membership is not None:
        yield from _gossip_families(cluster.membership)
    yield from _ring_families(cluster.ownership.ring, name)
    yield one_gauge("cluster_links", "Nodes that can be asked.", len(cluster.peers.linked))
    if cluster.forwarder is not None:
        yield from _forward_families(cluster.forwarder)
    if cluster.handover is not None:
        yield from _handover_families(cluster.handover)
    if cluster.hot_streams is not None:
        yield from _hot_stream_families(cluster.hot_streams)
    if cluster.replication is not None:
        yield from replication_families(cluster.replication, name)


def _gossip_families(membership: "Membership") -> Iterator[Family]:
    states = Counter(member.state for member in membership.members())
    yield gauge(
        "cluster_members",
        "Members this node knows of, itself included.",
        ("state",),
        [((state,), states[state]) for state in MEMBER_STATES],
    )
    agent, counts = membership.agent, membership.agent.counts
    probes, failed = agent.probes
    yield one_counter("gossip_probes", "Checks of whether a member is there.", probes)
    yield one_counter("gossip_failed_probes", "Checks that found nobody, by whatever way.", failed)
    yield one_gauge("gossip_score", "How far the node doubts itself; 0: not at all.", agent.score)
    packets, sizes = (
        (counts.packets_sent, counts.packets_received),
        (counts.bytes_sent, counts.bytes_received),
    )
    for name, documentation, values in (
        ("gossip_packets", "Packets over UDP.", packets),
        ("gossip_bytes", "Bytes of packets over UDP.", sizes),
    ):
        yield _by_direction(name, documentation, values)
    refused, unfinished = counts.packets_refused, counts.exchanges_failed
    yield one_counter("gossip_refused_packets", "Packets that nobody of ours sent.", refused)
    yield one_counter("gossip_failed_exchanges", "Exchanges over TCP that failed.", unfinished)


def _by_direction(name: str, documentation: str, values: tuple[int, int]) -> Family:
    samples = [((way,), value) for way, value in zip(DIRECTIONS, values, strict=True)]
    return counter(name, documentation, ("direction",), samples)


def _ring_families(ring: HashRing, name: str) -> Iterator[Family]:
    yield one_gauge("ring_nodes", "Nodes that own streams.", len(ring))
    yield one_gauge(
        "ring_version", "The same wherever the same nodes are on the ring.", ring.version
    )
    share = ring.shares().get(name, 0.0)
    yield one_gauge("ring_share", "What this node owns of all streams.", share)


def _forward_families(forwarder: "Forwarder") -> Iterator[Family]:
    yield one_counter(
        "forwarded_requests", "Requests, each time asked of another node.", forwarder.forwarded
    )
    yield one_counter(
        "forward_retries",
        "Times a request was to be asked again: its owner had changed, or was away.",
        forwarder.retried,
    )
    yield one_counter(
        "forward_broken_polls",
        "Polls of streams asked again since their link broke: a message that was on it is lost.",
        forwarder.broken_polls,
    )
    shared = forwarder.shared_connections
    yield _by_direction(
        "handover_connections",
        "Connections over HTTP that went to other processes of the machine, and came from them.",
        (0, 0) if shared is None else (shared.handed, shared.taken),
    )
    yield one_gauge("forwards_waiting", "Requests that other nodes are answering.", len(forwarder))
    states = forwarder.breakers()
    yield gauge(
        "breakers",
        "Circuit breakers, one for each node that was asked; open: it is left alone for a while.",
        ("state",),
        [((state.replace(" ", "_"),), states[state]) for state in BREAKER_STATES],
    )


def _handover_families(handover: "Handover") -> Iterator[Family]:
    streams, sizes = (
        (handover.sent, handover.taken),
        (handover.sent_bytes, handover.taken_bytes),
    )
    about = "Streams that went to other nodes, and came from them."
    yield _by_direction("handover_streams", about, streams)
    yield _by_direction("handover_bytes", "Bytes of streams that went and came.", sizes)
    yield one_counter(
        "handover_lost_streams",
        "Streams whose new owner was gone before it said that it has them.",
        handover.lost,
    )
    yield one_counter(
        "handover_refused_streams",
        "Streams that came, and were lost: there was no room for them.",
        handover.refused,
    )
    yield one_counter(
        "handover_timeouts",
        "Nodes that did not say in time that they have sent all: their streams began anew.",
        handover.timeouts,
    )
    yield one_gauge(
        "handover_unsettled", "1 while streams are on their way.", int(not handover.is_settled)
    )


def _hot_stream_families(hot: "HotStreams") -> Iterator[Family]:
    core = hot.core
    yield one_gauge("hot_streams", "Streams of this node that are split over nodes.", hot.split)
    yield one_gauge("hot_stream_partitions", "Parts of split streams at this node.", hot.partitions)
    yield one_gauge(
        "hot_stream_signal",
        "How many parts the busiest stream of this node would fill; above the number of nodes: "
        "more nodes would help.",
        hot.signal,
    )
    yield counter(
        "hot_stream_changes",
        "Times that a stream of this node was split into more parts, or fewer.",
        ("direction",),
        [(("more",), core.grown), (("fewer",), core.shrunk)],
    )
    yield one_counter(
        "hot_stream_refusals",
        "Seconds in which a busy stream was not split, because it is read in order.",
        core.refused,
    )
    yield one_counter(
        "hot_stream_pulled_messages", "Messages fetched from another node's part.", hot.pulled
    )
    yield one_counter(
        "hot_stream_broken_pulls",
        "Fetches from another node's part whose link broke: messages that were on it are lost.",
        hot.broken_pulls,
    )
    yield one_counter(
        "hot_stream_lost_messages", "Fetched messages for which there was no room.", hot.lost
    )
