"""Who a node is, and how it meets others."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, get_args

from waterclock.model.errors import BadConfig
from waterclock.model.settings import (
    Choice,
    Endpoints,
    Folders,
    Maybe,
    Section,
    Seeds,
    Text,
    count,
    duration,
    size,
)
from waterclock.model.units import DAY_MS, MIB, MINUTE_MS, SECOND_MS, TIB

Preset = Literal["lan", "wan", "local"]

_PORT = count(0, 65_535)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig(Section):
    """Who this node is and where it keeps its data."""

    section: ClassVar[str] = "node"

    name: Annotated[str | None, Maybe(Text(255))] = None
    """Unique in the cluster and kept for life. None takes the host's name, which will do until a
    second node runs on the same host."""

    data_folder: Annotated[str, Text(4_096)] = "waterclock-data"
    """Holds all a node must not lose. One node per folder; put it on a disk whose fsync is
    honest."""

    snapshot_folders: Annotated[tuple[str, ...], Folders()] = ()
    """Where snapshots may lie that are registered, beside `snapshots` in the data folder: those
    who administrate topics can have the node read the snapshots below, and what they say of
    themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig(Section):
    """How this node meets others. Port 0 takes any free one, for tests."""

    section: ClassVar[str] = "cluster"

    name: Annotated[str, Text(255)] = "waterclock"
    """Nodes of other clusters are turned away, so a wrong address cannot merge two clusters."""

    gossip_port: Annotated[int, _PORT] = 7946
    """UDP and TCP, between nodes. The same on all nodes keeps firewalls simple."""

    peer_port: Annotated[int, _PORT] = 7947
    """TCP, between nodes: requests for the streams of others go on there."""

    http_port: Annotated[int, _PORT] = 8080
    """Streams, JSON, metrics, health and the console."""

    grpc_port: Annotated[int, _PORT] = 9000
    """Publish, subscribe and fetch: the fast way in."""

    bootstrap_nodes: Annotated[tuple[str, ...], Seeds()] = ()
    """Gossip addresses to join by, of this node too if that is simpler; `srv:name` asks DNS,
    `provider=…` a cloud. Two or three suffice; more only helps when those are all down at once.
    Empty: the node is alone, unless `cluster.etcd` tells of others."""

    advertise: Annotated[str | None, Maybe(Text(255))] = None
    """The name or address others reach this node by. None: `server.host`, or that of the route."""

    zone: Annotated[str | None, Maybe(Text(63))] = None
    """Where the node is (a rack, a data centre), for people who look at the members."""

    preset: Annotated[Preset, Choice(get_args(Preset))] = "lan"
    """How patient nodes are with each other: `lan` in one data centre, `wan` if they are far apart,
    `local` on one machine. More takes fewer slow nodes for dead, and finds the dead later."""

    etcd: Annotated[tuple[str, ...], Endpoints()] = ()
    """Members of the etcd through which nodes agree on who leads which partition; with it, topics
    are replicated, and nodes find each other there. `https://` needs `cluster.etcd_ca`. Name all
    members: one that is away is passed over."""

    etcd_ca: Annotated[str | None, Maybe(Text(4_096))] = None
    """A file with the CA of etcd's certificates, for members with `https://`."""

    etcd_certificate: Annotated[str | None, Maybe(Text(4_096))] = None
    """A file with the certificate this node shows to etcd. Needs `cluster.etcd_key`."""

    etcd_key: Annotated[str | None, Maybe(Text(4_096))] = None
    """A file with the key of that certificate."""

    etcd_user: Annotated[str | None, Maybe(Text(255))] = None
    """As whom the node logs in to etcd. Needs `cluster.etcd_password_file`."""

    etcd_password_file: Annotated[str | None, Maybe(Text(4_096))] = None
    """A file with that user's password, and perhaps a newline."""

    expect: Annotated[int, count(1, 1_000)] = 1
    """A cluster forms when so many nodes have registered in etcd. More spreads the first topics
    over all of them, and nothing can be published until they are there."""

    lease_ms: Annotated[int, duration(2 * SECOND_MS, 1 * MINUTE_MS)] = 3 * SECOND_MS
    """How long a node may be silent to etcd, or to its replicas, before others lead its partitions.
    Shorter replaces a stopped leader sooner; a pause of its process is more often taken for its
    end. A leader whose process ended is replaced at once."""

    replace_after_ms: Annotated[int, duration(0, 30 * DAY_MS)] = 10 * MINUTE_MS
    """How long a node may be away before its replicas are made anew on others; 0 waits for ever.
    Longer than a restart or a repair that keeps the disk takes: what it has is copied otherwise."""

    catch_up_bytes: Annotated[int, size(1 * MIB, 1 * TIB)] = 64 * MIB
    """Bytes a second that a node sends to replicas that are far behind. More brings them up sooner
    and takes it from publishes."""

    process_http_port: Annotated[int, _PORT] = 0
    """With `up --processes`: HTTP of the first process alone, beside what all share, for its
    metrics; those of the others follow. Fixed ones can be named to Prometheus."""

    coordinator_fd: Annotated[int | None, Maybe(count(3, 1 << 20))] = None
    """Set by `up --processes` for the processes that it runs, and by nobody else: the open socket
    to what coordinates them. Ports for clients are shared with the others."""

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        is_tls = {each.startswith("https://") for each in self.etcd}
        if len(is_tls) > 1:
            raise BadConfig("cluster.etcd", "has members with https:// and members without")
        if True in is_tls and self.etcd_ca is None:
            raise BadConfig("cluster.etcd_ca", "is needed for members with https://")
        if (self.etcd_certificate is None) != (self.etcd_key is None):
            raise BadConfig("cluster.etcd_key", "goes with cluster.etcd_certificate")
        if (self.etcd_user is None) != (self.etcd_password_file is None):
            raise BadConfig("cluster.etcd_password_file", "goes with cluster.etcd_user")
        if self.etcd and self.is_process:
            raise BadConfig("cluster.etcd", "is for nodes on several machines, not for processes")

    @property
    def is_clustered(self) -> bool:
        """Whether the node has others, or is to have."""
        return bool(self.bootstrap_nodes) or self.is_replicated

    @property
    def is_replicated(self) -> bool:
        """Whether partitions are shared among nodes, and may have replicas on several."""
        return bool(self.etcd) or self.is_process

    @property
    def is_process(self) -> bool:
        """Whether the node is one of the processes that `up --processes` runs."""
        return self.coordinator_fd is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class HashRingConfig(Section):
    """Who owns a stream."""

    section: ClassVar[str] = "hash_ring"

    virtual_nodes: Annotated[int, count(1, 10_000)] = 200
    """Points per node on the ring. More spreads streams more evenly (the deviation is about
    1/sqrt(points), 7 % at 200) and makes each membership change cost more. All nodes must agree."""
