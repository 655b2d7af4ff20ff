"""Streams: how long requests wait, what is kept."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from waterclock.model.settings import (
    Section,
    Text,
    count,
    duration,
    size,
)
from waterclock.model.units import (
    DAY_MS,
    GIB,
    HOUR_MS,
    MIB,
    MINUTE_MS,
    SECOND_MS,
    TIB,
)


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
    """`log:` is this node's disk, or with `cluster.etcd` those of several; else the URL of a
    database: `postgresql://user:password@host/db`."""
