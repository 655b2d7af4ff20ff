"""Every commit a broker has taken: the topic in which it keeps them, read as it stands.

Nothing is sampled. Kafka keeps commits as messages of `__consumer_offsets`; their form is part of
its storage format (the schemas OffsetCommitKey and OffsetCommitValue of its sources).
"""

import struct
import time
import uuid
from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.burrow.chaos.history import CommitSeen

TOPIC = "__consumer_offsets"
OFFSET_KEYS = (0, 1)
"""Versions of keys that are of commits; others are of groups."""


class Fields:
    """Reads what Kafka wrote."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return int(value)

    def text(self) -> str:
        size = self.number(">h")
        self._at += size
        return self._data[self._at - size : self._at].decode()

    def compact_text(self) -> str:
        size, shift = 0, 0
        while True:
            byte = self.number(">B")
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        self._at += size - 1
        return self._data[self._at - size + 1 : self._at].decode()


def parsed(key: bytes, value: bytes) -> tuple[str, str, int, int, str, int] | None:
    """Return group, topic, partition, offset, metadata and wall clock (ms) of a commit."""
    keys = Fields(key)
    if keys.number(">h") not in OFFSET_KEYS:
        return None
    group, topic, partition = keys.text(), keys.text(), keys.number(">i")
    values = Fields(value)
    version = values.number(">h")
    offset = values.number(">q")
    if version >= 3:
        values.number(">i")  # leader epoch
    # The Python client sends the zero that ends a string in C, and hides it when it reads.
    metadata = (values.compact_text() if version >= 4 else values.text()).removesuffix("\0")
    return group, topic, partition, offset, metadata, values.number(">q")


class CommitLog:
    """Reads on where it last ended."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        self._settings = dict(settings)
        self._position = 0

    def more(self, group: str) -> list[CommitSeen]:
        """Return the commits of a group since the last call."""
        wall_to_monotonic_ns = time.monotonic_ns() - time.time_ns()
        more = {"group.id": uuid.uuid4().hex, "enable.partition.eof": True}
        consumer = Consumer({**self._settings, **more, "fetch.wait.max.ms": 50})
        consumer.assign([TopicPartition(TOPIC, 0, self._position)])
        found: list[CommitSeen] = []
        is_over = False
        while not is_over:
            for message in consumer.consume(500, 0.1):
                error = message.error()
                if error is not None:
                    is_over = is_over or error.code() == KafkaError._PARTITION_EOF
                    continue
                self._position = (message.offset() or 0) + 1
                key, value = message.key(), message.value()
                if not (isinstance(key, bytes) and isinstance(value, bytes)):
                    continue  # a group that is forgotten
                seen = parsed(key, value)
                if seen is not None and seen[0] == group:
                    _, _, partition, offset, metadata, wall_ms = seen
                    at_ns = wall_ms * 1_000_000 + wall_to_monotonic_ns
                    found.append(CommitSeen(partition, offset, metadata, at_ns))
        consumer.close()
        return found
