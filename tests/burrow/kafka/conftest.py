"""What the tests on a real Kafka share: one broker, as it takes seconds to start."""

import itertools
from collections.abc import Iterator

import pytest

from benchmarks.peers.cache import Absent
from tests.burrow.kafka.kafka_broker import KafkaBroker, running

_numbers = itertools.count()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """Return a broker that runs; make topics and groups of your own."""
    try:
        with running(tmp_path_factory.mktemp("kafka")) as broker:
            yield broker
    except Absent as reason:
        pytest.skip(f"offline: {reason}")


@pytest.fixture
def topic() -> str:
    """Return a name no other test uses."""
    return f"topic-{next(_numbers)}"
