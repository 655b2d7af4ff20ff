"""The sections of a node's configuration, each field saying what it trades.

Frozen, with the range of every value in its type; `config.py` reads them from flags, environment
and file. A section checks what the code needs to work at all.
"""

from waterclock.model.sections.cluster import (
    ClusterConfig,
    HashRingConfig,
    NodeConfig,
    Preset,
)
from waterclock.model.sections.log import (
    Compression,
    DedupConfig,
    Fsync,
    LogConfig,
    LogFormat,
    LogLevel,
    RetentionConfig,
)
from waterclock.model.sections.server import (
    SecurityConfig,
    ServerConfig,
    TracingConfig,
)
from waterclock.model.sections.streams import (
    MatchingConfig,
    StreamsConfig,
)
from waterclock.model.sections.topics import (
    DeliveryConfig,
    GroupConfig,
    ScheduleConfig,
    TopicsConfig,
)

__all__ = [
    "ClusterConfig",
    "Compression",
    "DedupConfig",
    "DeliveryConfig",
    "Fsync",
    "GroupConfig",
    "HashRingConfig",
    "LogConfig",
    "LogFormat",
    "LogLevel",
    "MatchingConfig",
    "NodeConfig",
    "Preset",
    "RetentionConfig",
    "ScheduleConfig",
    "SecurityConfig",
    "ServerConfig",
    "StreamsConfig",
    "TopicsConfig",
    "TracingConfig",
]
