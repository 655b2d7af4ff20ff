"""The wire of memberlist: bytes recorded from a Serf agent, round trips, and any bytes at all."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.cluster.gossip.errors import BadPacket
from waterclock.cluster.gossip.keyring import Keyring
from waterclock.cluster.gossip.messages import (
    Ack,
    Alive,
    Dead,
    ErrorAnswer,
    IndirectPing,
    Message,
    Nack,
    Ping,
    Suspect,
    User,
    decode,
    encode,
    host_of,
)
from waterclock.cluster.gossip.packets import PARTS_MAX, packed, unpacked
from waterclock.cluster.gossip.serf import VERSIONS, decode_tags, encode_tags, leave_intent
from waterclock.cluster.gossip.streams import (
    NodeState,
    PushPull,
    State,
    StreamMessage,
    StreamReader,
    encode_stream,
    sealed_stream,
)

GO = ("127.0.0.1", 17946)
PY = ("127.0.0.1", 17950)
GO_META = encode_tags({"id": "n1", "zone": "a"})
GO_VERSIONS = bytes((1, 5, 2, 2, 5, 5))
GO_ALIVE = Alive(1, "go1", GO, GO_META, GO_VERSIONS)
PY_ALIVE = Alive(100, "py1", PY, encode_tags({"k": "v"}), VERSIONS)
GO_PING = Ping(1, "py1", GO, "go1")

PACKETS: dict[str, tuple[str, list[Message]]] = {
    "ping": (
        "0085a44e6f6465a3707931a55365714e6f01aa536f7572636541646472a47f000001aa536f757263654e6f6465a3"
        "676f31aa536f75726365506f7274cd461a",
        [GO_PING],
    ),
    "suspect under a checksum": (
        "0c506381880383a446726f6da3676f31ab496e6361726e6174696f6e64a44e6f6465a3707931",
        [Suspect(100, "py1", "go1")],
    ),
    "compound under a checksum": (
        "0c02e0d02e0702003f00210085a44e6f6465a3707931a55365714e6f02aa536f7572636541646472a47f000001aa"
        "536f757263654e6f6465a3676f31aa536f75726365506f7274cd461a0383a446726f6da3676f31ab496e6361726e"
        "6174696f6e64a44e6f6465a3707931",
        [GO_PING._replace(seq_no=2), Suspect(100, "py1", "go1")],
    ),
    "gossip": (
        "0ce4239aea0702004a00410486a441646472a47f000001ab496e6361726e6174696f6e01a44d657461afff82a269"
        "64a26e31a47a6f6e65a161a44e6f6465a3676f31a4506f7274cd461aa356736ea60105020205050486a441646472"
        "a47f000001ab496e6361726e6174696f6e64a44d657461a6ff81a16ba176a44e6f6465a3707931a4506f7274cd46"
        "1ea356736ea6010502020504",
        [GO_ALIVE, PY_ALIVE],
    ),
}
"""What a Serf agent sent, as recorded, and what it says."""

COMPRESSED_ACK = bytes.fromhex(
    "0982a4416c676f00a3427566da00e1000f0c0060098012004104083a05254c1e366fc290d10640500042aa82905153"
    "670e9d3665dcd05906a0a4c992a58ac891f346ceb21ff84e963485a44c9a336846fa2087af16a27168e28db252660c"
    "2692324b224dba5466d3934f4d46559a946ad55253cac471f2e6000143a434929143ea4fc900ab92b81913468e9b30"
    "74d2bc71138054933274c2bcfa2748541a32a2dcc420a5676e9950614871255366d4993783a1b4a4d3cc8886a173dc"
    "980a504080800205be862533b6ecd9b46bdbbe8d3b978c5dbc614cfd0b146a4d283b8adf301e05274fe4c9953d60d6"
    "ccd973e880"
)
COMPRESSED_STREAM = bytes.fromhex(
    "0982a4416c676f00a3427566b70005083a05254c1e366fc29001566a4a99384ede240808"
)
SEALED_STREAM = bytes.fromhex(
    "0a00000041010b21cfa9f9ddd1b9e0388093e3a28dc239c379721b002fb07161070b587f384f33bfa63d23683a70"
    "647ffb207cdcc673c88b563ca77c013e5b910c30430b1eca"
)
SEALED_WITH = bytes(range(16))

texts = st.text(min_size=1, max_size=60)
numbers = st.integers(0, 2**32 - 1)
hosts = st.ip_addresses().map(lambda address: host_of(address.packed))
addresses = st.tuples(hosts, st.integers(1, 65_535))
metas = st.binary(max_size=512)
short_pings = st.tuples(numbers, texts).map(lambda both: Ping(*both))
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(Ping, numbers, texts, addresses, texts),
    short_pings,
    st.builds(IndirectPing, numbers, addresses, texts, st.booleans(), addresses, texts),
    st.builds(Ack, numbers, st.binary(max_size=300)),
    st.builds(Nack, numbers),
    st.builds(Suspect, numbers, texts, texts),
    st.builds(Dead, numbers, texts, texts),
    st.builds(Alive, numbers, texts, addresses, metas, st.binary(min_size=6, max_size=6)),
    st.builds(User, st.binary(max_size=300)),
    st.builds(ErrorAnswer, texts),
)
states = st.builds(
    NodeState, texts, addresses, metas, numbers, st.sampled_from(State), st.binary(max_size=6)
)
streams: st.SearchStrategy[StreamMessage] = st.one_of(
    st.builds(PushPull, st.lists(states, max_size=5).map(tuple), st.booleans()),
    short_pings,
    numbers.map(Ack),
    st.builds(ErrorAnswer, texts),
    st.builds(User, st.binary(max_size=300)),
)


def in_pieces(reader: StreamReader, data: bytes, size: int) -> StreamMessage | None:
    found = None
    for start in range(0, len(data), size):
        assert found is None
        found = reader.feed(data[start : start + size])
    return found


@pytest.mark.parametrize("name", PACKETS)
def test_what_a_serf_agent_sent_is_read_and_written_to_the_byte(name):
    recorded, said = PACKETS[name]
    data = bytes.fromhex(recorded)

    assert unpacked(data) == said
    assert packed([encode(message) for message in said], has_crc=data[0] == 12) == data


def test_what_a_serf_agent_compressed_is_read():
    ack, *gossip = unpacked(COMPRESSED_ACK)

    assert isinstance(ack, Ack)
    assert ack.seq_no == 7
    assert gossip == [GO_ALIVE, PY_ALIVE]
    assert StreamReader().feed(COMPRESSED_STREAM) == Ack(9)


def test_a_serf_agents_whole_state_is_read_past_the_end_of_the_table_of_codes():
    recorded = (Path(__file__).parent / "samples" / "serf_push_pull.bin").read_bytes()

    found = StreamReader().feed(recorded)

    assert isinstance(found, PushPull)
    assert {state.name for state in found.states} == {"go1", *(f"node-{i:02}" for i in range(36))}
    assert {len(decode_tags(state.meta).get("id", "")) for state in found.states} == {0, 200}


def test_what_a_serf_agent_sealed_is_opened():
    assert StreamReader(Keyring([b"x" * 16, SEALED_WITH])).feed(SEALED_STREAM) == Ack(9)
    with pytest.raises(BadPacket, match="a key that we do not have"):
        StreamReader(Keyring([b"x" * 16])).feed(SEALED_STREAM)


@given(st.lists(messages, min_size=1, max_size=5), st.booleans())
def test_a_packet_is_read_as_it_was_written(said, has_crc):
    assert unpacked(packed([encode(message) for message in said], has_crc=has_crc)) == said


@given(streams, st.integers(1, 64), st.booleans())
def test_a_stream_is_read_as_it_was_written_in_pieces_of_any_size(said, size, is_sealed):
    keyring = Keyring([SEALED_WITH]) if is_sealed else None
    data = encode_stream(said)
    data = sealed_stream(data, keyring, nonce=bytes(12)) if keyring else data

    assert in_pieces(StreamReader(keyring), data, size) == said


@given(
    st.one_of(st.binary(max_size=200), st.builds(lambda kind, body: bytes([kind]) + body,
    st.sampled_from([0, 1, 2, 3, 4, 5, 7, 9, 11, 12, 13]), st.binary(max_size=200)))
)  # fmt: skip
def test_any_bytes_are_messages_or_a_bad_packet(data):
    for read in (unpacked, StreamReader().feed):
        try:
            read(data)
        except BadPacket:
            continue


@given(st.lists(messages, min_size=1, max_size=3), st.data())
def test_a_damaged_packet_is_messages_or_a_bad_packet(said, data):
    packet = bytearray(packed([encode(message) for message in said], has_crc=False))
    place = data.draw(st.integers(0, len(packet) - 1))
    packet[place] = data.draw(st.integers(0, 255))
    for damaged in (bytes(packet), bytes(packet[:place])):
        try:
            unpacked(damaged)
        except BadPacket:
            continue


@given(st.lists(messages, min_size=1, max_size=3), st.data())
def test_no_flipped_bit_passes_the_checksum(said, data):
    packet = bytearray(packed([encode(message) for message in said], has_crc=True))
    place = data.draw(st.integers(1, len(packet) - 1))
    packet[place] ^= 1 << data.draw(st.integers(0, 7))

    with pytest.raises(BadPacket, match="checksum"):
        unpacked(bytes(packet))


def test_layers_stand_in_their_order_and_once():
    ping = encode(Ping(1, "a"))
    twice = packed([packed([ping, ping], has_crc=False), ping], has_crc=False)

    assert unpacked(twice) == [Ping(1, "a")]  # the compound within the compound is left out
    with pytest.raises(BadPacket, match="unknown type 12"):
        unpacked(packed([packed([ping], has_crc=True)], has_crc=True))
    with pytest.raises(BadPacket, match="unknown type 10"):
        unpacked(b"\x0a" + ping)


def test_a_part_of_a_type_that_is_newer_than_we_are_is_left_out():
    newer = b"\x63\x80"

    assert unpacked(packed([newer, encode(Nack(1))], has_crc=False)) == [Nack(1)]
    with pytest.raises(BadPacket, match="unknown type 99"):
        unpacked(packed([newer, newer], has_crc=False))


def test_room_is_not_made_for_what_a_hostile_packet_merely_claims():
    nested = b"\xdd\x00\x00\xff\xff" * 1_000  # arrays in arrays, each of 65,535 items

    with pytest.raises(BadPacket, match="not msgpack"):
        decode(b"\x00" + nested)
    with pytest.raises(BadPacket, match="more than 65535"):
        unpacked(bytes(70_000))
    with pytest.raises(BadPacket, match="Nodes is no number up to"):
        StreamReader().feed(b"\x06\x81\xa5Nodes\xce\xff\xff\xff\xff")


@pytest.mark.parametrize(
    ("body", "match"),
    [
        (b"\x04\x80", "Node is empty"),
        (b"\x04\x82\xa4Node\xa1a\xa4Addr\xa3abc", "address of 3 bytes"),
        (b"\x03\x82\xa4Node\xa1a\xabIncarnation\xff", "Incarnation is no number"),
        (b"\x00\x81\xa4Node\xa1\xff", "Node is not UTF-8"),
        (b"\x00\x81\xa4Node\x05", "Node is not bytes"),
        (b"\x01\x82\xa6Target\xa4abcd\xa4Nack\x01", "Nack is neither"),
        (b"\x02\x90", "no map"),
        (b"", "empty"),
    ],
)
def test_a_field_that_is_wrong_is_named(body, match):
    with pytest.raises(BadPacket, match=match):
        decode(body)


def test_keys_are_skipped_if_unknown_and_zero_if_missing():
    assert decode(b"\x00\x81\xa5Later\x93\x01\x02\x03") == Ping(0, "")
    assert decode(b"\x02\x82\xa5SeqNo\x07\xa7Payload\xc0") == Ack(7, b"")


def test_an_ipv4_address_in_the_form_of_ipv6_is_the_same_address():
    assert host_of(bytes(10) + b"\xff\xff\x7f\x00\x00\x01") == host_of(b"\x7f\x00\x00\x01")


@given(st.dictionaries(st.text(max_size=10), st.text(max_size=10), max_size=5))
def test_tags_are_read_as_they_were_written(tags):
    assert decode_tags(encode_tags(tags)) == tags


def test_metadata_that_are_no_tags_are_the_role_as_serf_has_it():
    assert decode_tags(b"") == {}
    assert decode_tags(b"web") == {"role": "web"}
    for wrong in (b"\xfe\xfd", b"\xff\x01", b"\xff\x81\xa1a\x01", b"\xff\x81\xa1a\xa1\xff"):
        with pytest.raises(BadPacket):
            decode_tags(wrong)


def test_a_leave_intent_is_a_user_message_of_serf():
    expected = bytes.fromhex("080083a54c54696d6507a44e6f6465a16ea55072756e65c2")

    assert encode(leave_intent("n", time=7)) == expected


def test_a_compound_of_the_most_parts_is_read():
    parts = [encode(Nack(number)) for number in range(PARTS_MAX)]

    assert unpacked(packed(parts, has_crc=False)) == [Nack(number) for number in range(PARTS_MAX)]
