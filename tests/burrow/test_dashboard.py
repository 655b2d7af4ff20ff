"""The dashboard and the alerts: they can be read, and name the metrics there are, all of them."""

import json
import re
from pathlib import Path
from typing import Any, cast

import yaml

from tests.kit.monitoring import shown, watched
from tests.kit.promql import Known
from waterclock.burrow.core.records import TopicPartition
from waterclock.burrow.runtime.metrics import PoolMetrics

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "burrow.md"
DASHBOARD = DOCS / "dashboards" / "burrow.json"
ALERTS = DOCS / "alerts" / "burrow.yml"
NAME = re.compile(r"\bburrow_[a-z_]+")
LABELS = {"job", "instance", "le", "topic", "partition", "status", "retriable"}
GRID_WIDTH = 24


def exported():
    """Give the names of all samples, and how Prometheus calls the family each is of."""
    metrics = PoolMetrics()
    metrics.tally("orders", 0).add([0.01])
    samples = {}
    for family in metrics.collect():
        suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_count", "_sum"]}
        for suffix in suffixes.get(family.type, [""]):
            samples[f"{family.name}{suffix}"] = family.name
    return samples


def panels():
    board = json.loads(DASHBOARD.read_text())
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def expressions():
    return [target["expr"] for panel in panels() for target in panel["targets"]]


def rules():
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    return group["rules"]


def test_the_dashboard_is_one_that_grafana_imports():
    board = json.loads(DASHBOARD.read_text())

    assert board["id"] is None  # it is given one there
    assert board["uid"]
    assert board["title"] == "waterclock.burrow"
    assert board["schemaVersion"] >= 36
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    variables = {variable["name"] for variable in board["templating"]["list"]}
    assert variables == {"datasource", "job", "topic"}
    for panel in panels():
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["targets"], panel["title"]


def test_no_two_panels_overlap():
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= GRID_WIDTH
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


def test_every_metric_there_is_stands_on_the_dashboard_and_no_other():
    shown = {name for text in expressions() for name in NAME.findall(text)}
    known = exported()

    assert shown - set(known) == set()
    assert {known[name] for name in shown} == set(known.values())
    variables = json.loads(DASHBOARD.read_text())["templating"]["list"]
    asked = {name for variable in variables for name in NAME.findall(json.dumps(variable))}
    assert asked - set(known) == set()


def test_alerts_ask_for_metrics_there_are():
    asked = {name for rule in rules() for name in NAME.findall(rule["expr"])}

    assert asked
    assert asked - set(exported()) == set()


def test_alerts_say_what_is_wrong_and_records_are_used():
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    used = " ".join(rule["expr"] for rule in rules())
    alerts = [rule for rule in rules() if "alert" in rule]

    assert len({rule["alert"] for rule in alerts}) == len(alerts)
    assert all(rule["annotations"]["summary"] for rule in alerts)
    assert {rule["labels"]["severity"] for rule in alerts} == {"page", "ticket"}
    assert [name for name in recorded if name not in used] == []


def test_labels_in_queries_are_labels_there_are():
    for text in [*expressions(), *(rule["expr"] for rule in rules())]:
        said = re.findall(r"by \(([^)]*)\)", text)
        names = {name.strip() for part in said for name in part.split(",")}
        names |= {name for part in re.findall(r"\{([^}]*)\}", text) for name in _matched(part)}
        assert names <= LABELS, text


def _matched(selector):
    return re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector)


def test_every_query_can_work():
    known = Known(
        labels={
            f"{family.name}{suffix}": [*cast(Any, family)._labelnames, "le"]
            for family in PoolMetrics().collect()
            for suffix in ("", "_total", "_bucket", "_count", "_sum")
        }
    )

    assert shown("burrow", known) <= set(exported())
    assert watched("burrow", known) <= set(exported())


def test_brackets_in_queries_are_closed():
    for text in [*expressions(), *(rule["expr"] for rule in rules())]:
        for left, right in ("()", "[]", "{}"):
            assert text.count(left) == text.count(right), text


def test_the_page_names_every_metric_and_every_alert():
    page = PAGE.read_text()
    families = set(exported().values())
    named = {name.removesuffix("_total") for name in NAME.findall(page)}

    assert named & families == families
    assert [rule["alert"] for rule in rules() if rule.get("alert", "") not in page] == []


def test_every_partition_gauge_has_the_labels_of_its_place():
    metrics = PoolMetrics()
    metrics.tally("orders", 3).add([0.01])

    places = {
        TopicPartition(sample.labels["topic"], int(sample.labels["partition"]))
        for family in metrics.collect()
        for sample in family.samples
        if "topic" in sample.labels
    }
    assert places == {TopicPartition("orders", 3)}
