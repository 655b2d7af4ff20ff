"""Frames are these bytes, whatever the code says; hostile bytes raise BadFrame and nothing else."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.dispatch import frames
from waterclock.dispatch.decoder import Decoder
from waterclock.dispatch.frames import (
    LEADER_READS,
    STRANGER_READS,
    WORKER_READS,
    AckBatch,
    AckMessage,
    Auth,
    BadFrame,
    Close,
    Contexts,
    Credit,
    Frame,
    Heartbeat,
    Hello,
    Nack,
    ProcessBatch,
    ProcessMessage,
    Progress,
    Token,
    Welcome,
    parse_uuid,
)

ONE = bytes.fromhex("00112233445546778899aabbccddeeff")
TWO = bytes.fromhex("ffeeddccbbaa49988877665544332211")
TEXT = b"00112233-4455-4677-8899-aabbccddeeff"


def encode(frame: Frame) -> bytes:
    match frame:
        case ProcessMessage(uuid, body):
            return frames.encode_process_message(uuid, body)
        case AckMessage(uuid):
            text = frames.uuid_text(uuid).encode()
            return frames.HEADER.pack(frames.VERSION, frames.ACK_MESSAGE, len(text)) + text
        case Hello(epoch, credit, name):
            return frames.encode_hello(epoch=epoch, credit=credit, name=name)
        case Welcome(epoch, deadline_ms, heartbeat_ms, silence_ms_max):
            return frames.encode_welcome(
                epoch=epoch,
                deadline_ms=deadline_ms,
                heartbeat_ms=heartbeat_ms,
                silence_ms_max=silence_ms_max,
            )
        case Credit(epoch, credit):
            return frames.encode_credit(epoch=epoch, credit=credit)
        case Progress(epoch, uuids):
            return frames.encode_progress(epoch=epoch, uuids=uuids)
        case Nack(epoch, uuids, reason, is_permanent):
            return frames.encode_nack(
                epoch=epoch, uuids=uuids, reason=reason, is_permanent=is_permanent
            )
        case ProcessBatch(epoch, deliveries, uuids, births_ms, bodies):
            return frames.encode_process_batch(
                epoch=epoch, deliveries=deliveries, uuids=uuids, births_ms=births_ms, bodies=bodies
            )
        case AckBatch(epoch, uuids):
            return frames.encode_ack_batch(epoch=epoch, uuids=uuids)
        case Close(epoch, reason):
            return frames.encode_close(epoch=epoch, reason=reason)
        case Heartbeat(epoch):
            return frames.encode_heartbeat(epoch=epoch)
        case Auth(is_proof, data):
            return frames.encode_auth(data, is_proof=is_proof)
        case Contexts(epoch, contexts):
            return frames.encode_contexts(epoch=epoch, contexts=contexts)
        case Token(text):
            return frames.encode_token(text)


# docs/formats/dispatch_frames.md draws these. A change here breaks workers that are out there.
GOLDEN: list[tuple[Frame, str]] = [
    (ProcessMessage(ONE, b'{"a":1}'), "01 00 0000002c" + TEXT.hex() + "3a" + b'{"a":1}'.hex()),
    (AckMessage(ONE), "01 01 00000024" + TEXT.hex()),
    (Hello(7, 1_000, "w\u00f6"), "01 02 0000000f 0000000000000007 000003e8 77c3b6"),
    (
        Welcome(7, 2_000, 500, 1_500),
        "01 03 00000014 0000000000000007 000007d0 000001f4 000005dc",
    ),
    (Credit(7, 0), "01 04 0000000c 0000000000000007 00000000"),
    (Progress(7, [ONE]), "01 05 00000018 0000000000000007" + ONE.hex()),
    (
        Nack(7, [ONE, TWO], "no", True),
        "01 06 0000002d 0000000000000007 01 0002 6e6f" + ONE.hex() + TWO.hex(),
    ),
    (
        ProcessBatch(7, 1, [ONE, TWO], [1, 2], [b"{}", b""]),
        "01 07 00000048 0000000000000007 0001 00000002"
        "0000000000000001 0000000000000002 00000002 00000000" + ONE.hex() + TWO.hex() + "7b7d",
    ),
    (AckBatch(7, [ONE, TWO]), "01 08 00000028 0000000000000007" + ONE.hex() + TWO.hex()),
    (Close(7, "bye"), "01 09 0000000b 0000000000000007 627965"),
    (Heartbeat(7), "01 0a 00000008 0000000000000007"),
    (Auth(True, ONE + TWO), "01 0b 00000021 01" + ONE.hex() + TWO.hex()),
    (
        Contexts(7, {ONE: b"00-a-b-01 v=1", TWO: b""}),
        "01 0c 00000039 0000000000000007"
        + ONE.hex()
        + "000d"
        + b"00-a-b-01 v=1".hex()
        + TWO.hex()
        + "0000",
    ),
    (Token("a.b.c"), "01 0d 00000005" + b"a.b.c".hex()),
]
ALL = tuple(range(14))


@pytest.mark.parametrize(("frame", "said"), GOLDEN, ids=lambda each: type(each).__name__)
def test_every_frame_has_its_bytes(frame, said):
    raw = bytes.fromhex(said)

    assert encode(frame) == raw
    assert Decoder(ALL).feed(raw) == [frame]


def test_every_command_has_golden_bytes():
    assert [bytes.fromhex(said)[1] for _, said in GOLDEN] == list(ALL)
    assert sorted({*LEADER_READS, *WORKER_READS}) == list(ALL)


epochs = st.integers(0, (1 << 64) - 1)
uuids = st.binary(min_size=16, max_size=16)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@st.composite
def uuid4s(draw):
    raw = bytearray(draw(uuids))
    raw[6], raw[8] = raw[6] & 0x0F | 0x40, raw[8] & 0x3F | 0x80
    return bytes(raw)


@st.composite
def process_batches(draw):
    messages = draw(
        st.lists(st.tuples(uuids, epochs, st.binary(max_size=20)), min_size=1, max_size=9)
    )
    ids, births, bodies = (list(each) for each in zip(*messages, strict=True))
    return ProcessBatch(draw(epochs), draw(st.integers(0, 65_535)), ids, births, bodies)


some_uuids = st.lists(uuids, min_size=1, max_size=9)
any_credit = st.integers(0, frames.CREDIT_MAX)
times = st.integers(1, (1 << 32) - 1)
any_frame = st.one_of(
    st.builds(ProcessMessage, uuid4s(), st.binary(max_size=50)),
    st.builds(AckMessage, uuid4s()),
    st.builds(Hello, epochs, any_credit, st.text("abc\u00e4\u6c34 ", min_size=1, max_size=50)),
    st.builds(Welcome, epochs, times, times, times),
    st.builds(Credit, epochs, any_credit),
    st.builds(Progress, epochs, some_uuids),
    st.builds(Nack, epochs, some_uuids, texts, st.booleans()),
    process_batches(),
    st.builds(AckBatch, epochs, some_uuids),
    st.builds(Close, epochs, texts),
    st.builds(Heartbeat, epochs),
    st.builds(Auth, st.booleans(), st.binary(min_size=32, max_size=32)),
    st.builds(
        Contexts, epochs, st.dictionaries(uuids, st.binary(max_size=60), min_size=1, max_size=9)
    ),
    st.builds(Token, st.text(min_size=1, max_size=100)),
)


@given(st.lists(any_frame, max_size=6), st.randoms(use_true_random=False))
def test_frames_come_out_as_they_went_in_however_the_bytes_are_cut(sent, rng):
    raw = b"".join(map(encode, sent))
    decoder, received, at = Decoder(ALL), [], 0
    while at < len(raw):
        step = rng.choice([1, 2, 5, 7, 50, 10_000])
        received += decoder.feed(raw[at : at + step])
        at += step

    assert received == sent
    assert repr(decoder) == "<Decoder 0 bytes wait>"


@given(st.binary(max_size=200), st.sampled_from([LEADER_READS, WORKER_READS, STRANGER_READS, ALL]))
def test_noise_raises_bad_frame_only(noise, commands):
    decoder = Decoder(commands)
    try:
        decoder.feed(noise)
    except BadFrame:
        with pytest.raises(BadFrame):
            decoder.feed(b"")


@given(st.integers(0, 11), st.binary(max_size=120))
def test_any_payload_under_a_right_header_raises_bad_frame_only(command, payload):
    raw = frames.HEADER.pack(1, command, len(payload)) + payload
    try:
        (frame,) = Decoder(ALL).feed(raw)
    except BadFrame:
        return
    assert Decoder(ALL).feed(encode(frame)) == [frame]


def test_mutated_frames_raise_bad_frame_only():
    rng = Random(17)
    good = [bytes.fromhex(said) for _, said in GOLDEN]
    refused = 0
    for _ in range(20_000):
        raw = bytearray(rng.choice(good) + rng.choice(good))
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(raw))
            match rng.randrange(4):
                case 0:
                    raw[at] = rng.randrange(256)
                case 1:
                    raw[at] ^= 1 << rng.randrange(8)
                case 2:
                    del raw[at : at + rng.randrange(1, 9)]
                case 3:
                    raw[at:at] = rng.randbytes(rng.randrange(1, 9))
            if not raw:
                break
        decoder = Decoder(ALL)
        try:
            decoder.feed(bytes(raw))
        except BadFrame:
            refused += 1
        assert len(decoder._rest) <= len(raw)

    assert 5_000 < refused < 20_000


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("47", "version 71, this is version 1"),  # the G of GET
        ("01 63 00000000", "command 99 is not for this side"),
        ("01 07 00000000", "command 7 is not for this side"),
        ("01 08 ffffffff", "command 8 with a payload of 4294967295 bytes"),
        ("01 08 00000008 0000000000000001", "command 8 with a payload of 8 bytes"),
        ("01 08 00000019 0000000000000001" + "00" * 17, "uuids do not fill the frame"),
        ("01 02 0000000d 0000000000000001 00000001 ff", "a text that is not UTF-8"),
        ("01 02 0000000d 0000000000000001 00000001 0a", "a name that cannot be printed"),
        ("01 02 0000000d 0000000000000001 ffffffff 61", "a credit of 4294967295"),
        ("01 01 00000024" + "30" * 36, "no uuid4"),
        ("01 06 0000001b 0000000000000001 02 0000" + "00" * 16, "a flag or a length out of range"),
        ("01 0b 00000021 02" + "00" * 32, "step 2 of a handshake"),
        ("01 0b 00000020" + "00" * 32, "command 11 with a payload of 32 bytes"),
        ("01 06 0000001b 0000000000000001 01 0400" + "00" * 16, "a flag or a length out of range"),
    ],
)
def test_a_leader_says_what_is_wrong(raw, reason):
    with pytest.raises(BadFrame) as caught:
        Decoder(LEADER_READS).feed(bytes.fromhex(raw))

    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("01 07 0000002a 0000000000000001 0001 00000000" + "00" * 28, "0 messages"),
        ("01 07 0000002a 0000000000000001 0001 00000002" + "00" * 28, "too short for its messages"),
        ("01 07 0000002b 0000000000000001 0001 00000001" + "00" * 29, "bodies do not fill"),
        ("01 00 00000025" + TEXT.hex() + "3b", "no colon behind the uuid"),
        ("01 03 00000014 0000000000000007 00000000 000001f4 000005dc", "a time of 0"),
        ("01 0c 0000001b 0000000000000007" + ONE.hex() + "0000" + "00", "contexts do not fill"),
        ("01 0c 0000001a 0000000000000007" + ONE.hex() + "0001", "a context out of range"),
    ],
)
def test_a_worker_says_what_is_wrong(raw, reason):
    with pytest.raises(BadFrame, match=reason):
        Decoder(WORKER_READS).feed(bytes.fromhex(raw))


def test_good_frames_before_a_bad_one_are_not_lost():
    good = AckBatch(7, [ONE])

    with pytest.raises(BadFrame) as caught:
        Decoder(LEADER_READS).feed(encode(good) + b"\x02")

    assert caught.value.frames == (good,)


def test_a_frame_that_is_too_long_is_refused_before_it_arrives():
    decoder = Decoder(LEADER_READS)
    most = 8 + 16 * frames.UUIDS_MAX

    assert decoder.feed(frames.HEADER.pack(1, frames.ACK_BATCH, most)) == []
    with pytest.raises(BadFrame):
        Decoder(LEADER_READS).feed(frames.HEADER.pack(1, frames.ACK_BATCH, most + 16))


def test_a_uuid_that_is_not_of_version_4_is_refused():
    assert parse_uuid(TEXT) == ONE
    for wrong in (
        TEXT.replace(b"-4677-", b"-1677-"),
        TEXT.replace(b"-8899-", b"-c899-"),
        TEXT.replace(b"0011", b" 011"),
        TEXT.replace(b"0011", b"g011"),
        TEXT.replace(b"0011", "\u0661".encode() + b"11"),
        TEXT.replace(b"-", b""),
        TEXT + b"0",
    ):
        with pytest.raises(BadFrame):
            parse_uuid(wrong)


@given(st.text(max_size=50), st.integers(0, 30))
def test_cut_text_is_utf8_and_short(text, most):
    raw = frames.cut(text, most)

    assert len(raw) <= most
    assert text.encode(errors="replace").startswith(raw)
    raw.decode()
