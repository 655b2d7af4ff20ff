"""Reads PromQL closely enough to say whether an expression of ours can work.

It is parsed as https://prometheus.io/docs/prometheus/latest/querying/basics has it, without the
rare parts (`@`, native histograms). `check` then asks what a parser cannot know: is there such a
metric, has it these labels, can they have these values, is a rate taken of what counts.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

TOKEN = re.compile(
    r"""\s*(?:
        (?P<string>"(?:[^"\\]|\\.)*")
      | (?P<duration>\d+(?:ms|[smhdwy]))
      | (?P<number>\d+(?:\.\d+)?(?:e[+-]?\d+)?)
      | (?P<name>[A-Za-z_:][\w:]*)
      | (?P<sign>=~|!~|!=|==|>=|<=|[-+*/%^<>=(){}\[\],])
    )""",
    re.VERBOSE,
)
AGGREGATIONS = {"sum", "min", "max", "avg", "count", "topk", "bottomk", "group", "quantile"}
WITH_PARAMETER = {"topk", "bottomk", "quantile"}
KEEPING = {"topk", "bottomk"}
"""These choose samples, and keep their labels."""
OF_COUNTERS = {"rate", "increase", "irate", "resets"}
OF_GAUGES = {"deriv", "delta", "predict_linear", "max_over_time", "min_over_time", "avg_over_time"}
OF_RANGES = OF_COUNTERS | OF_GAUGES | {"changes"}
OF_INSTANTS = {"histogram_quantile", "abs", "clamp_min", "clamp_max", "absent", "round", "time"}
OPERATORS = {"+", "-", "*", "/", "%", "^", "==", "!=", ">", "<", ">=", "<=", "and", "or", "unless"}
COUNTING = ("_total", "_bucket", "_count", "_sum")


class BadQuery(Exception):
    """An expression is no PromQL, or asks for what is not there."""


@dataclass(frozen=True)
class Known:
    """What is there to be asked for."""

    labels: Mapping[str, Collection[str]]
    """Of each metric."""
    values: Mapping[str, Collection[str]] = field(default_factory=dict)
    """Of labels that have but these."""
    added: Collection[str] = ("job", "instance")
    """Labels that Prometheus adds."""


class Query:
    """One expression: which metrics it asks for, and the labels of what it gives."""

    def __init__(self, text: str, known: Known) -> None:
        self._known = known
        self._tokens = _tokens(text)
        self._at = 0
        self.metrics: set[str] = set()
        self.labels = self._expression()
        if self._at != len(self._tokens):
            raise BadQuery(f"{self._seen!r} is not expected in {text}")

    @property
    def _seen(self) -> str:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else ""

    @property
    def _kind(self) -> str:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else "end"

    def _take(self, *expected: str) -> str:
        seen = self._seen
        if expected and seen not in expected:
            raise BadQuery(f"expected {' or '.join(expected)}, not {seen!r}")
        self._at += 1
        return seen

    def _expression(self) -> set[str]:
        labels = self._operand()
        while self._seen in OPERATORS:
            self._take()
            if self._seen == "bool":
                self._take()
            both = self._grouping("on", "ignoring")
            if self._seen in ("group_left", "group_right"):
                self._take()
                if self._seen == "(":
                    self._names()
            right = self._operand()
            if not both <= labels | right:
                raise BadQuery(f"no side has {sorted(both - labels - right)}")
            labels = labels or right  # a number has none
        return labels

    def _operand(self) -> set[str]:
        if self._seen == "-":
            self._take()
        if self._kind == "number":
            self._take()
            return set()
        if self._seen == "(":
            self._take()
            labels = self._expression()
            self._take(")")
            return labels
        if self._kind != "name":
            raise BadQuery(f"expected an operand, not {self._seen!r}")
        name = self._take()
        if name in AGGREGATIONS and self._seen in ("(", "by", "without"):
            return self._aggregation(name)
        if name in OF_RANGES | OF_INSTANTS and self._seen == "(":
            return self._function(name)
        labels, is_range = self._selector(name)
        if is_range:
            raise BadQuery(f"{name} is a range, and nothing takes it")
        return labels

    def _aggregation(self, name: str) -> set[str]:
        word = self._seen if self._seen in ("by", "without") else ""
        named = self._grouping("by", "without")
        self._take("(")
        if name in WITH_PARAMETER:
            self._take()
            self._take(",")
        inner = self._expression()
        self._take(")")
        if not word:
            word = self._seen if self._seen in ("by", "without") else ""
            named = self._grouping("by", "without")
        if not named <= inner:
            raise BadQuery(f"{name}: there is no {sorted(named - inner)} in {sorted(inner)}")
        if name in KEEPING:
            return inner
        return inner - named if word == "without" else named

    def _function(self, name: str) -> set[str]:
        self._take("(")
        if name == "time":
            self._take(")")
            return set()
        if name == "histogram_quantile":
            self._take()
            self._take(",")
        if name in OF_RANGES:
            metric = self._take()
            labels, is_range = self._selector(metric)
            if not is_range:
                raise BadQuery(f"{name}({metric}) wants a range")
            if metric.endswith(COUNTING) != (name in OF_COUNTERS) and name != "changes":
                raise BadQuery(f"{name} is not for {metric}")
        else:
            labels = self._expression()
        while self._seen == ",":
            self._take()
            self._expression()
        self._take(")")
        if name == "histogram_quantile":
            if "le" not in labels:
                raise BadQuery("histogram_quantile: le is gone")
            return labels - {"le"}
        return set() if name == "absent" else labels

    def _selector(self, name: str) -> tuple[set[str], bool]:
        if name not in self._known.labels:
            raise BadQuery(f"there is no metric {name}")
        self.metrics.add(name)
        labels = {*self._known.labels[name], *self._known.added}
        if self._seen == "{":
            self._take()
            while self._seen != "}":
                self._matcher(name, labels)
                if self._seen == ",":
                    self._take()
            self._take("}")
        is_range = self._seen == "["
        if is_range:
            self._take()
            if self._kind != "duration":
                raise BadQuery(f"expected a duration, not {self._seen!r}")
            self._take()
            self._take("]")
        return labels, is_range

    def _matcher(self, metric: str, labels: set[str]) -> None:
        label = self._take()
        sign = self._take("=", "!=", "=~", "!~")
        if self._kind != "string":
            raise BadQuery(f"{label}: expected a text, not {self._seen!r}")
        value = self._take()[1:-1]
        if label not in labels:
            raise BadQuery(f"{metric} has no label {label}")
        known = self._known.values.get(label)
        if known is None or value.startswith("$"):
            return
        parts = [value] if sign in ("=", "!=") else value.split("|")
        for part in parts:
            if not any(re.fullmatch(part, one) for one in known):
                raise BadQuery(f"{label} of {metric} is never {part}")

    def _grouping(self, *words: str) -> set[str]:
        if self._seen not in words:
            return set()
        self._take()
        return self._names()

    def _names(self) -> set[str]:
        self._take("(")
        names = set()
        while self._seen != ")":
            if self._kind != "name":
                raise BadQuery(f"expected a label, not {self._seen!r}")
            names.add(self._take())
            if self._seen != ")":
                self._take(",")
        self._take(")")
        return names


def _tokens(text: str) -> list[tuple[str, str]]:
    # What Grafana puts in before it asks.
    text = re.sub(r"\$__(?:rate_interval|interval|range)\b", "5m", text)
    tokens, at = [], 0
    while text[at:].strip():
        found = TOKEN.match(text, at)
        if found is None:
            raise BadQuery(f"cannot read {text[at : at + 20]!r}")
        kind = found.lastgroup
        assert kind is not None
        tokens.append((kind, found[kind]))
        at = found.end()
    return tokens
