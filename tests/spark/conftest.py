"""What the tests of the pipeline share: one Spark session, and nodes beside it.

A session takes ten seconds to start and a gigabyte, so there is one for all tests of a run; the
scheduler in `tests/conftest.py` gives them all to one worker.
"""

import itertools
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.needs import claim
from tests.spark.clusters import Cluster, standalone
from tests.spark.spark_node import SparkNode, running
from waterclock.spark.session import session

_numbers = itertools.count()
JVM_END_S_MAX = 60.0


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """Return the one session: two cores, three tries a task, waterclock registered."""
    from pyspark.core.context import SparkContext

    claim("spark")
    # So short a life is over before well compiled code has paid for itself.
    # Queries are planned as those of large jobs are.
    adaptive = {"spark.sql.adaptive.enabled": "true"}
    spark = session(master="local[2]", app="waterclock-tests", settings=adaptive, is_short=True)
    yield spark
    spark.stop()
    # The JVM outlives its session, to serve the next one. There is none: end it.
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(JVM_END_S_MAX)
    SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture(autouse=True)
def plain_log(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Keep pyspark's form of a log away from other tests of this worker.

    Its loggers make every handler write JSON that is added to them; and pytest adds its own to all
    loggers that do not propagate, for each test anew.
    """
    from pyspark.logger import PySparkLogger

    yield
    for logger in list(logging.root.manager.loggerDict.values()):
        if isinstance(logger, PySparkLogger):
            logger.propagate = True
    caplog.handler.setFormatter(request.config.pluginmanager.getplugin("logging-plugin").formatter)


@pytest.fixture(scope="session")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkNode]:
    """Return the one node that tests share which neither kill it nor change its settings."""
    with running(tmp_path_factory.mktemp("spark-node")) as node:
        yield node


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return the one cluster: two workers of one core, so it does one application at a time."""
    with standalone(tmp_path_factory.mktemp("cluster"), workers=2) as cluster:
        yield cluster


@pytest.fixture
def node(shared_node: SparkNode) -> SparkNode:
    """Return a node that runs. Use `topic` for a topic of the test's own; do not kill it."""
    return shared_node


@pytest.fixture
def own_node(tmp_path: Path) -> Iterator[SparkNode]:
    """Return a node of the test's own, to be killed and started again."""
    with running(tmp_path) as node:
        yield node


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """Return a name for a topic that no other test uses."""
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())[:40].strip("-")
    return f"{words}-{next(_numbers)}"


@pytest.fixture
def read(spark: Any, node: SparkNode) -> Callable[..., Any]:
    """Return a function that loads a topic of the shared node: `read(topic, view="all")`."""

    def load(topic: str, *, schema: str | None = None, **options: object) -> Any:
        reader = spark.read.format("waterclock").option("servers", node.servers)
        reader = reader.option("topic", topic).options(**options)
        return (reader.schema(schema) if schema else reader).load()

    return load
