"""Parallel consumption with ordered commits: many workers on one partition, and nothing lost.

What stands in `__all__` is all there is to rely on. Names are loaded when first used: whoever reads
from Waterclock needs no Kafka client (`pip install waterclock[kafka]`), and the other way round.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from waterclock.model.extras import need

if TYPE_CHECKING:
    from waterclock.burrow.context import Trace, current_record, current_trace, trace_headers
    from waterclock.burrow.dead_letters import DeadLetters
    from waterclock.burrow.decorator import Consumer, consumer
    from waterclock.burrow.failures import Failed, PermanentError
    from waterclock.burrow.health import Health
    from waterclock.burrow.kafka_dead_letters import KafkaDeadLetters
    from waterclock.burrow.kafka_source import KafkaSource
    from waterclock.burrow.kafka_transactions import KafkaTransactions
    from waterclock.burrow.metrics import PoolMetrics
    from waterclock.burrow.pool import Pool
    from waterclock.burrow.records import Assignment, Commit, Record, TopicPartition
    from waterclock.burrow.source import Output, Owner, PoolHalted, Source, SourceFailed
    from waterclock.burrow.waterclock_source import LoggedRecord, WaterclockSource

__all__ = [
    "Assignment",
    "Commit",
    "Consumer",
    "DeadLetters",
    "Failed",
    "Health",
    "KafkaDeadLetters",
    "KafkaSource",
    "KafkaTransactions",
    "LoggedRecord",
    "Output",
    "Owner",
    "PermanentError",
    "Pool",
    "PoolHalted",
    "PoolMetrics",
    "Record",
    "Source",
    "SourceFailed",
    "TopicPartition",
    "Trace",
    "WaterclockSource",
    "consumer",
    "current_record",
    "current_trace",
    "trace_headers",
]

_NAMES = {
    "context": ["Trace", "current_record", "current_trace", "trace_headers"],
    "dead_letters": ["DeadLetters"],
    "decorator": ["Consumer", "consumer"],
    "failures": ["Failed", "PermanentError"],
    "health": ["Health"],
    "kafka_dead_letters": ["KafkaDeadLetters"],
    "kafka_source": ["KafkaSource"],
    "kafka_transactions": ["KafkaTransactions"],
    "metrics": ["PoolMetrics"],
    "pool": ["Pool"],
    "records": ["Assignment", "Commit", "Record", "TopicPartition"],
    "source": ["Output", "Owner", "PoolHalted", "Source", "SourceFailed"],
    "waterclock_source": ["LoggedRecord", "WaterclockSource"],
}
_HOMES = {name: f"{__name__}.{home}" for home, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> object:
    """Load a public name from its home (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if "kafka" in _HOMES[name]:
        need("confluent_kafka", "kafka")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
