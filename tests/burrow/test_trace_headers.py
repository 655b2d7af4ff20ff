"""Which trace a message belongs to, by its headers."""

import pytest

from waterclock.burrow.runtime.tracing import (
    Trace,
    current_record,
    current_trace,
    trace_headers,
    trace_of,
)

IDS = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def test_a_trace_is_read_and_handed_on():
    trace = Trace(*IDS, "01", "vendor=1")

    assert trace_of(trace.headers()) == trace


def test_outside_a_call_there_is_no_record_and_no_trace():
    assert current_record() is None
    assert current_trace() is None
    assert trace_headers() == []


@pytest.mark.parametrize(
    "parent",
    [
        b"",
        b"nonsense",
        b"00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        b"ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        b"00-" + b"0" * 32 + b"-00f067aa0ba902b7-01",
        b"00-4bf92f3577b34da6a3ce929d0e0e4736-" + b"0" * 16 + b"-01",
        b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
        None,
    ],
)
def test_what_is_no_trace_is_none(parent):
    assert trace_of([("traceparent", parent)]) is None


def test_a_later_version_may_say_more():
    parent = b"01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more"

    assert trace_of([("traceparent", parent)]) == Trace(*IDS)
