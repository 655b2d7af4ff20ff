"""The configuration of a node: frozen, checked in one place, each field saying what it trades.

A setting is looked up in four places, and the first that has it wins:

    the flags          {"log.fsync": "always"}          by dotted name
    the environment    WATERCLOCK_LOG__FSYNC=always     two underscores go one level down
    the file           log: {fsync: always}             YAML
    its default        below

Every place is checked, also where another wins: a mistake in the file is reported today, not on
the day the flag is dropped. Nothing here reads a file or the environment; `load_config` is handed
what the shell read, and all it ever raises is BadConfig.

Sections check what the code needs to work at all. `load_config` is stricter, with the ranges of
`OPERATOR_KINDS`: a test may roll segments of 4 KiB, where a node with such a setting would drown
in files.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, Literal, get_args, get_type_hints

from waterclock.model.errors import BadConfig
from waterclock.model.limits import Limits
from waterclock.model.settings import (
    Addresses,
    Choice,
    Maybe,
    Section,
    Setting,
    Text,
    Toggle,
    count,
    duration,
    settings_of,
    shown,
    size,
)
from waterclock.model.strict_yaml import KEY_CHARS_MAX, read_yaml
from waterclock.model.units import DAY_MS, GIB, KIB, MIB, MINUTE_MS, SECOND_MS, TIB

Fsync = Literal["group", "always", "interval"]
Compression = Literal["none", "lz4", "zstd"]

ENVIRONMENT_PREFIX = "WATERCLOCK_"

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig(Section):
    """How this node meets others. Port 0 takes any free one, for tests."""

    section: ClassVar[str] = "cluster"

    name: Annotated[str, Text(255)] = "waterclock"
    """Nodes of other clusters are turned away, so a wrong address cannot merge two clusters."""

    gossip_port: Annotated[int, _PORT] = 7946
    """UDP and TCP, between nodes. The same on all nodes keeps firewalls simple."""

    http_port: Annotated[int, _PORT] = 8080
    """Streams, JSON, metrics, health and the console."""

    grpc_port: Annotated[int, _PORT] = 9000
    """Publish, subscribe and fetch: the fast way in."""

    bootstrap_nodes: Annotated[tuple[str, ...], Addresses()] = ()
    """Gossip addresses to join by. Two or three suffice; more only helps when those are all down
    at once. Empty starts a cluster of one."""


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
class HashRingConfig(Section):
    """Who owns a stream."""

    section: ClassVar[str] = "hash_ring"

    virtual_nodes: Annotated[int, count(1, 10_000)] = 200
    """Points per node on the ring. More spreads streams more evenly (the deviation is about
    1/sqrt(points), 7 % at 200) and makes each membership change cost more. All nodes must agree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig(Section):
    """How a partition keeps its log on disk."""

    section: ClassVar[str] = "log"

    segment_bytes: Annotated[int, size(4 * KIB, 1 * GIB)] = 512 * MIB
    """A segment is closed at this size. Larger means fewer files; retention and compaction work
    on whole closed segments, so it also frees space later and in bigger steps."""

    segment_age_ms: Annotated[int, duration(1 * SECOND_MS, 3_650 * DAY_MS)] = 7 * DAY_MS
    """A segment is closed at this age, however small, so that quiet topics age out too. Shorter
    frees their space sooner and leaves more small files."""

    preallocate_bytes: Annotated[int, size(0, 1 * GIB)] = 32 * MIB
    """Disk reserved ahead of the log's end. More finds a full disk earlier and makes fsync
    cheaper; an idle partition still holds that much. 0 reserves nothing."""

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
    Each takes 8 bytes of index, on disk and in memory."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings of a node; `Config()` is a node of one with the defaults."""

    node: NodeConfig = field(default_factory=NodeConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    matching: MatchingConfig = field(default_factory=MatchingConfig)
    hash_ring: HashRingConfig = field(default_factory=HashRingConfig)
    log: LogConfig = field(default_factory=LogConfig)
    dedup: DedupConfig = field(default_factory=DedupConfig)
    retention: RetentionConfig = field(default_factory=RetentionConfig)
    limits: Limits = field(default_factory=Limits)


SECTIONS: Mapping[str, type[Section]] = get_type_hints(Config)

OPERATOR_KINDS = {
    # Smaller drowns in files, larger in recovery time.
    "log.segment_bytes": size(64 * MIB, 1 * GIB),
    # Shorter than a weekend's outage is no promise, longer is an index nobody can afford.
    "dedup.window": duration(1 * DAY_MS, 30 * DAY_MS),
    # The ids we make ourselves have 16 bytes.
    "limits.message_id_bytes_max": size(16, 64 * KIB),
}
"""What an operator may ask for, where that is less than what the code can do."""

SETTINGS: Mapping[str, Setting] = {
    setting.path: replace(setting, kind=OPERATOR_KINDS.get(setting.path, setting.kind))
    for section in SECTIONS.values()
    for setting in settings_of(section)
}
"""Every setting an operator has, by its dotted path."""


def load_config(
    *, yaml_text: str | None, environ: Mapping[str, str], flags: Mapping[str, object]
) -> Config:
    """Return the checked configuration; flags win over the environment, that over the file.

    Hand over all of the environment: names of other programs, and those of ours without two
    underscores in a row, are left alone. Raises BadConfig, naming the setting.
    """
    sources = (
        ("file", _from_file(yaml_text or "")),
        ("environment", _from_environ(environ)),
        ("flags", flags),
    )
    values = {
        path: _setting(path, source=source).read(raw, source=source)
        for source, given in sources
        for path, raw in given.items()
    }
    config = _build(values)
    _check_together(config)
    return config


def _from_file(text: str) -> dict[str, object]:
    document = read_yaml(text)
    given: dict[str, object] = {}
    for name, body in _mapping("file", document).items():
        if name not in SECTIONS:
            raise _unknown(name, SECTIONS, source="file")
        for key, raw in _mapping(name, body).items():
            given[f"{name}.{key}"] = raw
    return given


def _mapping(path: str, node: object) -> dict[str, object]:
    # A section whose lines are all commented out is empty, not wrong.
    if node is None:
        return {}
    if not isinstance(node, dict):
        raise BadConfig(path, f"expected names and values, got {shown(node)}")
    return node


def _from_environ(environ: Mapping[str, str]) -> dict[str, object]:
    # Without the two underscores it is not a setting: Kubernetes gives every container names
    # like WATERCLOCK_PORT and WATERCLOCK_SERVICE_HOST if a service is called waterclock.
    names = (name for name in environ if name.startswith(ENVIRONMENT_PREFIX) and "__" in name)
    return {_path_of(name): environ[name] for name in names}


def _path_of(name: str) -> str:
    path = name.removeprefix(ENVIRONMENT_PREFIX).replace("__", ".")
    return path.lower() if path.isupper() else path


def _setting(path: str, *, source: str) -> Setting:
    if path not in SETTINGS:
        raise _unknown(path, SETTINGS, source=source)
    return SETTINGS[path]


def _unknown(name: str, known: Iterable[str], *, source: str) -> BadConfig:
    readable = name if name and name.isprintable() else ascii(name)
    near = get_close_matches(name[:KEY_CHARS_MAX].lower(), known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return BadConfig(readable[:KEY_CHARS_MAX], f"is not a setting, in the {source}{hint}")


def _build(values: Mapping[str, object]) -> Config:
    sections: dict[str, Any] = {
        name: section(
            **{
                setting.attribute: values[setting.path]
                for setting in settings_of(section)
                if setting.path in values
            }
        )
        for name, section in SECTIONS.items()
    }
    return Config(**sections)


def _check_together(config: Config) -> None:
    """Refuse settings that are each allowed and make no sense together."""
    if config.matching.default_timeout_ms > config.matching.max_timeout_ms:
        raise BadConfig("matching.default_timeout", "is longer than matching.max_timeout")
    if config.limits.message_bytes_max > config.limits.batch_bytes_max:
        raise BadConfig("limits.message_bytes_max", "is more than limits.batch_bytes_max")
    taken: dict[int, str] = {}
    for name in ("gossip_port", "http_port", "grpc_port"):
        port = getattr(config.cluster, name)
        if port != 0 and port in taken:
            raise BadConfig(f"cluster.{name}", f"is {port}, as is cluster.{taken[port]}")
        taken[port] = name
