"""The configuration of a node: frozen, checked in one place, each field saying what it trades.

A setting is looked up in four places, and the first that has it wins:

    the flags          {"log.fsync": "always"}          by dotted name
    the environment    WATERCLOCK_LOG__FSYNC=always     two underscores go one level down
    the file           log: {fsync: always}             YAML
    its default        `sections.py`

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
from typing import Any, get_type_hints

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
    ServerConfig,
    StreamsConfig,
    TopicsConfig,
)
from waterclock.model.settings import (
    Section,
    Setting,
    duration,
    settings_of,
    shown,
    size,
)
from waterclock.model.strict_yaml import KEY_CHARS_MAX, read_yaml
from waterclock.model.units import DAY_MS, GIB, KIB, MIB

ENVIRONMENT_PREFIX = "WATERCLOCK_"
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
    server: ServerConfig = field(default_factory=ServerConfig)
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
    names = (
        name
        for name in environ
        if name.startswith(ENVIRONMENT_PREFIX)
        and "__" in name
        and not name.startswith(OTHER_PROGRAMS)
    )
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
