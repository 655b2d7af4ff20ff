"""The configuration of a dispatcher and of a worker: each field says what it trades.

Where settings come from is told in `model/config_loader.py`, for a file may hold the sections of
both programs, and each reads its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Annotated, ClassVar, Literal, TypeVar, get_args

from waterclock.dispatch.core.lease import LeaseConfig
from waterclock.dispatch.core.plan import PlanConfig
from waterclock.dispatch.frames import BODY_BYTES_MAX, CREDIT_MAX, PAYLOAD_BYTES_MAX
from waterclock.model.config_loader import ENVIRONMENT_PREFIX, build_section, read_settings
from waterclock.model.errors import BadConfig
from waterclock.model.settings import (
    Addresses,
    Choice,
    Section,
    Text,
    Toggle,
    count,
    duration,
    settings_of,
    size,
)
from waterclock.model.units import DAY_MS, GIB, HOUR_MS, KIB, MIB, MINUTE_MS, SECOND_MS

SourceKind = Literal["stream", "pubsub"]
SinkKind = Literal["redis", "waterclock"]
Parse = Literal["json", "bytes"]
SimpleWorkers = Literal["loopback", "all"]

_PORT = count(0, 65_535)
_KEY = Text(512)
_GOES_ALONE = "goes without secret, certificate, key, ca, workers and listen"


@dataclass(frozen=True, slots=True)
class Servers:
    """A list of addresses or URLs, at least one; in one text they are parted by commas."""

    allowed: ClassVar[str] = "a list of host:port or URLs, at least one"

    def read(self, raw: object) -> tuple[str, ...]:
        if isinstance(raw, str):
            raw = [part.strip() for part in raw.split(",")]
        if not isinstance(raw, list | tuple) or not raw:
            raise ValueError
        return tuple(Text(1_000).read(item) for item in raw)

    def show(self, value: Sequence[str]) -> str:
        return ",".join(value)


@dataclass(frozen=True, slots=True)
class Blank:
    """What another kind of text allows, or nothing at all."""

    kind: Text

    @property
    def allowed(self) -> str:
        return f"{self.kind.allowed}, or empty"

    def read(self, raw: object) -> str:
        return "" if raw == "" else self.kind.read(raw)

    def show(self, value: str) -> str:
        return value


@dataclass(frozen=True, slots=True)
class Secret:
    """A text that no error shows."""

    path: str
    allowed: ClassVar[str] = "text of at least 16 characters, @file, or empty"

    def read(self, raw: object) -> str:
        if not isinstance(raw, str) or len(raw) > 4_096:
            raise BadConfig(self.path, f"expected {self.allowed}")
        return raw

    def show(self, value: str) -> str:
        return "***" if value else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatcherConfig(Section):
    """A dispatcher: where messages come from, and how they are handed out."""

    section: ClassVar[str] = "dispatch"

    redis: Annotated[tuple[str, ...], Servers()] = ("127.0.0.1:6379",)
    """Where Redis is: one server, a master and its replicas, or nodes of a cluster. Several let a
    dispatcher start while some are down."""

    redis_ca: Annotated[str, Blank(Text(4_096))] = ""
    """The file of the CA that signed the certificates of `rediss://` servers; empty takes those of
    the system."""

    redis_certificate: Annotated[str, Blank(Text(4_096))] = ""
    """The file of a certificate to show to such servers."""

    redis_key: Annotated[str, Blank(Text(4_096))] = ""
    """The private key of it."""

    prefix: Annotated[str, _KEY] = "waterclock"
    """Names all keys of ours. Dispatchers of one prefix are one group with one leader; two groups
    on one Redis need two."""

    source_kind: Annotated[SourceKind, Choice(get_args(SourceKind))] = "stream"
    """Where messages come from. `stream` loses nothing; `pubsub` loses what comes while nobody
    listens, as pub/sub does, and is for publishers that cannot be changed."""

    source: Annotated[str, _KEY] = "messages"
    """The key of the stream, or the name of the channel."""

    group: Annotated[str, Text(255)] = "waterclock"
    """The consumer group of the stream. Another name reads the stream once more, from its start.
    Dispatchers of another prefix that read the same stream need another group."""

    is_source_trimmed: Annotated[bool, Toggle()] = False
    """Delete entries of the stream once they are done. Saves Redis's memory; nobody else can read
    them later."""

    output: Annotated[str, _KEY] = "processed"
    """The key of the stream that workers write to; the leader raises its fence."""

    streams: Annotated[int, count(1, 1_000)] = 1
    """Streams the output is spread over, named `<output>:<i>` if there are several. As many as a
    cluster has masters use them all; readers must read them all."""

    window_ms: Annotated[int, duration(1 * SECOND_MS, 30 * DAY_MS)] = 5 * MINUTE_MS
    """How long a message is known to have been written. One that was handed out before and comes
    again later than that is not written but dead-lettered; one that only waited is written, however
    old. Longer takes Redis's memory: about 100 bytes for each message."""

    bucket_ms: Annotated[int, duration(1 * SECOND_MS, 1 * DAY_MS)] = 1 * MINUTE_MS
    """What is known to be written is forgotten in pieces of so long. Shorter makes more keys,
    longer frees memory later."""

    host: Annotated[str, Text(255)] = "127.0.0.1"
    """The address to listen on for workers. One that other machines reach, such as `0.0.0.0`, needs
    `secret`, or `certificate`, `key` and `ca`, or `is_insecure`."""

    port: Annotated[int, _PORT] = 7710
    """The port to listen on for workers; 0 takes any free one, since workers are told it."""

    secret: Annotated[str, Secret("dispatch.secret")] = field(default="", repr=False)
    """What all dispatchers and workers of a group know, and nobody else: both ends of a connection
    prove that they do. The text, or `@file`; at least 16 random characters. Empty asks nobody."""

    certificate: Annotated[str, Blank(Text(4_096))] = ""
    """The file of a certificate: workers are spoken to by TLS 1.3, and plain ones refused."""

    key: Annotated[str, Blank(Text(4_096))] = ""
    """The private key of the certificate."""

    ca: Annotated[str, Blank(Text(4_096))] = ""
    """The CA that must have signed the certificate of workers: those without one are refused."""

    secure: Annotated[str, Blank(Text(4_096))] = ""
    """The secure folder of a node, or a copy: workers are spoken to by TLS 1.3, and must show a
    credential that may consume `source`. In the place of `secret`, `certificate`, `key`, `ca`."""

    is_insecure: Annotated[bool, Toggle()] = False
    """Let whoever reaches the port take messages and acknowledge them, from other machines too.
    It is said at each start."""

    advertise_host: Annotated[str, Blank(Text(255))] = ""
    """Where workers find this machine; empty takes `host`, or the machine's name for an address
    such as `0.0.0.0`."""

    workers: Annotated[tuple[str, ...], Addresses()] = ()
    """Workers that the leader connects to, besides those that come by themselves."""

    lease_ms: Annotated[int, duration(300, 60 * SECOND_MS)] = 2 * SECOND_MS
    """How long the lease of a leader that vanished still runs. Shorter takes over sooner; a pause
    of a leader for longer than about this makes it lose the lease."""

    marker_ms: Annotated[int, duration(10, 10 * SECOND_MS)] = 100
    """pubsub: how often the leader publishes a marker. Shorter lets standbys hold less."""

    deadline_ms: Annotated[int, duration(50, 1 * HOUR_MS)] = 2 * SECOND_MS
    """A message that is not answered for so long goes to another worker. Shorter repairs sooner,
    and hands out twice what is only slow; a worker that says it is still at work has more time."""

    deliveries_max: Annotated[int, count(1, 1_000)] = 5
    """A message that was handed out so often and not written is written to the dead stream."""

    retry_ms: Annotated[int, duration(1, 1 * HOUR_MS)] = 100
    """How long a message that a worker could not process waits to be tried again; doubled each
    time."""

    retry_ms_max: Annotated[int, duration(1, 1 * HOUR_MS)] = 30 * SECOND_MS
    """The longest such wait."""

    queue_messages_max: Annotated[int, count(1_000, 10_000_000)] = 100_000
    """Messages in the leader's memory, waiting or with workers. At this number the stream is not
    read further, and pub/sub messages stay in Redis only."""

    queue_bytes_max: Annotated[int, size(1 * MIB, 64 * GIB)] = 256 * MIB
    """The same in bytes of their bodies."""

    backlog_messages_max: Annotated[int, count(0, 1_000_000_000)] = 10_000_000
    """pubsub: messages that are kept in Redis because the leader's memory is full; more are
    dropped and counted."""

    ring_messages_max: Annotated[int, count(1_000, 10_000_000)] = 200_000
    """pubsub: messages a standby holds until the leader has stored them. Must last for a lease at
    your rate, or a take-over loses (and counts) some."""

    ring_bytes_max: Annotated[int, size(1 * MIB, 64 * GIB)] = 256 * MIB
    """The same in bytes of their bodies."""

    batch_messages_max: Annotated[int, count(1, 5_000)] = 500
    """Messages of one frame. More is faster, and lets more come again when a worker dies."""

    batch_bytes_max: Annotated[int, size(4 * KIB, PAYLOAD_BYTES_MAX // 2)] = 1 * MIB
    """Bytes of bodies in one frame, unless one message alone has more."""

    body_bytes_max: Annotated[int, size(1, BODY_BYTES_MAX)] = 1 * MIB
    """A larger message is dead-lettered as it comes."""

    read_count: Annotated[int, count(1, 100_000)] = 1_000
    """stream: entries read at once."""

    credit_max: Annotated[int, count(1, CREDIT_MAX)] = 10_000
    """Messages that one worker is sent before it has acknowledged any, however many it asks for;
    and never more than half of `queue_messages_max`. More lets one worker keep more from others."""

    simple_workers: Annotated[SimpleWorkers, Choice(get_args(SimpleWorkers))] = "loopback"
    """Who may work without a hello (`legacy_credit`). Whatever connects and says nothing is taken
    for such a worker, a port scan too: so it is let in if `host` is loopback or the leader dialled
    it (`workers`), and from elsewhere only with `all`."""

    legacy_credit: Annotated[int, count(0, 10_000)] = 1
    """Messages that a worker which never says hello is sent before it has acknowledged any. 0 takes
    no such workers: whatever else connects and says nothing is not one then."""

    heartbeat_ms: Annotated[int, duration(10, 1 * MINUTE_MS)] = 500
    """Leader and worker say something at least this often."""

    silence_ms_max: Annotated[int, duration(50, 10 * MINUTE_MS)] = 2 * SECOND_MS
    """A leader or worker that says nothing for so long is taken for gone; its messages go to
    others."""

    metrics_port: Annotated[int, _PORT] = 0
    """Metrics and health over HTTP; 0 is off."""

    metrics_host: Annotated[str, Blank(Text(255))] = ""
    """The address they are served on; empty takes `host`. Whoever reaches it may read them."""

    tracing: Annotated[bool, Toggle()] = False
    """Whether spans are made of messages that carry a context, exported as the variables `OTEL_*`
    say, and workers told. Needs `pip install 'waterclock[otel]'`."""

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        _paired("dispatch", self.certificate, self.key)
        _check_redis_tls(self)
        if self.workers and self.certificate and not self.ca:
            raise BadConfig("dispatch.ca", "is needed to know the workers that are dialled")
        if self.secure and (self.secret or self.certificate or self.ca or self.workers):
            raise BadConfig("dispatch.secure", _GOES_ALONE)
        knows_workers = bool(self.secret or (self.certificate and self.ca) or self.secure)
        _refuse_strangers(
            "dispatch", "host", self.host, is_allowed=knows_workers or self.is_insecure
        )
        _ordered("dispatch", "heartbeat", self.heartbeat_ms * 2, "silence_max", self.silence_ms_max)
        _ordered("dispatch", "retry", self.retry_ms, "retry_max", self.retry_ms_max)
        _ordered("dispatch", "bucket", self.bucket_ms, "window", self.window_ms)
        _ordered("dispatch", "lease", self.lease_ms, "window", self.window_ms)

    @property
    def takes_simple_workers(self) -> bool:
        """Whether anybody who connects and says nothing is a worker: such a one proves nothing."""
        return not (self.secret or self.secure) and (
            self.simple_workers == "all" or is_loopback(self.host)
        )

    @property
    def worker_credit_max(self) -> int:
        """What one worker may hold at most: others must get something, too."""
        return min(self.credit_max, self.queue_messages_max // 2)

    def plan(self) -> PlanConfig:
        """Return what the plan goes by."""
        return PlanConfig(
            deadline_ms=self.deadline_ms,
            deliveries_max=self.deliveries_max,
            messages_max=self.queue_messages_max,
            bytes_max=self.queue_bytes_max,
            batch_messages_max=self.batch_messages_max,
            batch_bytes_max=self.batch_bytes_max,
            body_bytes_max=self.body_bytes_max,
            retry_ms=self.retry_ms,
            retry_ms_max=self.retry_ms_max,
        )

    def lease(self) -> LeaseConfig:
        """Return what the lease goes by."""
        return LeaseConfig(lease_ms=self.lease_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig(Section):
    """A worker: what it runs, and where it writes."""

    section: ClassVar[str] = "worker"

    redis: Annotated[tuple[str, ...], Servers()] = ("127.0.0.1:6379",)
    """Where Redis is, as for the dispatcher: the leader is found there, and written to."""

    redis_ca: Annotated[str, Blank(Text(4_096))] = ""
    """The file of the CA that signed the certificates of `rediss://` servers; empty takes those of
    the system."""

    redis_certificate: Annotated[str, Blank(Text(4_096))] = ""
    """The file of a certificate to show to such servers."""

    redis_key: Annotated[str, Blank(Text(4_096))] = ""
    """The private key of it."""

    prefix: Annotated[str, _KEY] = "waterclock"
    """The dispatchers to work for."""

    handler: Annotated[str, Blank(Text(512))] = ""
    """The function to run for each message, as `module:function`; empty writes messages as they
    are."""

    name: Annotated[str, Blank(Text(200))] = ""
    """Shown in the leader's logs and metrics; empty takes the host's name and the process's id."""

    parse: Annotated[Parse, Choice(get_args(Parse))] = "json"
    """What the function is given: the message as parsed JSON, or its bytes. What is not JSON is
    dead-lettered."""

    concurrency: Annotated[int, count(1, 10_000)] = 8
    """Messages processed at the same time: threads for a plain function, tasks for an async one."""

    credit: Annotated[int, count(1, CREDIT_MAX)] = 1_000
    """Messages this worker holds at most. More keeps it busy across the network; what it cannot
    process within the deadline is handed out again."""

    handler_ms_max: Annotated[int, duration(1, 1 * DAY_MS)] = 1 * MINUTE_MS
    """A function that runs for longer is given up: until then its message is reported as being
    worked on, so that nobody else gets it."""

    sink: Annotated[SinkKind, Choice(get_args(SinkKind))] = "redis"
    """Where results go: streams in Redis, or a topic of a Waterclock node."""

    output: Annotated[str, _KEY] = "processed"
    """redis: the key of the stream, the same as the dispatcher's."""

    streams: Annotated[int, count(1, 1_000)] = 1
    """redis: streams the output is spread over, the same as the dispatcher's."""

    window_ms: Annotated[int, duration(1 * SECOND_MS, 30 * DAY_MS)] = 5 * MINUTE_MS
    """redis: how long a message is known to have been written, the same as the dispatcher's."""

    bucket_ms: Annotated[int, duration(1 * SECOND_MS, 1 * DAY_MS)] = 1 * MINUTE_MS
    """redis: the pieces it is forgotten in, the same as the dispatcher's."""

    length_max: Annotated[int, count(0, 1_000_000_000)] = 0
    """redis: entries that a stream of the output keeps, about; 0 keeps all."""

    wait_replicas: Annotated[int, count(0, 100)] = 0
    """redis: replicas that must have a write before it is acknowledged. With 0 a failover of Redis
    can lose what was acknowledged; each wait costs a round trip."""

    wait_ms: Annotated[int, duration(1, 1 * MINUTE_MS)] = 1 * SECOND_MS
    """redis: how long to wait for them; then the messages are handed out again."""

    servers: Annotated[tuple[str, ...], Addresses()] = ("127.0.0.1:9000",)
    """waterclock: gRPC addresses of nodes of one cluster; one is asked, and another if it fails."""

    topic: Annotated[str, Blank(Text(255))] = ""
    """waterclock: the topic to publish to."""

    listen: Annotated[str, Blank(Text(300))] = ""
    """`host:port` where the leader connects to this worker; empty connects to the leader."""

    secret: Annotated[str, Secret("worker.secret")] = field(default="", repr=False)
    """What all dispatchers and workers of a group know, and nobody else: both ends of a connection
    prove that they do. The text, or `@file`; at least 16 random characters. Empty asks nobody."""

    certificate: Annotated[str, Blank(Text(4_096))] = ""
    """The file of a certificate, shown to dispatchers; with `listen` they must dial by TLS 1.3."""

    key: Annotated[str, Blank(Text(4_096))] = ""
    """The private key of the certificate."""

    ca: Annotated[str, Blank(Text(4_096))] = ""
    """The CA that must have signed the certificate of dispatchers; others are refused."""

    credential: Annotated[str, Secret("worker.credential")] = field(default="", repr=False)
    """What `waterclock secure add` printed, or `@file`: shown to the node of `topic`, and to
    dispatchers that have `secure`, in the place of `secret`, `certificate`, `key` and `ca`."""

    is_insecure: Annotated[bool, Toggle()] = False
    """Let `listen` be an address that other machines reach: whoever does can be our leader. It is
    said at each start."""

    drain_ms_max: Annotated[int, duration(0, 1 * HOUR_MS)] = 10 * SECOND_MS
    """How long a worker that is stopped may take to finish what it has."""

    metrics_port: Annotated[int, _PORT] = 0
    """Metrics and health over HTTP; 0 is off."""

    metrics_host: Annotated[str, Text(255)] = "127.0.0.1"
    """The address they are served on. Whoever reaches it may read them, the last error of the
    handler too."""

    tracing: Annotated[bool, Toggle()] = False
    """Whether each call of the handler is a span, exported as the variables `OTEL_*` say. Needs
    `pip install 'waterclock[otel]'`."""

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        if self.listen:
            host = self.listen.rpartition(":")[0]
            knows_leaders = bool(self.secret or (self.certificate and self.ca))
            is_allowed = knows_leaders or self.is_insecure
            _refuse_strangers("worker", "listen", host, is_allowed=is_allowed)
        if self.credential and (self.secret or self.certificate or self.ca or self.listen):
            raise BadConfig("worker.credential", _GOES_ALONE)
        _paired("worker", self.certificate, self.key)
        _check_redis_tls(self)
        _ordered("worker", "bucket", self.bucket_ms, "window", self.window_ms)
        if self.sink == "waterclock" and not self.topic:
            raise BadConfig("worker.topic", "is needed if worker.sink is waterclock")


AnyConfig = TypeVar("AnyConfig", DispatcherConfig, WorkerConfig)
SECTIONS: Mapping[str, type[DispatcherConfig] | type[WorkerConfig]] = {
    "dispatch": DispatcherConfig,
    "worker": WorkerConfig,
}


def load_config(
    section: type[AnyConfig],
    *,
    yaml_text: str | None,
    environ: Mapping[str, str],
    flags: Mapping[str, object],
) -> AnyConfig:
    """Return the checked configuration of a dispatcher or of a worker; flags win over the
    environment, that over the file. Hand over all of the environment. Raises BadConfig, naming the
    setting."""
    values = read_settings(
        {setting.path: setting for setting in settings_of(section)},
        yaml_text=yaml_text,
        environ=environ,
        flags=flags,
        sections=SECTIONS,
        environ_prefix=f"{ENVIRONMENT_PREFIX}{section.section.upper()}__",
    )
    return build_section(section, values)


def _paired(section: str, certificate: str, key: str, *, prefix: str = "") -> None:
    if bool(certificate) != bool(key):
        missing = f"{prefix}{'key' if certificate else 'certificate'}"
        raise BadConfig(f"{section}.{missing}", "is missing: a certificate and its key go together")


def _check_redis_tls(config: DispatcherConfig | WorkerConfig) -> None:
    _paired(config.section, config.redis_certificate, config.redis_key, prefix="redis_")
    is_tls = all(address.startswith("rediss://") for address in config.redis)
    if (config.redis_ca or config.redis_certificate) and not is_tls:
        # In the clear, although somebody wanted TLS.
        raise BadConfig(f"{config.section}.redis", "must be of rediss:// to be spoken to by TLS")


def is_loopback(host: str) -> bool:
    """Say whether only programs of this machine reach an address."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _refuse_strangers(section: str, name: str, host: str, *, is_allowed: bool) -> None:
    if not is_allowed and not is_loopback(host):
        raise BadConfig(
            f"{section}.{name}",
            f"{host!r} lets in whoever reaches it: set {section}.secret, or take 127.0.0.1, or"
            " allow it with --insecure",
        )


def _ordered(section: str, small: str, least: int, large: str, most: int) -> None:
    """Refuse two settings that are each allowed and make no sense together."""
    if least > most:
        raise BadConfig(f"{section}.{small}", f"is too long for {section}.{large}")
