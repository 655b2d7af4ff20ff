"""What a round runs on: a real broker, or the mock cluster inside librdkafka.

The mock does what one real broker cannot: move the coordinator of a group, and answer commits with
whatever error is wanted. Commits to it are sampled, those to the real one are all known.
"""

import ctypes
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import confluent_kafka
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.burrow.chaos.commit_log import CommitLog
from tests.burrow.chaos.history import CommitSeen
from tests.burrow.chaos.plan import PARTITIONS, SESSION_MS, StepKind
from tests.burrow.kafka.kafka_broker import KafkaBroker

SAMPLE_S = 0.1
OFFSET_COMMIT = 8
"""The number of the request in Kafka's protocol."""
COMMIT_CODES = (7, 12, 14, 16, 25)
"""REQUEST_TIMED_OUT, OFFSET_METADATA_TOO_LARGE, COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR,
UNKNOWN_MEMBER_ID."""
CLASSIC_CODES = (22, 27)
"""ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS."""
EPOCH_CODES = (113,)
"""STALE_MEMBER_EPOCH, which stands for both in KIP-848: the others are never answered there, and
the client would give up its partitions for good."""
MOCK_BROKERS = 3
Settings = Mapping[str, str | int | float | bool]


class Cluster(Protocol):
    """Where a round takes place."""

    settings: Settings

    def create(self, topic: str, partitions: int) -> None:
        """Make a topic."""
        ...

    def watch(self, topic: str, group: str) -> None:
        """Begin to look at the commits of a group."""
        ...

    def perform(self, act: StepKind, group: str, detail: int) -> None:
        """Do something to the cluster; returns when it is over."""
        ...

    def calm(self) -> None:
        """Let nothing of what was done go on."""
        ...

    def commits(self, group: str) -> list[CommitSeen]:
        """Return what was seen since `watch`."""
        ...


class RealCluster:
    """One broker."""

    def __init__(self, broker: KafkaBroker) -> None:
        self._broker = broker
        self._log = CommitLog(broker.settings)
        self.settings: Settings = broker.settings

    def create(self, topic: str, partitions: int) -> None:
        self._broker.create(topic, partitions)

    def watch(self, topic: str, group: str) -> None:
        """Nothing to do: the broker writes them down."""

    def perform(self, act: StepKind, group: str, detail: int) -> None:
        assert act in (StepKind.RESTART, StepKind.CRASH)
        self._broker.restart(is_crash=act is StepKind.CRASH)

    def calm(self) -> None:
        """Nothing to do: it runs again."""

    def commits(self, group: str) -> list[CommitSeen]:
        return self._log.more(group)


class MockCluster:
    """Three brokers inside this process."""

    def __init__(self, assignor: str) -> None:
        self._codes = COMMIT_CODES + (EPOCH_CODES if assignor == "kip848" else CLASSIC_CODES)
        own = {"bootstrap.servers": "unused", "log_level": 2}
        self._producer = Producer({**own, "test.mock.num.brokers": MOCK_BROKERS})
        nodes = self._producer.list_topics(timeout=10).brokers.values()
        servers = ",".join(f"{node.host}:{node.port}" for node in nodes)
        self.settings: Settings = {"bootstrap.servers": servers, "log_level": 2}
        self._calls = _library()
        # The client is the first field of the object, behind what every object has.
        client = ctypes.c_void_p.from_address(id(self._producer) + object.__basicsize__)
        self._calls.rd_kafka_handle_mock_cluster.restype = ctypes.c_void_p
        self._handle = ctypes.c_void_p(self._calls.rd_kafka_handle_mock_cluster(client))
        assert self._handle.value, "the client has no mock cluster"
        self._calls.rd_kafka_mock_group_initial_rebalance_delay_ms(self._handle, 200)
        self._calls.rd_kafka_mock_set_group_consumer_session_timeout_ms(self._handle, SESSION_MS)
        self._calls.rd_kafka_mock_set_group_consumer_heartbeat_interval_ms(self._handle, 500)
        self._seen: list[CommitSeen] = []
        self._is_over = threading.Event()
        self._watcher: threading.Thread | None = None

    def create(self, topic: str, partitions: int) -> None:
        code = self._calls.rd_kafka_mock_topic_create(self._handle, topic.encode(), partitions, 1)
        assert code == 0

    def perform(self, act: StepKind, group: str, detail: int) -> None:
        if act is StepKind.COORDINATOR:
            place = ctypes.c_int32(1 + detail % MOCK_BROKERS)
            code = self._calls.rd_kafka_mock_coordinator_set(
                self._handle, b"group", group.encode(), place
            )
            assert code == 0
            return
        assert act is StepKind.COMMIT_ERRORS
        codes = [self._codes[(detail + at) % len(self._codes)] for at in range(1 + detail % 3)]
        errors = (ctypes.c_int * len(codes))(*codes)
        self._calls.rd_kafka_mock_push_request_errors_array(
            self._handle, ctypes.c_int16(OFFSET_COMMIT), ctypes.c_size_t(len(codes)), errors
        )

    def calm(self) -> None:
        request = ctypes.c_int16(OFFSET_COMMIT)
        self._calls.rd_kafka_mock_clear_request_errors(self._handle, request)

    def watch(self, topic: str, group: str) -> None:
        self._seen.clear()
        self._is_over.clear()
        self._watcher = threading.Thread(target=self._watch, args=(topic, group), daemon=True)
        self._watcher.start()

    def _watch(self, topic: str, group: str) -> None:
        consumer = Consumer({**self.settings, "group.id": group})
        places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        is_last = False
        while not is_last:
            is_last = self._is_over.wait(SAMPLE_S)
            for place in consumer.committed(places, timeout=30):
                if place.offset >= 0:
                    at_ns = time.monotonic_ns()
                    seen = (place.partition, place.offset, place.metadata or "", at_ns)
                    self._seen.append(CommitSeen(*seen))
        consumer.close()

    def commits(self, group: str) -> list[CommitSeen]:
        self._is_over.set()
        assert self._watcher is not None
        self._watcher.join()
        return list(self._seen)


def _library() -> Any:
    """Return the library the client uses: the very one, for it holds the cluster."""
    folder = Path(confluent_kafka.__file__).parent.parent
    (path,) = [
        *folder.glob("confluent_kafka.libs/librdkafka-*.so*"),
        *folder.glob("confluent_kafka.libs/librdkafka.so*"),
    ]
    return ctypes.CDLL(str(path))
