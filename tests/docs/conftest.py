"""What the tests of the pages share: one stranger, with everything installed."""

from collections.abc import Iterator

import pytest

from benchmarks.peers.cache import Absent
from tests.burrow.kafka.kafka_broker import KafkaBroker
from tests.dispatch.redis_servers import programs, single
from tests.docs.reading import Stranger, stranger


@pytest.fixture(scope="session")
def reader(broker: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stranger]:
    """Return somebody who reads pages."""
    for topic in ("orders", "orders.dlq", "invoices", "invoices.dlq", "payments", "receipts"):
        broker.create(topic)
    folder = tmp_path_factory.mktemp("docs")
    try:
        its = programs()
    except Absent as reason:
        pytest.skip(f"offline: {reason}")
    with (
        single(folder / "redis") as redis,
        stranger(
            folder, kafka=str(broker.settings["bootstrap.servers"]), redis=redis.address, its=its
        ) as somebody,
    ):
        yield somebody
