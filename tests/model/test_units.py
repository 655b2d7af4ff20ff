"""Sizes and times as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.model.units import COUNT, DURATION, SIZE

amounts = st.integers(0, 2**60) | st.integers(0, 2**20).map(lambda n: n * 2**20)
families = pytest.mark.parametrize("units", [SIZE, DURATION, COUNT], ids=lambda units: units.noun)


@families
@given(amount=amounts)
def test_reading_undoes_showing(units, amount):
    assert units.parse(units.show(amount)) == amount


@families
@given(amount=amounts)
def test_a_bare_number_counts_the_smallest_unit(units, amount):
    assert units.parse(str(amount)) == amount
    assert units.parse(f"{amount:_}") == amount


@families
@given(text=st.text() | st.from_regex(r"[0-9_]{0,5} ?[a-zA-Z]{0,3}", fullmatch=True))
def test_any_text_is_read_or_refused_with_value_error(units, text):
    try:
        amount = units.parse(text)
    except ValueError:
        return
    assert amount >= 0


@pytest.mark.parametrize(
    ("text", "amount"),
    [("512MiB", 2**29), ("512MB", 2**29), ("512 mb", 2**29), (" 1GiB ", 2**30), ("7B", 7)],
)
def test_sizes_are_binary_however_they_are_spelled(text, amount):
    assert SIZE.parse(text) == amount


@pytest.mark.parametrize(
    ("text", "amount"),
    [("100ms", 100), ("30s", 30_000), ("5m", 300_000), ("2h", 7_200_000), ("7d", 604_800_000)],
)
def test_times_are_milliseconds(text, amount):
    assert DURATION.parse(text) == amount


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s",
        "-1s",
        "+1s",
        "1.5s",
        "1e3",
        "1__0s",
        "_1s",
        "1_s",
        "1s1s",
        "1 parsec",
        "٣s",
        "9" * 99,
    ],
)
def test_what_is_not_a_whole_amount_is_refused(text):
    with pytest.raises(ValueError, match="not a"):
        DURATION.parse(text)


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "0B"), (1, "1B"), (1_023, "1023B"), (2**29, "512MiB"), (2**30 + 2**10, "1048577KiB")],
)
def test_an_amount_is_shown_in_the_largest_whole_unit(amount, text):
    assert SIZE.show(amount) == text
