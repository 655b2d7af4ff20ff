"""The configuration of a node: frozen, checked in one place, each field saying what it trades.
Where settings come from is told in `config_loader.py`.

Sections check what the code needs to work at all. `load_config` is stricter, with the ranges of
`OPERATOR_KINDS`: a test may roll segments of 4 KiB, where a node with such a setting would drown
in files.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, get_type_hints

from waterclock.model.config_loader import build_section, read_settings
from waterclock.model.errors import BadConfig
from waterclock.model.limits import Limits
from waterclock.model.sections import (
    ClusterConfig,
    DedupConfig,
    DeliveryConfig,
    GroupConfig,
    HashRingConfig,
    LogConfig,
    MatchingConfig,
    NodeConfig,
    RetentionConfig,
    ScheduleConfig,
    SecurityConfig,
    ServerConfig,
    StreamsConfig,
    TopicsConfig,
    TracingConfig,
)
from waterclock.model.settings import (
    Section,
    Setting,
    duration,
    settings_of,
    size,
)
from waterclock.model.units import DAY_MS, GIB, KIB, MIB

OTHER_PROGRAMS = ("WATERCLOCK_DISPATCH__", "WATERCLOCK_WORKER__")
"""Settings of programs that may share our environment, and read them themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings of a node; `Config()` is a node of one with the defaults."""

    node: NodeConfig = field(default_factory=NodeConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    matching: MatchingConfig = field(default_factory=MatchingConfig)
    streams: StreamsConfig = field(default_factory=StreamsConfig)
    hash_ring: HashRingConfig = field(default_factory=HashRingConfig)
    log: LogConfig = field(default_factory=LogConfig)
    dedup: DedupConfig = field(default_factory=DedupConfig)
    retention: RetentionConfig = field(default_factory=RetentionConfig)
    topics: TopicsConfig = field(default_factory=TopicsConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    delivery: DeliveryConfig = field(default_factory=DeliveryConfig)
    groups: GroupConfig = field(default_factory=GroupConfig)
    security: SecurityConfig = field(default_factory=SecurityConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    tracing: TracingConfig = field(default_factory=TracingConfig)
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
    values = read_settings(
        SETTINGS,
        yaml_text=yaml_text,
        environ=environ,
        flags=flags,
        sections=SECTIONS,
        other_prefixes=OTHER_PROGRAMS,
    )
    sections: dict[str, Any] = {
        name: build_section(section, values) for name, section in SECTIONS.items()
    }
    config = Config(**sections)
    _check_together(config)
    return config


def _check_together(config: Config) -> None:
    """Refuse settings that are each allowed and make no sense together."""
    if config.matching.default_timeout_ms > config.matching.max_timeout_ms:
        raise BadConfig("matching.default_timeout", "is longer than matching.max_timeout")
    if config.limits.message_bytes_max > config.limits.batch_bytes_max:
        raise BadConfig("limits.message_bytes_max", "is more than limits.batch_bytes_max")
    taken: dict[int, str] = {}
    for name in ("gossip_port", "peer_port", "http_port", "grpc_port"):
        port = getattr(config.cluster, name)
        if port != 0 and port in taken:
            raise BadConfig(f"cluster.{name}", f"is {port}, as is cluster.{taken[port]}")
        taken[port] = name
