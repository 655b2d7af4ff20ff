"""Settings of dispatchers and workers: from flags, environment and file, each checked."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.dispatch.config import (
    SECTIONS,
    DispatcherConfig,
    WorkerConfig,
    load_config,
)
from waterclock.model.errors import BadConfig
from waterclock.model.settings import settings_of

FILE = """
dispatch:
  redis: ["redis-1:6379", "redis-2:6379"]
  source_kind: pubsub
  source: sensors
  lease: 3s
  queue_messages_max: 50_000
  is_source_trimmed: true
worker:
  handler: shop.orders:enrich
  credit: 200
"""


def dispatcher(text="", environ=None, flags=None):
    return load_config(DispatcherConfig, yaml_text=text, environ=environ or {}, flags=flags or {})


def worker(text="", environ=None, flags=None):
    return load_config(WorkerConfig, yaml_text=text, environ=environ or {}, flags=flags or {})


def test_without_any_settings_there_are_defaults():
    assert dispatcher() == DispatcherConfig()
    assert worker() == WorkerConfig()
    assert DispatcherConfig().lease_ms == 2_000
    assert DispatcherConfig().deadline_ms == 2_000


def test_one_file_serves_both_programs():
    assert dispatcher(FILE).redis == ("redis-1:6379", "redis-2:6379")
    assert dispatcher(FILE).lease_ms == 3_000
    assert dispatcher(FILE).is_source_trimmed
    assert worker(FILE).handler == "shop.orders:enrich"
    assert worker(FILE).credit == 200


def test_flags_win_over_the_environment_and_that_over_the_file():
    environ = {"WATERCLOCK_DISPATCH__LEASE": "4s", "WATERCLOCK_DISPATCH__SOURCE": "env"}

    config = dispatcher(FILE, environ, {"dispatch.lease": "5s"})

    assert (config.lease_ms, config.source, config.source_kind) == (5_000, "env", "pubsub")


def test_lists_in_the_environment_are_parted_by_commas():
    environ = {
        "WATERCLOCK_WORKER__REDIS": "a:1, redis://b:2/0",
        "WATERCLOCK_DISPATCH__WORKERS": "a:1,b:2",
    }

    assert worker(environ=environ).redis == ("a:1", "redis://b:2/0")
    assert dispatcher(environ=environ).workers == ("a:1", "b:2")


def test_names_that_others_put_into_the_environment_are_left_alone():
    environ = {
        "WATERCLOCK_WORKER_PORT": "tcp://10.0.0.1:80",  # Kubernetes, for a service of that name
        "WATERCLOCK_LOG__FSYNC": "always",  # a node's
        "PATH": "/bin",
    }

    assert worker(environ=environ) == WorkerConfig()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dispatch: {leese: 1}", "dispatch.leese: is not a setting, in the file; did you mean"),
        ("dispatcher:", "dispatcher: is not a setting, in the file; did you mean dispatch"),
        ("dispatch: 1", "dispatch: expected names and values, got '1'"),
        ("dispatch: {lease: 2.5}", "dispatch.lease: expected a time from 300ms to 1m, got '2.5'"),
        ("dispatch: {lease: true}", "dispatch.lease: expected a time"),
        (
            "dispatch: {source_kind: kafka}",
            "dispatch.source_kind: expected stream or pubsub, got 'kafka'",
        ),
        ("dispatch: {redis: []}", "dispatch.redis: expected a list of host:port or URLs"),
        ("dispatch: {heartbeat: 9s}", "dispatch.heartbeat: is too long for"),
        ("dispatch: {bucket: 1d}", "dispatch.bucket: is too long for dispatch.window"),
        ("dispatch: {retry: 1m}", "dispatch.retry: is too long for dispatch.retry_max"),
        ("worker: {credit}: 1", "file: line 1: "),
        ("[dispatch", "file: line 1: "),
        ("dispatch: {port: " + "9" * 5_000 + "}", "dispatch.port: expected a number"),
        ("a: " + "[" * 5_000, "nested deeper than"),
        ("#" * 2_000_000, "file: has 2000000 characters"),
    ],
)
def test_a_wrong_file_is_refused_by_name(text, said):
    with pytest.raises(BadConfig) as caught:
        dispatcher(text)

    assert said in str(caught.value)


def test_a_worker_that_publishes_to_a_node_needs_a_topic():
    with pytest.raises(BadConfig, match=r"worker\.topic"):
        worker(flags={"worker.sink": "waterclock"})

    assert worker(flags={"worker.sink": "waterclock", "worker.topic": "t"}).topic == "t"


def test_a_wrong_setting_is_reported_also_where_another_wins():
    with pytest.raises(BadConfig, match="in the environment"):
        dispatcher(environ={"WATERCLOCK_DISPATCH__LEASE": "soon"}, flags={"dispatch.lease": "2s"})


def test_an_unknown_flag_is_refused():
    with pytest.raises(BadConfig, match="in the flags"):
        worker(flags={"worker.lease": "2s"})


@pytest.mark.parametrize("section", SECTIONS.values(), ids=SECTIONS)
def test_every_default_is_written_as_it_is_read(section):
    for setting in settings_of(section):
        assert setting.kind.read(setting.kind.show(setting.default)) == setting.default


@given(st.text(max_size=200), st.dictionaries(st.text(max_size=20), st.text(max_size=20)))
def test_hostile_files_and_environments_raise_bad_config_only(text, names):
    environ = {f"WATERCLOCK_DISPATCH__{name}": value for name, value in names.items()}
    for given_environ in ({}, environ):
        try:
            dispatcher(text, given_environ)
        except BadConfig:
            continue


def test_the_plan_and_the_lease_take_their_settings_from_it():
    config = DispatcherConfig(deadline_ms=500, deliveries_max=2, lease_ms=1_000)

    assert (config.plan().deadline_ms, config.plan().deliveries_max) == (500, 2)
    assert config.plan().messages_max == config.queue_messages_max
    assert config.lease().renew_ms == 300
