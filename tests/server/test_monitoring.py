"""Dashboards and alerts of nodes: whatever they ask for, a running node shows."""

from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.kit.monitoring import check_board, family_of, rules, samples_of, shown, watched
from tests.kit.promql import BadQuery, Known, Query
from tests.server.secure_serving import secure_node
from waterclock.security.rights import KINDS
from waterclock.server.http.counters import REASONS
from waterclock.server.metrics import HORIZONS
from waterclock.server.refusals import COUNTS, PROTOCOLS, RATES
from waterclock.server.request_metrics import SLOW_READER
from waterclock.v1 import broker_pb2

PAGE = Path(__file__).parents[2] / "docs" / "observability.md"
BOARDS = {"node": {"job", "topic", "group"}, "requests": {"job", "operation"}}
ALERTS = ("node", "requests", "streams")
OF_PROCESS = "process_"


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Known:
    """What a secure node shows after a little of everything."""
    with secure_node(tmp_path_factory.mktemp("node") / "data") as node:
        messages = {"messages": [{"value": "now"}, {"value": "later", "delay": "1h"}]}
        assert node.ask("POST", "/topics/orders/messages", node.admin, messages).status == 201
        taken = node.ask("GET", "/topics/orders/messages?group=billing", node.admin)
        assert taken.status == 200
        credentials = grpc.ssl_channel_credentials(node.folder.ca.read_bytes())
        address = f"localhost:{node.server.grpc_port}"
        with grpc.secure_channel(address, credentials) as channel:
            request = broker_pb2.PublishRequest(
                topic="orders", message=broker_pb2.Message(value=b"")
            )
            publish: Any = channel.unary_unary("/waterclock.v1.Broker/Publish")
            publish(request.SerializeToString(), metadata=(("authorization", node.admin),))
        text = node.ask("GET", "/metrics", node.admin).body.decode()
        operations = [operation.name for operation in node.server.operations]
        methods = list(node.server.calls.methods)
    return Known(
        labels=samples_of(text_string_to_metric_families(text)),
        values={
            "operation": operations,
            "method": [*methods, "GET", "POST", "HEAD"],
            "status": ["200", "400", "404", "429", "500", "503", "507"],
            "code": [code.name for code in grpc.StatusCode],
            "reason": [*REASONS.values(), SLOW_READER],
            "horizon": HORIZONS,
            "right": KINDS,
            "quota": [*RATES.values(), *COUNTS],
            "protocol": PROTOCOLS,
            "certificate": ["node", "ca"],
            "what": ["configuration", "secure_folder"],
            "outcome": ["done", "failed"],
        },
    )


@pytest.mark.parametrize("name", BOARDS)
def test_a_dashboard_is_one_that_grafana_imports(name):
    check_board(name, BOARDS[name])


@pytest.mark.parametrize("name", ALERTS)
def test_alerts_ask_for_what_a_node_shows(name, known):
    assert watched(name, known)


def test_what_pages_is_told_from_what_can_wait():
    for name in ("node", "requests"):
        alerts = [rule for rule in rules(name) if "alert" in rule]
        assert {rule["labels"]["severity"] for rule in alerts} == {"page", "ticket"}


def test_dashboards_show_every_metric_there_is_and_no_other(known):
    asked = {name for board in BOARDS for name in shown(board, known)}
    there = {family_of(name) for name in known.labels if not name.startswith(OF_PROCESS)}

    assert {family_of(name) for name in asked if not name.startswith(OF_PROCESS)} == there


def test_a_wrong_name_or_label_would_be_found(known):
    for text in (
        "waterclock_http_request_total > 1",
        'waterclock_http_requests_total{path="/topics"} > 1',
        'waterclock_http_refused_total{reason="slow"} > 1',
        "sum by (principal) (rate(waterclock_denied_total[5m]))",
    ):
        with pytest.raises(BadQuery):
            Query(text, known)


def test_the_page_names_every_file_and_every_alert():
    page = PAGE.read_text()
    alerts = [rule["alert"] for name in ALERTS for rule in rules(name) if "alert" in rule]

    assert [name for name in alerts if name not in page] == []
    assert [name for name in BOARDS if f"dashboards/{name}.json" not in page] == []
    assert [name for name in ALERTS if f"alerts/{name}.yml" not in page] == []
