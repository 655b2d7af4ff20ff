"""What nodes say about streams comes out as it went in, and nothing else does."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.cluster.handed_over import (
    BadHandover,
    Chunk,
    Greeting,
    Question,
    decode,
    decode_number,
    encode_number,
)

numbers = st.integers(0, 2**64 - 1)
requests = st.one_of(
    st.just(Greeting()),
    st.builds(Question, numbers),
    st.builds(Chunk, numbers, numbers, st.lists(st.binary(max_size=9), max_size=3).map(tuple)),
)


@given(requests)
def test_a_request_comes_out_as_it_went_in(request_):
    decoded = decode(request_.encode())
    assert (type(decoded), decoded) == (type(request_), request_)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data):
    with suppress(BadHandover):
        decode(data)
    with suppress(BadHandover):
        decode_number(data)


def test_bytes_on_the_wire_do_not_change():
    assert Greeting().encode() == b"\1"
    assert Question(7).encode() == bytes.fromhex("02 0000000000000007")
    assert Chunk(7, 8, (b"ab", b"")).encode() == bytes.fromhex(
        "03 0000000000000007 0000000000000008 00000002 6162 00000000"
    )
    assert encode_number(9) == bytes.fromhex("0000000000000009")


def test_a_chunk_that_is_cut_off_is_refused():
    for end in (1, 4):
        with pytest.raises(BadHandover, match="ends before"):
            decode(Chunk(7, 8, (b"abc",)).encode()[:-end])
