"""What clients and nodes say to each other: bytes that stay, round trips, and nothing but BadFrame
for all others."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.cluster.peer_link.client_frames import (
    AUTHORIZATION_BYTES_MAX,
    METADATA_MAX,
    OF_CLIENTS,
    CallEnd,
    CallOpening,
    Login,
)
from waterclock.cluster.peer_link.frames import HEADER, BadFrame, Decoder, Kind, encode

logins = st.builds(
    lambda features, heartbeat_ms, more_ms, text: Login(
        features, heartbeat_ms, heartbeat_ms + more_ms, text
    ),
    st.integers(0, 2**32 - 1),
    st.integers(1, 100_000),
    st.integers(0, 100_000),
    st.text(max_size=100),
)
openings = st.builds(
    CallOpening,
    st.text(max_size=100),
    st.integers(0, 2**32 - 1),
    st.lists(st.tuples(st.text(max_size=20), st.text(max_size=50)), max_size=METADATA_MAX).map(
        tuple
    ),
)
ends = st.builds(
    CallEnd,
    st.integers(0, 16),
    st.text(max_size=50),
    st.lists(st.tuples(st.text(max_size=20), st.text(max_size=50)), max_size=5),
)


def test_bytes_on_the_wire_do_not_change():
    login = Login(3, 1_000, 3_500, "Bearer x")
    opening = CallOpening("S/M", 250, (("a", "b"),))

    assert login.encode().hex(" ", -4) == bytes.fromhex(
        "00000015 09 0000000000000000 01 00000003 000003e8 00000dac 4265617265722078"
    ).hex(" ", -4)
    assert opening.encode() == bytes.fromhex("000000fa 01 0003532f4d 000161 000162")
    assert CallEnd(5, "no", [("k", "v")]).encode() == (
        b'{"code":5,"details":"no","metadata":[["k","v"]]}'
    )


@given(logins)
def test_a_login_comes_out_as_it_went_in(login):
    (frame,) = Decoder(OF_CLIENTS).feed(login.encode())

    assert (frame.kind, frame.channel) == (Kind.LOGIN, 0)
    assert Login.decode(frame.payload) == login


@given(openings, st.binary(max_size=50))
def test_a_call_comes_out_as_it_went_in_with_where_its_items_begin(opening, items):
    found, at = CallOpening.decode(opening.encode() + items)

    assert found == opening
    assert (opening.encode() + items)[at:] == items


@given(ends)
def test_an_end_comes_out_as_it_went_in(end):
    assert CallEnd.decode(end.encode()) == end


@given(st.binary(max_size=200))
def test_any_bytes_are_a_login_a_call_and_an_end_or_one_error(data):
    for decode in (Login.decode, CallOpening.decode, CallEnd.decode):
        with suppress(BadFrame):
            decode(data)


@given(openings, st.data())
def test_a_call_that_is_cut_off_is_refused(opening, data):
    whole = opening.encode()
    cut = data.draw(st.integers(0, len(whole) - 1))

    with pytest.raises(BadFrame, match=r"cut off|without its head"):
        CallOpening.decode(whole[:cut])


@pytest.mark.parametrize(
    ("header", "is_admitted", "reason"),
    [
        ((0, Kind.HELLO, 0), False, "kind 1 is unknown"),
        ((0, 13, 1), True, "kind 13 is unknown"),
        ((0, Kind.PUBLISH, 1), False, "prove first who you are"),
        ((0, Kind.PUBLISH, 0), True, "kind 10 on channel 0"),
        ((0, Kind.LOGIN, 1), False, "kind 9 on channel 1"),
        ((AUTHORIZATION_BYTES_MAX + 14, Kind.LOGIN, 0), False, "bytes are too many"),
    ],
)
def test_a_frame_of_a_client_is_refused_at_its_header(header, is_admitted, reason):
    decoder = Decoder(OF_CLIENTS)
    decoder.is_admitted = is_admitted

    with pytest.raises(BadFrame, match=reason):
        list(decoder.feed(HEADER.pack(*header)))


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "too short"),
        (b"\2\0\0\0\0\0\0\0\1\0\0\0\1", "version 2"),
        (b"\1\0\0\0\0\0\0\0\0\0\0\0\1", "heartbeat"),
        (b"\1\0\0\0\0\0\0\0\2\0\0\0\1", "heartbeat"),
        (b"\1\0\0\0\0\0\0\0\1\0\0\0\1\xff", "UTF-8"),
    ],
)
def test_a_login_that_is_wrong_is_refused_with_the_reason(payload, reason):
    with pytest.raises(BadFrame, match=reason):
        Login.decode(payload)


def test_too_much_metadata_is_refused_by_its_limit():
    opening = CallOpening("S/M", 0, (("k", "v"),) * (METADATA_MAX + 1))

    with pytest.raises(BadFrame, match=f"metadata: 33 entries; {METADATA_MAX} are allowed"):
        CallOpening.decode(opening.encode())


def test_what_clients_say_first_never_looks_like_http():
    longest = Login(3, 1, 1, "x" * AUTHORIZATION_BYTES_MAX).encode()

    assert {Login(0, 1, 1).encode()[0], longest[0], encode(Kind.CLOSE)[0]} == {0}
