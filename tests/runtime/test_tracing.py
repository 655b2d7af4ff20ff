"""Spans by OpenTelemetry: under what, with which links, and by whom they are exported."""

import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from tests.kit.spans import recorded_spans
from waterclock.model.errors import BadConfig
from waterclock.runtime.tracing import LINKS_MAX, id_text, messaging, tracer_of, tracing

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def headers(span: int) -> list[tuple[str, bytes | None]]:
    return [("traceparent", f"00-{TRACE}-{span:016x}-01".encode()), ("empty", None)]


def test_without_a_provider_nobody_makes_spans():
    assert tracer_of("ours") is None


def test_without_the_package_nobody_makes_spans_and_nothing_is_imported(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
        monkeypatch.delitem(sys.modules, name)

    assert tracer_of("ours") is None
    assert "opentelemetry" not in sys.modules


def test_a_span_of_several_messages_is_under_the_first_and_links_to_the_others_once():
    with recorded_spans() as spans:
        tracer = tracer_of("ours")
        assert tracer is not None
        rows = [None, headers(1), headers(2), [], headers(2), [("traceparent", b"no")]]
        contexts = tracer.contexts_of(rows)
        tracer.begin("work", "CONSUMER", contexts, attributes=messaging("process", "t")).end()

        span = spans.one("work")
    assert span.parent is not None
    assert (span.parent.trace_id, span.parent.span_id) == (int(TRACE, 16), 1)
    assert [link.context.span_id for link in span.links] == [2]


def test_a_span_has_no_more_contexts_than_the_limit():
    with recorded_spans():
        tracer = tracer_of("ours")
        assert tracer is not None

        assert len(tracer.contexts_of(map(headers, range(1, 2 * LINKS_MAX)))) == LINKS_MAX


def test_a_span_that_was_entered_is_current_until_it_is_left_or_another_is_entered():
    with recorded_spans():
        tracer = tracer_of("ours")
        assert tracer is not None
        first, second = (tracer.begin(name, "CONSUMER", attributes={}) for name in "ab")

        leave_first = tracer.enter(first)
        leave_second = tracer.enter(second)
        leave_first()
        assert trace.get_current_span() is second
        leave_second()
        assert not tracer.has_current()


def test_the_context_of_a_span_is_carried_by_headers():
    with recorded_spans():
        tracer = tracer_of("ours")
        assert tracer is not None
        span = tracer.begin("send", "PRODUCER", attributes={})

        with tracer.inside(span):
            here = tracer.pairs()

        context = span.get_span_context()
        ids = f"{context.trace_id:032x}-{context.span_id:016x}"
        text = f"00-{ids}-{context.trace_flags:02x}"
        assert here == tracer.pairs(span) == [("traceparent", text.encode())]


def test_tracing_sets_a_provider_with_the_exporter_that_the_environment_names(monkeypatch):
    given: list[TracerProvider] = []
    monkeypatch.setattr(trace, "set_tracer_provider", given.append)
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "host=here")

    with tracing("node-1", is_enabled=True):
        (provider,) = given
        assert provider.resource.attributes["service.name"] == "node-1"
        assert provider.resource.attributes["host"] == "here"


def test_tracing_that_is_not_enabled_sets_nothing(monkeypatch):
    given: list[object] = []
    monkeypatch.setattr(trace, "set_tracer_provider", given.append)

    with tracing("node-1", is_enabled=False):
        assert given == []


def test_an_exporter_that_is_not_installed_is_named_with_what_to_install(monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "pigeon")

    with (
        pytest.raises(BadConfig, match=r"no exporter 'pigeon'.*waterclock\[otel\]"),
        tracing("node-1", is_enabled=True),
    ):
        pass


@pytest.mark.parametrize(
    ("raw", "text"), [(b"order-17", "order-17"), (b"\xff\x00", "ff00"), (b"a\n", "610a")]
)
def test_an_id_is_told_as_text_if_it_is_some(raw, text):
    assert id_text(raw) == text
