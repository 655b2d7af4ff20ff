"""What a test needs besides this package: one marker each, given by folder, fixture or name.

`pytest -m "not kafka"` leaves out what needs a Kafka; `make check` runs what needs nothing. Rules
stand here and not on the tests, so a new test of a folder has its marker. Whatever starts a server
says so with `claim`, which fails a test that lacks the marker: no rule can be forgotten.
"""

import re
from collections.abc import Collection

NEEDS = {
    "spark": "a JVM with Spark in it",
    "kafka": "a Kafka broker",
    "redis": "a Redis server",
    "serf": "agents of Serf",
    "etcd": "members of etcd",
    "databases": "the server of a store: Postgres, MySQL, MongoDB, DynamoDB or Cassandra",
    "browser": "Chromium, without a screen",
    "deploy": "root, to run the steps of an image",
    "helm": "Helm, which takes minutes to build on a machine that never had it",
    "chaos": "time: processes are killed, stopped, cut off, or out of disk while they work",
    "plants": "time: bugs are planted, and each must be found",
    "benches": "time: a benchmark runs, however shortly",
    "explores": "nothing, but shows more with more examples: `make sim` has all of them",
}

BY_FIXTURE = {
    "spark": {"spark"},
    "broker": {"kafka"},
    "reader": {"kafka", "redis"},
    "own_node": {"chaos"},
}

BY_PLACE = {
    r"tests/browser/": {"browser"},
    r"tests/client/test_token_page\.py": {"browser"},
    r"tests/spark/test_report_page\.py::test_the_page_fits": {"browser"},
    r"tests/burrow/kafka/": {"kafka"},
    r"tests/burrow/kafka/test_(chaos|exactly_once|stuck)\.py": {"chaos"},
    r"tests/spark/test_(cluster|connect|killed_executor)\.py": {"spark"},
    r"tests/spark/test_(exactly_once|killed_executor)\.py": {"chaos"},
    r"tests/spark/test_session\.py::test_(a_jvm|no_hook)": {"spark"},
    r"tests/cli/test_pipeline\.py::test_a_real_job": {"spark"},
    r"tests/demos/test_node\.py::test_the_demo_runs": {"chaos"},
    r"tests/cluster/test_serf\.py": {"serf"},
    r"tests/cluster/chaos/test_network\.py::test_nodes_are": {"chaos"},
    r"tests/cluster/coordinator/test_etcd\.py": {"etcd"},
    r"tests/cli/test_local_etcd\.py::test_debians": {"etcd"},
    r"tests/cluster/coordinator/\w+\.py::\w+\[etcd\b": {"etcd"},
    r"tests/dispatch/test_(slot_migration|taking_over|failures)\.py": {"redis", "chaos"},
    r"tests/dispatch/chaos/test_rounds\.py": {"redis", "chaos"},
    r"tests/dispatch/test_(dispatcher|redis_link)\.py": {"redis"},
    r"tests/dispatch/test_sinks\.py::test_a_server_that_is_away": {"redis"},
    r"tests/deploy/": {"deploy"},
    r"tests/deploy/test_chart\.py::test_(?!every_section|the_chart_is_of)": {"helm"},
    r"tests/deploy/test_compose\.py::test_a_message_of_redis": {"redis"},
    r"tests/benchmarks/test_smoke\.py::": {"benches"},
    r"tests/benchmarks/test_smoke\.py::\w+\[dispatch\]": {"redis"},
    r"tests/stores/\w+\.py::\w+\[(postgres|mysql|mongodb|dynamodb|cassandra)\b": {"databases"},
    r"tests/stores/test_(postgres|mysql|mongodb|dynamodb|cassandra)_(store|tls)\.py": {"databases"},
    r"tests/integration/test_(?!history|hostile)": {"chaos"},
    r"tests/backup/test_(cut_short|rounds)\.py": {"chaos"},
    r".*::test_\w*planted_bug": {"plants"},
    r".*histories\.py::(?!.*planted)|tests/schedule/test_hot_timers\.py::test_timers_agree|"
    r".*::Test\w+::runTest|tests/dispatch/test_simulation\.py::test_a_story_keeps|"
    r"tests/burrow/test_simulation\.py::test_every_promise|"
    r"tests/spark/test_exactly_once\.py::test_a_driver_killed|"
    r"tests/spark/test_killed_executor\.py::test_an_executor_killed|"
    r"tests/spark/test_compact\.py::test_going_on_from_a_snapshot": {"explores"},
}
"""By the beginning of a test's id."""

_claimable: Collection[str] | None = None
"""What the test that runs now has markers for; None while no test runs."""


def needs_of(nodeid: str, fixtures: Collection[str]) -> set[str]:
    """Return the markers of a test."""
    found: set[str] = set()
    for name, needs in BY_FIXTURE.items():
        found |= needs if name in fixtures else set()
    if nodeid.startswith("tests/dispatch/") and "server" in fixtures:
        found.add("redis")
    for pattern, needs in BY_PLACE.items():
        found |= needs if re.match(pattern, nodeid) else set()
    return found


def allow(markers: Collection[str] | None) -> None:
    """Say what the test that begins may claim, or that it is over."""
    global _claimable
    _claimable = markers


def claim(need: str) -> None:
    """Fail the test that runs if it does not bear the marker of what is about to be started."""
    assert need in NEEDS, need
    if _claimable is not None and need not in _claimable:
        raise AssertionError(f"a test that needs {need} has no such marker: see {__name__}")
