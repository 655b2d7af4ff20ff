"""The dashboard and the alerts of dispatchers and workers: whatever they ask for is shown."""

from pathlib import Path

import pytest

from tests.kit.monitoring import check_board, family_of, rules, samples_of, shown, watched
from tests.kit.promql import Known
from waterclock.dispatch.config import DispatcherConfig, WorkerConfig
from waterclock.dispatch.dispatcher import Dispatcher
from waterclock.dispatch.process import as_it_is, dispatcher_metrics, worker_metrics
from waterclock.dispatch.redis.client import RedisClient
from waterclock.dispatch.sinks.redis import RedisSink
from waterclock.dispatch.worker.handlers import handler_of
from waterclock.dispatch.worker.worker import Worker

PAGE = Path(__file__).parents[2] / "docs" / "observability.md"
NAME = "dispatch"


@pytest.fixture
def known() -> Known:
    """What both programs show; they have not begun."""
    redis = RedisClient(["127.0.0.1:1"])
    dispatcher = Dispatcher(DispatcherConfig(), redis)
    config = WorkerConfig()
    sink = RedisSink(
        redis, output=config.output, prefix=config.prefix, streams=config.streams,
        bucket_ms=config.bucket_ms, window_ms=config.window_ms, length_max=config.length_max,
        wait_replicas=config.wait_replicas, wait_ms=config.wait_ms,
    )  # fmt: skip
    worker = Worker(config, handler_of(as_it_is), sink, redis)
    both = [*dispatcher_metrics(dispatcher).collect(), *worker_metrics(worker).collect()]
    return Known(labels=samples_of(both))


def test_the_dashboard_is_one_that_grafana_imports():
    check_board(NAME, {"job"})


def test_the_dashboard_shows_every_metric_there_is_and_no_other(known):
    there = {family_of(name) for name in known.labels}

    assert {family_of(name) for name in shown(NAME, known)} == there


def test_alerts_ask_for_what_is_shown(known):
    assert watched(NAME, known)
    assert {rule["labels"]["severity"] for rule in rules(NAME)} == {"page", "ticket"}


def test_the_page_names_both_files_and_every_alert():
    page = PAGE.read_text()

    assert [rule["alert"] for rule in rules(NAME) if rule["alert"] not in page] == []
    assert f"dashboards/{NAME}.json" in page
    assert f"alerts/{NAME}.yml" in page
