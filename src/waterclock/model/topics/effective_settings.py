"""What holds for a topic, whoever said so: the topic's own settings, the node's, or nobody.

Settings of a topic leave to the node what they do not say (`views.TopicSettings`), and a reader of
them would have to know the node's configuration. Here is one answer, with nothing left open.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from waterclock.model.message import ACKS

if TYPE_CHECKING:  # views have this, and clients have those: they need no configuration of a node
    from waterclock.model.config import Config
    from waterclock.model.sections import DeliveryConfig, RetentionConfig
    from waterclock.model.views import TopicSettings


class EffectiveSettings(msgspec.Struct, frozen=True, rename="camel"):
    """What holds for a topic: what was said about it, else what its node is configured to."""

    partitions: int
    retention_ms: int
    """0: for ever."""
    retention_bytes: int
    """Of each partition; 0: no bound."""
    retention_wait_for_groups: bool
    is_compacted: bool
    retries_max: int
    ack_timeout_ms: int
    replication_factor: int
    """1 where nothing is replicated."""
    acks: str
    """Of a publish that does not say."""


class Retention(NamedTuple):
    """When messages of a topic go. A topic may keep less than a node can be configured to."""

    age_ms: int | None
    bytes: int | None
    wait_for_groups: bool


def retention_of(own: "TopicSettings", node: "RetentionConfig") -> Retention:
    """Return when messages of a topic go."""
    age_ms = node.age_ms if own.retention_ms is None else own.retention_ms or None
    size = node.bytes if own.retention_bytes is None else own.retention_bytes or None
    waits = own.retention_wait_for_groups
    waits = node.wait_for_groups if waits is None else waits
    return Retention(age_ms, size, waits)


def delivery_of(own: "TopicSettings", node: "DeliveryConfig") -> "DeliveryConfig":
    """Return how groups of a topic are served."""
    retries, timeout_ms = own.retries_max, own.ack_timeout_ms
    return replace(
        node,
        max_retries=node.max_retries if retries is None else retries,
        ack_timeout_ms=node.ack_timeout_ms if timeout_ms is None else timeout_ms,
    )


def effective_settings(own: "TopicSettings", config: "Config") -> EffectiveSettings:
    """Return what holds for a topic with these settings on a node of this configuration."""
    retention = retention_of(own, config.retention)
    delivery = delivery_of(own, config.delivery)
    factor = own.replication_factor or config.topics.replication_factor
    return EffectiveSettings(
        partitions=own.partitions,
        retention_ms=retention.age_ms or 0,
        retention_bytes=retention.bytes or 0,
        retention_wait_for_groups=retention.wait_for_groups,
        is_compacted=own.is_compacted,
        retries_max=delivery.max_retries,
        ack_timeout_ms=delivery.ack_timeout_ms,
        replication_factor=factor if config.cluster.is_replicated else 1,
        acks=ACKS[0],
    )
