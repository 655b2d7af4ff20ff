"""What requests say becomes types, or an error that names the field; nothing else escapes."""

from contextlib import suppress
from typing import Annotated

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.server.http.input import body_of, parameters_of, query_of
from waterclock.server.http.messages import Request
from waterclock.server.http.problems import BadField


class Asked(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    topic: str
    limit_max: Annotated[int, msgspec.Meta(ge=1, le=10)] = 5
    is_new: bool = False


class Body(msgspec.Struct, forbid_unknown_fields=True):
    count: int
    parts: list["Body"] = []


def request(query: bytes = b"", body: bytes = b"", **params: str) -> Request:
    return Request(b"GET", b"/", query, [], body, params=params)


def test_path_and_query_are_one():
    asked = parameters_of(request(b"limitMax=7&isNew=true", topic="a b"), Asked)

    assert asked == Asked(topic="a b", limit_max=7, is_new=True)


def test_a_query_is_decoded():
    assert query_of(request(b"a=%C3%BC+x&b=&c&&=")) == {"a": "ü x", "b": "", "c": ""}


@pytest.mark.parametrize(
    ("query", "field"),
    [
        (b"limitMax=11", "limitMax"),
        (b"limitMax=x", "limitMax"),
        (b"limitMax=1&limitMax=2", "limitMax"),
        (b"isNew=maybe", "isNew"),
        (b"nobody=1", "nobody"),
        (b"topic=b", "topic"),
        (b"isNew=%ff", "isNew"),
        (b"isNew=%4", "isNew"),
        (b"%ff=1", "query"),
    ],
)
def test_a_parameter_that_is_wrong_is_named(query, field):
    with pytest.raises(BadField) as caught:
        parameters_of(request(query, topic="a"), Asked)

    assert caught.value.field == field


def test_a_parameter_that_is_missing_is_named():
    with pytest.raises(BadField) as caught:
        parameters_of(request(), Asked)

    assert caught.value.field == "topic"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"", "body"),
        (b"{", "body"),
        (b"[]", "body"),
        (b"\xff", "body"),
        (b'"\\ud800"', "body"),
        (b"{}", "count"),
        (b'{"count": "1"}', "count"),
        (b'{"count": 1.5}', "count"),
        (b'{"count": 1, "x": 2}', "x"),
        (b'{"count": 1, "parts": [{"count": null}]}', "parts[0].count"),
        (b"[" * 100_000, "body"),
        (b'{"count": 1.0, "x": ' + b"[" * 100_000, "x"),
        (b'{"count": 1.0, "x": 2}', "x"),
        (b'{"count": 1e300}', "count"),
    ],
)
def test_a_body_that_is_wrong_is_named(body, field):
    with pytest.raises(BadField) as caught:
        body_of(request(body=body), Body)

    assert caught.value.field == field


def test_a_whole_number_may_be_written_with_a_point():
    assert body_of(request(body=b'{"count": 5.0, "parts": [{"count": 1e3}]}'), Body) == Body(
        5, [Body(1_000)]
    )


@given(st.binary(max_size=200))
def test_no_body_breaks_the_reading(body):
    with suppress(BadField):
        body_of(request(body=body), Body)


@given(st.binary(max_size=100))
def test_no_query_breaks_the_reading(query):
    with suppress(BadField):
        query_of(request(query))


class Kept(msgspec.Struct, forbid_unknown_fields=True):
    size: int | None = None
    value: msgspec.Raw = msgspec.Raw(b"")


def test_what_is_kept_as_written_is_kept_beside_a_whole_number_with_a_point():
    written = b'{"x": 1.0,  "a": 1, "a": 2, "big": 123456789012345678901234567890, "d": 0.1000}'

    kept = body_of(request(body=b'{"size": 5.0, "value": ' + written + b"}"), Kept)

    assert (kept.size, bytes(kept.value)) == (5, written)
