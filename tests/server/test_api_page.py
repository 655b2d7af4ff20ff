"""docs/api.md keeps its word: methods, errors and metrics are those of the code.

Its examples are run in tests/docs.
"""

import os
import re
from pathlib import Path
from typing import Any, cast

from prometheus_client.core import CounterMetricFamily

from tests.server.served import running_server
from waterclock.server.access import Access
from waterclock.server.arrivals import Arrivals
from waterclock.server.calls import Calls
from waterclock.server.grpc.backlog import Backlog
from waterclock.server.http.counters import HttpCounters
from waterclock.server.metrics import LoopWatch, Metrics
from waterclock.server.reload import Reloader
from waterclock.server.statuses import STATUSES
from waterclock.v1 import admin_pb2, backup_pb2, broker_pb2, scheduler_pb2, write_registry_pb2

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
SERVICES = {
    service.full_name: service
    for module in (broker_pb2, scheduler_pb2, admin_pb2, write_registry_pb2, backup_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
}
METRICS_HEAD = "| metric | labels | means |\n|---|---|---|\n"


def rows_of(head: str) -> list[list[str]]:
    """Return the cells of the table that begins with this line."""
    lines = PAGE.read_text().partition(f"\n{head}\n")[2].splitlines()[1:]
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    assert rows, head
    return rows


def test_all_methods_are_named():
    named = {
        row[0].strip("`"): re.findall(r"`(\w+)`", row[1])
        for row in rows_of("| service | methods |")
    }
    del named["grpc.health.v1.Health"]

    assert named == {
        name: [method.name for method in service.methods] for name, service in SERVICES.items()
    }


def test_the_table_of_errors_is_that_of_the_code():
    table = {row[0].strip("`"): row[1] for row in rows_of("| error | status | what to do |")}

    assert table == {error.__name__: code.name for error, code in STATUSES.items()}


async def test_the_table_of_metrics_is_that_of_the_code(tmp_path):
    async with running_server(tmp_path) as it:
        calls = Calls(1, Arrivals(1), Backlog(1))
        calls.unary("Broker/Publish", it.broker.Publish, broker_pb2.PublishRequest)
        access, reloader = Access(it.node.clock), Reloader(it.node.config)
        metrics = Metrics(it.node, calls, HttpCounters(), LoopWatch(), access, reloader)
        made = [
            (
                family.name + ("_total" if family.kind is CounterMetricFamily else ""),
                " ".join(f"`{label}`" for label in family.labels),
                family.documentation,
            )
            for family in metrics.families()
        ]
        made += [
            (
                metric.name,
                " ".join(f"`{label}`" for label in cast(Any, metric)._labelnames),
                metric.documentation + " Histogram.",
            )
            for metric in metrics.histograms()
        ]
        rows = "".join(f"| `{name}` | {labels} | {says} |\n" for name, labels, says in sorted(made))
        text = PAGE.read_text()
        before, head, after = text.partition(METRICS_HEAD)
        if os.environ.get("WATERCLOCK_REWRITE"):
            PAGE.write_text(before + head + rows)

        assert after == rows, "WATERCLOCK_REWRITE=1 pytest tests/server/test_api_page.py"
