"""The parallel consumer: many workers on one partition, commits in order, and nothing lost.

What stands in `__all__` is all there is to rely on. Names are loaded when first used: whoever reads
from Waterclock needs no Kafka client (`pip install waterclock[kafka]`), and the other way round.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from waterclock.model.extras import need

if TYPE_CHECKING:
    from waterclock.burrow.core.failures import Failed, PermanentError
    from waterclock.burrow.core.records import Assignment, Commit, Record, TopicPartition
    from waterclock.burrow.kafka.dead_letters import KafkaDeadLetters
    from waterclock.burrow.kafka.source import KafkaSource
    from waterclock.burrow.kafka.transactions import KafkaTransactions
    from waterclock.burrow.runtime.dead_letters import DeadLetters
    from waterclock.burrow.runtime.decorator import Consumer, consumer
    from waterclock.burrow.runtime.metrics import Health, PoolMetrics
    from waterclock.burrow.runtime.pool import Pool
    from waterclock.burrow.runtime.source import Output, Owner, PoolHalted, Source, SourceFailed
    from waterclock.burrow.runtime.tracing import (
        Trace,
        current_record,
        current_trace,
        trace_headers,
    )
    from waterclock.burrow.runtime.waterclock_source import LoggedRecord, WaterclockSource

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
    "runtime.tracing": ["Trace", "current_record", "current_trace", "trace_headers"],
    "runtime.dead_letters": ["DeadLetters"],
    "runtime.decorator": ["Consumer", "consumer"],
    "core.failures": ["Failed", "PermanentError"],
    "kafka.dead_letters": ["KafkaDeadLetters"],
    "kafka.source": ["KafkaSource"],
    "kafka.transactions": ["KafkaTransactions"],
    "runtime.metrics": ["Health", "PoolMetrics"],
    "runtime.pool": ["Pool"],
    "core.records": ["Assignment", "Commit", "Record", "TopicPartition"],
    "runtime.source": ["Output", "Owner", "PoolHalted", "Source", "SourceFailed"],
    "runtime.waterclock_source": ["LoggedRecord", "WaterclockSource"],
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
