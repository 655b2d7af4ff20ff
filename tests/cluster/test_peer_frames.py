"""The frames between nodes: golden bytes, both ways, and hostile input."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.cluster.peer_link.frames import (
    HEADER,
    PAYLOAD_BYTES_MAX,
    STRANGER_BYTES_MAX,
    BadFrame,
    Decoder,
    Frame,
    Hello,
    Kind,
    decode_auth,
    decode_credit,
    decode_hello,
    decode_reason,
    encode,
    encode_auth,
    encode_hello,
    encode_reason,
)

NONCE = bytes(range(32))
GOLDEN = {
    encode_auth(NONCE, is_proof=True): "00000021 00 0000000000000000 01" + NONCE.hex(),
    encode_hello(Hello("a", "wc", 500, 2_000)): (
        "0000000e 01 0000000000000000 01 000001f4 000007d0 0161 027763"
    ),
    encode(Kind.REQUEST, 7, b"\x01\x05body"): "00000006 02 0000000000000007 01 05 626f6479",
    encode(Kind.HEARTBEAT): "00000000 07 0000000000000000",
    encode_reason(Kind.CLOSE, 0, "é"): "00000002 08 0000000000000000 c3a9",
}

names = st.text(max_size=60).filter(lambda name: 0 < len(name.encode()) <= 255)
frames = st.builds(
    Frame,
    st.sampled_from([Kind.REQUEST, Kind.ANSWER, Kind.PIECE, Kind.CREDIT, Kind.CANCEL]),
    st.integers(1, 2**64 - 1),
    st.binary(max_size=300),
)


def admitted() -> Decoder:
    decoder = Decoder()
    decoder.is_admitted = True
    return decoder


@pytest.mark.parametrize(("frame", "expected"), GOLDEN.items(), ids=range(len(GOLDEN)))
def test_bytes_on_the_wire_do_not_change(frame, expected):
    assert frame == bytes.fromhex(expected)


@given(st.lists(frames, max_size=6), st.lists(st.integers(1, 400), max_size=20))
def test_frames_come_out_as_they_went_in_however_they_are_cut(sent, cuts):
    data = b"".join(encode(Kind(kind), channel, payload) for kind, channel, payload in sent)
    decoder = admitted()
    received: list[Frame] = []
    for cut in cuts:
        received += decoder.feed(data[:cut])
        data = data[cut:]
    received += decoder.feed(data)
    assert received == sent


@given(names, names, st.integers(1, 10_000), st.integers(0, 10_000))
def test_a_hello_comes_out_as_it_went_in(node_id, cluster, heartbeat_ms, more_ms):
    hello = Hello(node_id, cluster, heartbeat_ms, heartbeat_ms + more_ms)
    (frame,) = Decoder().feed(encode_hello(hello))
    assert decode_hello(frame.payload) == hello


@given(st.text(max_size=2_000))
def test_a_reason_stays_on_one_line_and_within_its_bounds(reason):
    (frame,) = admitted().feed(encode_reason(Kind.CANCEL, 1, reason))
    text = decode_reason(frame.payload)
    assert text == "" or text.isprintable()


@given(st.binary(max_size=400), st.booleans())
def test_any_bytes_are_frames_or_one_error(data, is_admitted):
    decoder = Decoder()
    decoder.is_admitted = is_admitted
    with suppress(BadFrame):
        for frame in decoder.feed(data):
            assert len(frame.payload) <= PAYLOAD_BYTES_MAX
    assert len(decoder._buffer) <= len(data)


@given(
    st.binary(max_size=80),
    st.sampled_from([decode_auth, decode_hello, decode_reason, decode_credit]),
)
def test_any_payload_is_read_or_refused(payload, decode):
    with suppress(BadFrame):
        decode(payload)


@pytest.mark.parametrize(
    ("header", "is_admitted", "reason"),
    [
        ((0, 9, 0), True, "kind 9 is unknown"),
        ((PAYLOAD_BYTES_MAX + 1, Kind.PIECE, 1), True, "1048577 bytes are too many"),
        ((STRANGER_BYTES_MAX + 1, Kind.HELLO, 0), False, "1101 bytes are too many"),
        ((0, Kind.REQUEST, 1), False, "prove first who you are"),
        ((0, Kind.HEARTBEAT, 0), False, "prove first who you are"),
        ((0, Kind.REQUEST, 0), True, "kind 2 on channel 0"),
        ((0, Kind.CLOSE, 3), True, "kind 8 on channel 3"),
    ],
)
def test_a_frame_is_refused_at_its_header(header, is_admitted, reason):
    decoder = Decoder()
    decoder.is_admitted = is_admitted
    with pytest.raises(BadFrame, match=reason):
        list(decoder.feed(HEADER.pack(*header)))


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "too short"),
        (b"\2\0\0\0\1\0\0\0\1\1a\0", "version 2"),
        (b"\1\0\0\0\0\0\0\0\1\1a\0", "heartbeat"),
        (b"\1\0\0\0\2\0\0\0\1\1a\0", "heartbeat"),
        (b"\1\0\0\0\1\0\0\0\1\5a\0", "node id is cut off"),
        (b"\1\0\0\0\1\0\0\0\1\1a", "cluster name is cut off"),
        (b"\1\0\0\0\1\0\0\0\1\0\1a", "and nothing else"),
        (b"\1\0\0\0\1\0\0\0\1\1a\1b!", "and nothing else"),
        (b"\1\0\0\0\1\0\0\0\1\1\xff\0", "not UTF-8"),
    ],
)
def test_a_hello_that_says_nonsense_is_refused_by_name(payload, reason):
    with pytest.raises(BadFrame, match=reason):
        decode_hello(payload)
