"""Requests and answers between nodes come out as they went in, and nothing else does."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.cluster.forwarded import (
    BadForward,
    ForwardedAnswer,
    ForwardedRequest,
    asked_again,
    method_of,
)

short = st.binary(max_size=50)
DECODERS = (ForwardedRequest.decode, ForwardedAnswer.decode)


def test_bytes_on_the_wire_do_not_change():
    request = ForwardedRequest(
        500, b"GET", b"/streams/receive", b"a=b", b"", b"{}", partitions=b"0,7", rights=b"[]"
    )
    assert (
        request.encode()
        == bytes.fromhex("000001f4 0003 0010 0003 0000 0003 00000002")
        + b"GET/streams/receivea=b0,7[]{}"
    )
    answer = ForwardedAnswer(True, b"text/plain", b"A: b\r\n", b"hi")
    assert answer.encode() == bytes.fromhex("01 000a 0006") + b"text/plainA: b\r\nhi"


requests = st.builds(
    ForwardedRequest,
    st.integers(0, 2**32 - 1),
    *(short, short, short, short, short, short, short),
)
answers = st.builds(ForwardedAnswer, st.booleans(), short, short, short)


@given(forwarded=requests)
def test_a_request_comes_out_as_it_went_in(forwarded):
    assert ForwardedRequest.decode(forwarded.encode()) == forwarded
    assert method_of(forwarded.encode()) == forwarded.method


@given(requests, st.integers(0, 2**32 - 1))
def test_a_request_that_is_asked_again_differs_in_its_time_only(forwarded, left_ms):
    again = asked_again(forwarded.encode(), left_ms=left_ms)
    assert ForwardedRequest.decode(again) == forwarded._replace(left_ms=left_ms)


@given(answers)
def test_an_answer_comes_out_as_it_went_in(answer):
    assert ForwardedAnswer.decode(answer.encode()) == answer


@given(st.binary(max_size=100), st.sampled_from(DECODERS))
def test_any_bytes_are_read_or_refused(data, decode):
    with suppress(BadForward):
        decode(data)


def test_a_path_beyond_its_length_is_refused():
    request = ForwardedRequest(0, b"GET", b"x" * 65_536, b"", b"", b"")
    with pytest.raises(BadForward, match="too long"):
        request.encode()
