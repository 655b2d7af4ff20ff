"""What is asked of a node over HTTP and gRPC, and how it was answered, as metrics.

Labels are names of operations and methods, statuses and codes: never a path, nor anything else that
a client can invent.
"""

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import Metric

from waterclock.node.counters import Histogram
from waterclock.server.calls import Calls
from waterclock.server.families import (
    Family,
    Sample,
    counter,
    gauge,
    histogram,
    one_counter,
    one_gauge,
)
from waterclock.server.http.counters import REASONS, HttpCounters

SLOW_READER = "slow_reader"
"""Refused without an answer: the client reads none."""


def request_families(calls: Calls, http: HttpCounters) -> Iterator[Family]:
    """Yield all but histograms."""
    yield from _grpc_families(calls)
    yield counter(
        "http_requests",
        "Requests answered; of an answer in pieces its head.",
        ("operation", "method", "status"),
        _requests(http),
    )
    yield one_counter(
        "http_abandoned_requests",
        "Requests whose client went before their answer.",
        http.abandoned_requests,
    )
    yield counter(
        "http_refused",
        "Connections ended because of what was sent, or not read.",
        ("reason",),
        [
            *(((REASONS[status],), count) for status, count in http.refused.items()),
            ((SLOW_READER,), http.slow_readers),
        ],
    )
    yield one_gauge("http_connections", "Connections open.", http.connections)
    yield one_counter("http_connections_opened", "Connections made.", http.opened_connections)
    yield one_gauge("http_streaming_responses", "Answers in pieces under way.", http.streaming)
    yield one_counter("http_received_bytes", "Bytes of requests.", http.received_bytes)
    yield one_counter("http_sent_bytes", "Bytes of answers, as handed over.", http.sent_bytes)


def _requests(http: HttpCounters) -> Iterator[Sample]:
    for each in http.operations.values():
        statuses = each.statuses()
        if each is http.unmatched:
            statuses = Counter(statuses) + Counter(http.refused)
        for status, count in statuses.items():
            yield (each.operation, each.method, str(status)), count


def _grpc_families(calls: Calls) -> Iterator[Family]:
    yield one_gauge("grpc_calls_in_flight", "Calls being worked on.", calls.in_flight)
    yield gauge(
        "grpc_streaming_calls",
        "Calls that go on: streams of either side.",
        ("method",),
        [((name,), method.streaming) for name, method in calls.methods.items() if method.is_stream],
    )
    yield counter(
        "grpc_calls",
        "Calls that ended.",
        ("method", "code"),
        [
            ((name, code.name), count)
            for name, method in calls.methods.items()
            for code, count in method.codes.items()
        ],
    )


def request_histograms(calls: Calls, http: HttpCounters) -> Iterator[Metric]:
    """Yield the times of calls and requests; those never made have none."""
    yield histogram(
        "grpc_call_seconds",
        "Time of a call with one answer.",
        ("method",),
        [
            ((name,), [method.milliseconds])
            for name, method in calls.methods.items()
            if method.milliseconds.count
        ],
    )
    operations: dict[str, list[Histogram]] = {}
    for each in http.operations.values():
        taken = each.milliseconds()
        if taken.count:
            operations.setdefault(each.operation, []).append(taken)
    yield histogram(
        "http_request_seconds",
        "Time from the turn of a request until its answer, or the head of one in pieces.",
        ("operation",),
        [((name,), parts) for name, parts in operations.items()],
    )
