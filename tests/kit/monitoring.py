"""The files for Prometheus and Grafana in docs/: read, and held against the metrics there are."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.core import Metric

from tests.kit.promql import BadQuery, Known, Query

DOCS = Path(__file__).parents[2] / "docs"
GRID_WIDTH = 24
SUFFIXES = ("_total", "_bucket", "_count", "_sum")
_LABEL_VALUES = re.compile(r"label_values\((.*), (\w+)\)")
_SAID = re.compile(r"\{\{ ?(?:\$labels\.)?(\w+) ?\}\}")
"""Labels in the legend of a panel, or in the summary of an alert."""


def samples_of(families: Iterable[Metric]) -> dict[str, set[str]]:
    """Return the labels of all samples, by name; families without samples have none."""
    found: dict[str, set[str]] = {}
    for family in families:
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                found.setdefault(sample.name, set()).update(sample.labels)
    return found


def family_of(sample: str) -> str:
    """Return the name of a metric without what Prometheus puts behind it."""
    for suffix in SUFFIXES:
        sample = sample.removesuffix(suffix)
    return sample


def board(name: str) -> dict[str, Any]:
    """Return a dashboard of docs/dashboards."""
    found: dict[str, Any] = json.loads((DOCS / "dashboards" / f"{name}.json").read_text())
    return found


def panels(name: str) -> list[dict[str, Any]]:
    """Return its panels that ask for something."""
    return [panel for panel in board(name)["panels"] if panel["type"] != "row"]


def rules(name: str) -> list[dict[str, Any]]:
    """Return the rules of a file in docs/alerts."""
    groups = yaml.safe_load((DOCS / "alerts" / f"{name}.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def check_board(name: str, variables: set[str]) -> None:
    """Assert that Grafana imports a dashboard, and shows all of it."""
    found = board(name)
    assert found["id"] is None  # it is given one there
    assert found["uid"] == f"waterclock-{name}"
    assert found["title"] == f"waterclock.{name}"
    assert found["schemaVersion"] >= 36
    ids = [panel["id"] for panel in found["panels"]]
    assert len(ids) == len(set(ids))
    listed = {variable["name"] for variable in found["templating"]["list"]}
    assert listed == {"datasource", *variables}
    text = json.dumps(found["panels"])
    assert set(re.findall(r"\$\{?([a-z]\w*)", text)) == listed
    taken: set[tuple[int, int]] = set()
    for panel in found["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= GRID_WIDTH, panel["title"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    for panel in panels(name):
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["targets"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        refs = [target["refId"] for target in panel["targets"]]
        assert len(refs) == len(set(refs)), panel["title"]


def shown(name: str, known: Known) -> set[str]:
    """Return the metrics on a dashboard; raises BadQuery for what cannot work."""
    metrics: set[str] = set()
    for panel in panels(name):
        for target in panel["targets"]:
            metrics |= _asked(f"{name}: {panel['title']}", target["expr"], known, target)
    for variable in board(name)["templating"]["list"]:
        if variable["type"] == "query":
            asked = _LABEL_VALUES.fullmatch(variable["definition"])
            assert asked is not None
            assert variable["query"]["query"] == variable["definition"]
            labels = Query(asked[1], known).labels
            assert asked[2] in labels, variable["definition"]
    return metrics


def watched(name: str, known: Known) -> set[str]:
    """Return the metrics that rules are about; raises BadQuery for what cannot work."""
    found = rules(name)
    recorded = {rule["record"]: rule for rule in found if "record" in rule}
    alerts = [rule for rule in found if "alert" in rule]
    assert len({rule["alert"] for rule in alerts}) == len(alerts)
    metrics: set[str] = set()
    labels = dict(known.labels)
    for record, rule in recorded.items():
        query = Query(rule["expr"], known)
        metrics |= query.metrics
        labels[record] = query.labels
        assert any(record in other["expr"] for other in alerts), f"{record} is not used"
    both = Known(labels, known.values, known.added)
    for rule in alerts:
        said = {"summary": rule["annotations"]["summary"]}
        metrics |= _asked(rule["alert"], rule["expr"], both, said)
    return metrics - set(recorded)


def _asked(where: str, text: str, known: Known, says: dict[str, Any]) -> set[str]:
    try:
        query = Query(text, known)
    except BadQuery as error:
        raise BadQuery(f"{where}: {error} in {text}") from None
    for label in _SAID.findall(says.get("summary", says.get("legendFormat", ""))):
        if label not in query.labels:
            raise BadQuery(f"{where} speaks of {label}, and {text} has {sorted(query.labels)}")
    return query.metrics
