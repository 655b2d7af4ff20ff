"""The sections of a node's configuration, each field saying what it trades.

Frozen, with the range of every value in its type; `config.py` reads them from flags, environment
and file. A section checks what the code needs to work at all.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, get_args

from waterclock.model.errors import BadConfig
from waterclock.model.limits import RUNS_MAX
from waterclock.model.settings import (
    Choice,
    Folders,
    HostNames,
    Maybe,
    Origins,
    Section,
    Seeds,
    Text,
    Toggle,
    count,
    duration,
    size,
)
from waterclock.model.units import DAY_MS, GIB, HOUR_MS, KIB, MIB, MINUTE_MS, SECOND_MS, TIB

Fsync = Literal["group", "always", "interval"]
Compression = Literal["none", "lz4", "zstd"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]
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
    Empty: the node is alone."""

    advertise: Annotated[str | None, Maybe(Text(255))] = None
    """The name or address others reach this node by. None: `server.host`, or that of the route."""

    zone: Annotated[str | None, Maybe(Text(63))] = None
    """Where the node is (a rack, a data centre), for people who look at the members."""

    preset: Annotated[Preset, Choice(get_args(Preset))] = "lan"
    """How patient nodes are with each other: `lan` in one data centre, `wan` if they are far apart,
    `local` on one machine. More takes fewer slow nodes for dead, and finds the dead later."""

    @property
    def is_clustered(self) -> bool:
        """Whether the node has others, or is to have."""
        return bool(self.bootstrap_nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchingConfig(Section):
    """How long senders and receivers of a stream wait for each other."""

    section: ClassVar[str] = "matching"

    default_timeout_ms: Annotated[int, duration(0, 3_600 * SECOND_MS)] = 30 * SECOND_MS
    """For a request that names no timeout. Longer polls less often; proxies cut what stays quiet
    for more than a minute."""

    max_timeout_ms: Annotated[int, duration(0, 3_600 * SECOND_MS)] = 300 * SECOND_MS
    """The longest a request may ask for. Longer lets clients hold memory and a connection for
    longer, and a shutdown has to drain them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsConfig(Section):
    """What in-memory streams may take, and where stored ones are kept."""

    section: ClassVar[str] = "streams"

    ring_messages: Annotated[int, count(0, 1_000_000)] = 100
    """Messages a stream holds if its first sender does not say; 0: sender and receiver meet."""

    ring_messages_max: Annotated[int, count(0, 1_000_000)] = 10_000
    """The largest size a sender may ask for."""

    message_bytes_max: Annotated[int, size(1, 10 * MIB)] = 10 * MIB
    """A message as JSON. Stores keep no more than 10 MiB."""

    bytes_max: Annotated[int, size(1 * MIB, 1 * TIB)] = 1 * GIB
    """Messages of all streams in memory; more are refused until some are overwritten."""

    streams_max: Annotated[int, count(1, 100_000_000)] = 2_000_000
    """Streams known at once; about 300 bytes each, besides their messages."""

    waiters_max: Annotated[int, count(1, 10_000_000)] = 100_000
    """Senders and receivers that wait at once, over all streams."""

    consumers_max: Annotated[int, count(1, 1_000_000)] = 1_000
    """Named consumers of one stream."""

    idle_ms: Annotated[int, duration(1 * SECOND_MS, 365 * DAY_MS)] = 1 * HOUR_MS
    """A stream nobody has used for so long is forgotten, with its messages in memory."""

    consumer_idle_ms: Annotated[int, duration(1 * SECOND_MS, 365 * DAY_MS)] = 10 * MINUTE_MS
    """A named consumer that has not asked so long is forgotten: blocking senders wait till then."""

    partitions_max: Annotated[int, count(1, 1_000)] = 16
    """Nodes of a cluster that a busy stream is split over at most; 1: none is split."""

    partition_rate: Annotated[int, count(1, 10_000_000)] = 5_000
    """Requests a second of one stream that one node is meant for: with more, it is split."""

    store: Annotated[str, Text(4_096)] = "log:"
    """`log:` is this node's disk; else the URL of a database: `postgresql://user:password@host/db`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HashRingConfig(Section):
    """Who owns a stream."""

    section: ClassVar[str] = "hash_ring"

    virtual_nodes: Annotated[int, count(1, 10_000)] = 200
    """Points per node on the ring. More spreads streams more evenly (the deviation is about
    1/sqrt(points), 7 % at 200) and makes each membership change cost more. All nodes must agree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig(Section):
    """How a partition keeps its log on disk; and what the node tells of itself on stderr, which is
    called a log as well."""

    section: ClassVar[str] = "log"

    level: Annotated[LogLevel, Choice(get_args(LogLevel))] = "warning"
    """What the node tells on stderr: `info` adds topics, groups and members that come and go, and
    what starts found to mend. `--verbose` is `info`."""

    format: Annotated[LogFormat, Choice(get_args(LogFormat))] = "text"
    """`json` is an object on each line, with time, level, event, fields and the id of the request:
    for machines. Credentials, tokens and passwords in URLs are in neither."""

    segment_bytes: Annotated[int, size(4 * KIB, 1 * GIB)] = 512 * MIB
    """A segment is closed at this size. Larger means fewer files; retention and compaction work
    on whole closed segments, so it also frees space later and in bigger steps."""

    segment_age_ms: Annotated[int, duration(1 * SECOND_MS, 3_650 * DAY_MS)] = 7 * DAY_MS
    """A segment is closed at this age, however small, so that quiet topics age out too. Shorter
    frees their space sooner and leaves more small files."""

    preallocate_bytes: Annotated[int, size(0, 1 * GIB)] = 32 * MIB
    """Disk reserved ahead of the log's end, at most: 64 KiB with the first message of a segment,
    then as much again as it holds. More finds a full disk earlier and makes fsync cheaper. 0
    reserves nothing."""

    index_every_bytes: Annotated[int, size(1, 64 * MIB)] = 32 * KIB
    """Log between two entries of the sparse index. Less finds an offset with less scanning and
    needs a bigger index."""

    checkpoint_every_bytes: Annotated[int, size(1, 16 * GIB)] = 64 * MIB
    """How much log a crash may make us read again. Less restarts sooner and writes checkpoints
    more often."""

    fsync: Annotated[Fsync, Choice(get_args(Fsync))] = "group"
    """`group`: every publish waits for an fsync, which all that wait share. `always`: one for each
    frame, far slower and no safer. `interval`: publishes do not wait, and a power cut loses up to
    one interval of acknowledged messages."""

    fsync_interval_ms: Annotated[int, duration(1, 1 * MINUTE_MS)] = 100
    """Used by `interval` only. Longer costs less disk time and may lose more."""

    compression: Annotated[Compression, Choice(get_args(Compression))] = "none"
    """For batches the node itself encodes; those of producers stay as they came. `lz4` is cheap,
    `zstd` smaller, both spend the node's one core to save disk and network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupConfig(Section):
    """How long and how many message ids are remembered."""

    section: ClassVar[str] = "dedup"

    enabled: Annotated[bool, Toggle()] = True
    """Whether an id published again is recognised. Off publishes faster, and a producer that
    retries may then store a message twice."""

    window_ms: Annotated[int, duration(1 * SECOND_MS, 3_650 * DAY_MS)] = 7 * DAY_MS
    """How long a producer may go on retrying safely. Longer needs more index on disk and memory."""

    ids_max: Annotated[int, count(1, 1 << 32)] = 1 << 26
    """Most ids remembered per partition; past it the oldest are forgotten before the window ends.
    Each takes 8 bytes of index, on disk and in memory. Those published with `allow_duplicate` count
    for themselves: as many again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionConfig(Section):
    """When old messages go. It frees whole closed segments and does not shorten `dedup.window`:
    an id may be remembered after its message is gone."""

    section: ClassVar[str] = "retention"

    age_ms: Annotated[int | None, Maybe(duration(1 * SECOND_MS, 36_500 * DAY_MS))] = None
    """Messages older than this may go. None keeps them for ever, until the disk is full."""

    bytes: Annotated[int | None, Maybe(size(4 * KIB, 1_024 * TIB))] = None
    """The oldest messages of a partition go once its log is larger than this. None sets no bound;
    the disk does."""

    wait_for_groups: Annotated[bool, Toggle()] = False
    """Whether what some group has yet to read is kept for longer. On, a group that nobody uses any
    more fills the disk until it expires. Off, a group that is too slow misses messages, and is told
    how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleConfig(Section):
    """How messages for later are kept and fired."""

    section: ClassVar[str] = "schedule"

    tick_ms: Annotated[int, duration(10, 1 * SECOND_MS)] = 100
    """How exact firing is: a due time is rounded up to this. Shorter fires closer to the moment and
    wakes the node more often."""

    hot_window_ms: Annotated[int, duration(1 * SECOND_MS, 3_650 * DAY_MS)] = 6 * HOUR_MS
    """What is due sooner is kept in memory, the rest in files until its time nears. Longer loads
    less often; each pending message in memory takes about 20 bytes."""

    fire_messages_max: Annotated[int, count(1, 100_000)] = 2_000
    """Most messages fired at once. More fires a storm sooner; everyone else waits for the whole
    of it."""

    checkpoint_ms: Annotated[int, duration(1 * SECOND_MS, 1 * DAY_MS)] = 1 * MINUTE_MS
    """Time between saves of the timers. Longer reads more of the log again after a crash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsConfig(Section):
    """Topics that nobody configured."""

    section: ClassVar[str] = "topics"

    auto_create: Annotated[bool, Toggle()] = True
    """Whether publishing, scheduling or subscribing to a topic that does not exist creates it,
    which the answer then says. Off turns a mistyped name into an error."""

    partitions: Annotated[int, count(1, 1_024)] = 1
    """Of a topic created without a number. More lets more members of a group work at once, and
    keeps order only among messages of one key."""

    topics_max: Annotated[int, count(1, 100_000)] = 1_000
    """Most topics of a node, so that clients who invent names cannot fill the disk with folders."""

    partitions_max: Annotated[int, count(1, 1_000_000)] = 4_096
    """Most partitions of a node, over all topics. Each needs a few open files, and up to 48 KiB of
    disk while it is empty: 192 MiB for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryConfig(Section):
    """How a group is served."""

    section: ClassVar[str] = "delivery"

    ack_timeout_ms: Annotated[int, duration(100, 12 * HOUR_MS)] = 30 * SECOND_MS
    """How long a member may keep a message before it is taken to have failed. Lower finds a stuck
    member sooner; a member that is merely slow gets everything twice, unless it extends."""

    lease_ms_max: Annotated[int, duration(100, 7 * DAY_MS)] = 12 * HOUR_MS
    """How far ahead a member may extend. Higher allows longer work; a lease pins progress."""

    max_retries: Annotated[int, count(1, 10)] = 3
    """Failures that are followed by another attempt; the next one leads to the dead letter topic.
    Higher rides out longer outages; a message that can never succeed is in the way for longer."""

    count_lost_owners: Annotated[bool, Toggle()] = False
    """Whether the first message a member held of each partition has failed when the member died or
    lost touch. On, a message that kills its consumer each time ends as a dead letter; so does one
    whose consumers merely lost their connections, one time too often. Off, it comes again for
    ever."""

    retry_delay_ms: Annotated[int, duration(100, 10 * SECOND_MS)] = 1 * SECOND_MS
    """The wait after the first failure; doubles with each. Lower recovers sooner from a hiccup and
    beats harder on whatever is down."""

    retry_delay_ms_max: Annotated[int, duration(100, DAY_MS)] = 5 * MINUTE_MS
    """The longest wait between attempts, jitter aside."""

    retry_jitter_percent: Annotated[int, count(0, 100)] = 20
    """How much longer than that a wait may be. Higher spreads a burst of failures farther."""

    retry_ahead_ms_max: Annotated[int, duration(100, 366 * DAY_MS)] = 7 * DAY_MS
    """How far ahead a consumer may name a retry; later is made this. Higher keeps a hole in the
    group's progress open for longer; retention may take the message meanwhile."""

    credit_messages: Annotated[int, count(1, 10_000_000)] = 1_000
    """What a member can hold until it says otherwise. Higher hides more of the round trip and
    gives more back when the member dies."""

    credit_bytes: Annotated[int, size(1, 16 * GIB)] = 64 * MIB
    """The same in bytes."""

    unacked_max: Annotated[int, count(1, 10_000_000)] = 10_000
    """Messages of a partition handed out and not acked, whatever the credit: the server's own
    brake. Higher lets a fast member run farther; it is what a crash delivers again."""

    runs_max: Annotated[int, count(1, 10_000_000)] = RUNS_MAX
    """Messages of a partition handed out and not done, those waiting for a retry or for the dead
    letter topic included. Progress has at most as many runs. At the limit nothing new is handed
    out until something is done. Higher skips past more failing messages and persists more."""

    def __post_init__(self) -> None:
        # `super()` without arguments does not survive slots=True (the class is made twice).
        Section.__post_init__(self)
        if self.retry_delay_ms_max < self.retry_delay_ms:
            raise BadConfig("delivery.retry_delay_max", "is below delivery.retry_delay")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig(Section):
    """How groups watch their members."""

    section: ClassVar[str] = "groups"

    session_timeout_ms: Annotated[int, duration(100, 30 * MINUTE_MS)] = 10 * SECOND_MS
    """How long a member may be silent. Lower moves its partitions sooner after it died; a pause of
    its process is more often taken for its death. Members should beat three times within it."""

    revoke_grace_ms: Annotated[int, duration(0, 10 * MINUTE_MS)] = 10 * SECOND_MS
    """How long a partition that moves waits for its owner to finish. Higher delivers less twice;
    lower balances sooner."""

    members_max: Annotated[int, count(1, 100_000)] = 1_000
    """Most members of a group. Members beyond the number of partitions get nothing to do."""

    expire_ms: Annotated[int | None, Maybe(duration(1 * SECOND_MS, 36_500 * DAY_MS))] = 30 * DAY_MS
    """A group without members that nobody has used for so long is forgotten, and begins anew if it
    is used again. None keeps groups for ever. Longer waits for consumers that seldom come."""

    expire_unused_ms: Annotated[int | None, Maybe(duration(1 * SECOND_MS, 36_500 * DAY_MS))] = (
        1 * HOUR_MS
    )
    """The same for a group that never answered a message, was never moved, and never had members
    for so long: anybody makes one by asking once. None treats it as all others."""

    groups_max: Annotated[int, count(1, 1_000_000)] = 10_000
    """Most groups of a node, over all topics. Each is a record, and a cursor for each partition,
    also without members."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityConfig(Section):
    """Who may use a node that `waterclock secure` has secured."""

    section: ClassVar[str] = "security"

    folder: Annotated[str | None, Maybe(Text(4_096))] = None
    """Certificates, keys and principals, made by `waterclock secure init`. None is `secure` in the
    data folder. If it is there, the node speaks TLS and asks for credentials."""

    issuer: Annotated[str | None, Maybe(Text(4_096))] = None
    """Another issuer whose tokens are taken: what their `iss` says. It can name principals that
    were added with `--outside`, and no other. Needs `security.jwks` and `security.audience`."""

    jwks: Annotated[str | None, Maybe(Text(4_096))] = None
    """Where its public keys are (JWKS): an `https://` URL, or a file."""

    audience: Annotated[str | None, Maybe(Text(4_096))] = None
    """What `aud` of its tokens must name, so that those made for other services are refused."""

    claim: Annotated[str, Text(255)] = "sub"
    """The claim of its tokens that names the principal."""

    grpc_certificates: Annotated[bool, Toggle()] = False
    """Whether gRPC clients must show a certificate of the node's CA; who sends no token is who it
    names. gRPC asks for one always or never. HTTP takes one in any case."""

    audit: Annotated[bool | None, Maybe(Toggle())] = None
    """Whether denials and admin calls are written to the topic `__audit`. None: if the node is
    secured. On, an admin call is answered once its entry is on disk."""

    audit_age_ms: Annotated[int | None, Maybe(duration(1 * SECOND_MS, 36_500 * DAY_MS))] = (
        365 * DAY_MS
    )
    """Entries of the audit that are older may go. None keeps them until there are too many."""

    audit_bytes: Annotated[int | None, Maybe(size(4 * KIB, 1_024 * TIB))] = 1 * GIB
    """The oldest go once a partition of the audit is larger: denials have one, and calls another,
    which no flood of denials reaches. None sets no bound; the disk does."""

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        together = {"issuer": self.issuer, "jwks": self.jwks, "audience": self.audience}
        missing = [name for name, value in together.items() if value is None]
        if 0 < len(missing) < len(together):
            raise BadConfig(f"security.{missing[0]}", "is needed to take tokens of another issuer")


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingConfig(Section):
    """Which spans a node makes, by OpenTelemetry."""

    section: ClassVar[str] = "tracing"

    enabled: Annotated[bool, Toggle()] = False
    """Whether the node makes spans of calls, batches and timers that carry a context, and exports
    them as the variables `OTEL_*` say: by OTLP to localhost:4317 if they say nothing. Needs
    `pip install 'waterclock[otel]'`. On, each such call costs a span."""

    sample_percent: Annotated[int, count(0, 100)] = 0
    """Of 100 calls that carry no context, how many begin a trace. More shows more of clients that
    are not traced themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig(Section):
    """What clients may ask of a node at once."""

    section: ClassVar[str] = "server"

    host: Annotated[str, Text(255)] = "127.0.0.1"
    """The address to listen on. One that other machines reach, such as `0.0.0.0`, needs a node that
    is secured (`waterclock secure init`), or `server.insecure`."""

    insecure: Annotated[bool, Toggle()] = False
    """Whether a node that is not secured may listen beyond this machine. On, whoever reaches its
    ports reads, publishes and deletes: only where something else guards them."""

    linger_ms: Annotated[int, duration(0, 100)] = 2
    """How long a single publish waits for others to share its batch. Longer makes larger batches
    and adds that much to each answer; 0 batches only what came in the same turn of the loop."""

    publish_bytes_max: Annotated[int, size(64 * KIB, 16 * GIB)] = 256 * MIB
    """Bytes of publishes being worked on; more are refused until some are answered. Higher absorbs
    bigger bursts in memory."""

    receive_bytes_max: Annotated[int, size(1 * MIB, 16 * GIB)] = 256 * MIB
    """Room for gRPC requests on their way in, each counted as the largest there may be until it is
    there. Higher lets more slow senders of large batches in at once."""

    calls_max: Annotated[int, count(1, 1_000_000)] = 10_000
    """Calls being worked on, subscriptions included; more are refused."""

    drain_ms: Annotated[int, duration(0, 10 * MINUTE_MS)] = 10 * SECOND_MS
    """How long a stopping node lets calls finish."""

    metrics_groups_max: Annotated[int, count(1, 100_000)] = 100
    """Lines of each metric of groups in `/metrics`: those with the most lag, and one for all the
    others. Each takes a few hundred bytes at most, in 16 metrics."""

    cors_origins: Annotated[tuple[str, ...], Origins()] = ()
    """Web pages that may use the HTTP API from a browser, besides the node's own. `*` is any page
    that anyone opens who can reach the port: it may then read, publish and delete."""

    hosts: Annotated[tuple[str, ...], HostNames()] = ()
    """Names by which HTTP clients call the node, such as that of a proxy before it or of a service;
    `.example.com` is every name below. Addresses, `localhost`, the machine's name and `server.host`
    need no entry. Requests to other names are refused, for a page could have one lead here (DNS
    rebinding). `*` is any name: only where something else checks them."""
