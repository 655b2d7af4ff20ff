"""The offset map: what goes in comes out, it fits, and nothing strange makes work look done."""

import base64
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.burrow.core import offset_map as offset_map
from waterclock.burrow.core.offset_map import RAW_BYTES_MAX, TEXT_UNITS_MAX, OffsetMaps

FAR = 1 << 60
texts = st.sampled_from(["base32768", "base64"])


@st.composite
def bases_and_runs(draw):
    base = draw(st.integers(0, 1 << 50))
    sizes = st.one_of(st.integers(1, 3), st.integers(1, 1 << 30))
    at, runs = base, []
    for gap, length in draw(st.lists(st.tuples(sizes, sizes), max_size=40)):
        runs.append((at + gap, at + gap + length))
        at += gap + length
    return base, runs


def maps(text="base32768", units_max=4_095):
    return OffsetMaps(units_max=units_max, text=text)


@given(bases_and_runs(), texts)
def test_a_map_comes_back_as_it_was(case, text):
    base, runs = case
    encoded = maps(text).encode(base, runs)

    assert encoded.is_whole
    assert encoded.runs == tuple(runs)
    assert maps().decode(encoded.text, base=base, log_end=FAR) == runs


@given(bases_and_runs(), texts, st.integers(0, 60))
def test_a_map_that_does_not_fit_keeps_its_lowest_runs(case, text, units_max):
    base, runs = case
    encoded = maps(text, units_max).encode(base, runs)
    kept = maps().decode(encoded.text, base=base, log_end=FAR)

    assert len(encoded.text.encode("utf-16-le")) // 2 <= units_max
    assert kept == runs[: len(kept)]
    assert encoded.is_whole == (kept == runs)
    assert not encoded.is_whole or encoded.usage <= 1


@given(bases_and_runs(), texts, st.integers(0, 1 << 33))
def test_nothing_at_or_above_the_end_of_the_log_is_believed(case, text, length):
    base, runs = case
    log_end = base + length
    decoded = maps().decode(maps(text).encode(base, runs).text, base=base, log_end=log_end)

    assert decoded == [(low, min(high, log_end)) for low, high in runs if low < log_end]


@given(bases_and_runs(), texts, st.integers(1, 1 << 40))
def test_a_map_made_for_another_offset_is_no_map(case, text, shift):
    base, runs = case
    encoded = maps(text).encode(base, runs)

    assert maps().decode(encoded.text, base=base + shift, log_end=FAR) == []


def test_without_the_end_of_the_log_a_map_is_not_believed():
    assert maps().decode(maps().encode(5, [(7, 9)]).text, base=5, log_end=None) == []


@given(bases_and_runs(), texts, st.data())
def test_a_damaged_map_is_no_map(case, text, data):
    base, runs = case
    encoded = maps(text).encode(base, runs or [(base + 1, base + 2)]).text
    at = data.draw(st.integers(0, len(encoded) - 1))
    dead_letter = data.draw(st.characters(exclude_categories=["Cs"]))
    damaged = encoded[:at] + dead_letter + encoded[at + 1 :]

    if damaged != encoded:
        assert maps().decode(damaged, base=base, log_end=FAR) == []


@given(st.one_of(st.text(), st.text().map("W1".__add__), st.text().map("w1".__add__)))
def test_any_other_text_is_no_map(text):
    assert maps().decode(text, base=3, log_end=FAR) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host-1/consumer",
        base64.b64encode(b"o" + bytes(40)).decode(),  # Parallel Consumer: bits
        base64.b64encode(b"e" + bytes(40)).decode(),  # Parallel Consumer: runs
        base64.b64encode(bytes([2]) + bytes(8)).decode(),  # Kafka Streams: a partition time
        "1-3,5-6,8",  # pyrallel-consumer
        "W1" + "㐀" * TEXT_UNITS_MAX,
    ],
)
def test_what_others_write_is_no_map(text):
    assert maps().decode(text, base=0, log_end=FAR) == []


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (0, b"\x01\x01"),
        (5, b"\x01\x01"),
        (1, b""),
        (1, b"\x00\x05"),  # no gap before the run: the base itself would be finished
        (1, b"\x05\x00"),
        (1, b"\x05"),
        (1, b"\x05\x85"),
        (1, b"\x01" + b"\xff" * 9 + b"\x01"),  # over 63 bits
        (2, b"\xff\xff"),
        (2, offset_map._deflated(b"\x01\x01") + b"more"),
        (3, b"\xff"),  # the base itself would be finished
        (4, offset_map._deflated(b"\x7f" + b"\xff" * RAW_BYTES_MAX * 100)),  # a bomb
    ],
)
def test_a_map_with_a_right_checksum_and_a_wrong_body_is_no_map(kind, body):
    data = offset_map._header(0, kind, body) + body
    text = "w1" + base64.b64encode(data).decode().rstrip("=")

    assert maps().decode(text, base=0, log_end=FAR) == []


def test_all_four_forms_are_used():
    rng = Random(4)
    spread = [(at, at + rng.randint(1, 1 << 20)) for at in range(1, 1 << 30, 1 << 25)]
    dense = sorted(rng.sample(range(2, 4_000, 2), 1_000))
    cases = {
        1: [(9, 1_000_000)],
        2: [(at, at + 50_000) for at in range(1, 100_000_000, 100_000)],
        3: [(at, at + 1) for at in dense[:60] if at < 200],
        4: [(at, at + 1) for at in range(1, 60_000, 2)],
    }
    kinds = {}
    for kind, runs in cases.items():
        text = maps().encode(0, runs).text
        data = offset_map._from_text(text)
        assert data is not None
        kinds[kind] = data[0]

    assert kinds == {1: 1, 2: 2, 3: 3, 4: 4}
    assert maps().encode(0, spread).is_whole


def test_a_thousand_holes_fit_into_a_commit():
    runs = [(at + 1 + at % 7, at + 1_000) for at in range(0, 1_000_000, 1_000)]
    encoded = maps().encode(0, runs)

    assert encoded.is_whole
    assert encoded.usage < 0.75


def test_base64_needs_more_than_twice_the_room():
    runs = [(at, at + 1 + at * at % 997) for at in range(1, 500_000, 1_000)]

    assert maps("base64").encode(0, runs).usage > 2 * maps().encode(0, runs).usage


def test_a_broker_that_refuses_gets_half():
    smaller = maps()
    smaller.shrink()

    assert smaller.units_max == 2_047


def test_no_room_is_no_map_and_no_pressure():
    encoded = maps(units_max=0).encode(0, [(1, 2)])

    assert (encoded.text, encoded.is_whole, encoded.usage) == ("", False, 0.0)


@pytest.mark.parametrize(
    ("text", "base", "runs"),
    [
        ("W1㖅菕乨㰀", 1_000, [(1_001, 1_002)]),
        ("W1㕽凐矌濍㨱닐吁", 7, [(at, at + 50_000) for at in range(8, 3_000_000, 100_000)]),
        ("W1㘣䯔猺榤廸㐂", 5, [(at, at + 1) for at in range(7, 900, 2)]),
        ("w1Aws/VNNA", 1_000, [(1_001, 1_002)]),
        ("w1Avp3Qh5jvNDGPLQQAA", 7, [(at, at + 50_000) for at in range(8, 3_000_000, 100_000)]),
    ],
)
def test_what_version_1_wrote_is_read_for_ever(text, base, runs):
    assert maps().decode(text, base=base, log_end=FAR) == runs
