"""The reader of PromQL: what it takes, and what it finds wrong."""

import pytest

from tests.kit.promql import BadQuery, Known, Query

KNOWN = Known(
    labels={
        "requests_total": ["status"],
        "seconds_bucket": ["le", "operation"],
        "lag": ["topic", "group"],
        "up": [],
        "job:ratio": ["topic"],
    },
    values={"status": ["200", "503"]},
)


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("up == 0", {"job", "instance"}),
        ("sum(rate(requests_total[5m]))", set()),
        ('sum by (job) (rate(requests_total{status=~"5.."}[5m])) / 2 > 0.05', {"job"}),
        ("sum(rate(requests_total[5m])) by (status)", {"status"}),
        ("sum without (instance, job) (lag)", {"topic", "group"}),
        ("histogram_quantile(0.99, sum by (le) (rate(seconds_bucket[$__rate_interval])))", set()),
        ('topk(5, lag{topic=~"$topic"})', {"topic", "group", "job", "instance"}),
        ("deriv(lag[15m]) > 0 and on (job) up == 1", {"topic", "group", "job", "instance"}),
        ("predict_linear(lag[6h], 4 * 3600) < 0 unless job:ratio > 1", {"topic", "group"}),
        ("absent(up)", set()),
        ("lag - time() < 86400", {"topic", "group"}),
    ],
)
def test_expressions_give_these_labels(text, labels):
    found = Query(text, KNOWN).labels

    assert found >= labels
    assert found - labels <= {"job", "instance"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("requests", "there is no metric requests"),
        ('requests_total{code="200"} > 1', "has no label code"),
        ('requests_total{status="404"} > 1', "status of requests_total is never 404"),
        ('requests_total{status=~"200|4.."} > 1', "is never 4.."),
        ("sum by (topic) (rate(requests_total[5m]))", "there is no .'topic'."),
        ("rate(requests_total)", "wants a range"),
        ("rate(lag[5m])", "rate is not for lag"),
        ("deriv(requests_total[5m])", "deriv is not for requests_total"),
        ("requests_total[5m]", "nothing takes it"),
        ("histogram_quantile(0.99, sum by (operation) (rate(seconds_bucket[5m])))", "le is gone"),
        ("sum(up", "expected "),
        ("sum(up))", "not expected"),
        ("up up", "not expected"),
        ("up >", "expected an operand"),
        ("up and on (shard) up", "no side has"),
        ("up ; up", "cannot read"),
    ],
)
def test_what_cannot_work_is_found(text, why):
    with pytest.raises(BadQuery, match=why):
        Query(text, KNOWN)
