"""Quotas: no principal gets more than its rate, and none gets less."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.model.errors import BadInput, CapacityReached, QuotaExceeded
from waterclock.security.quotas import Quotas, TokenBucket, Usage, UsageTable

rates = st.integers(1, 10_000)
steps = st.lists(
    st.tuples(st.integers(0, 20_000), st.integers(-50, 3_000)), min_size=1, max_size=60
)
"""Amounts asked for, and how far the clock moves before."""


@given(rates, steps)
def test_no_window_has_more_than_the_rate_and_one_bucket(rate, steps):
    bucket = TokenBucket(rate, 0)
    now_ms = latest_ms = 0
    taken: list[tuple[int, int]] = []

    for amount, elapsed in steps:
        now_ms += elapsed
        latest_ms = max(latest_ms, now_ms)
        if bucket.take(amount, now_ms) == 0:
            taken.append((latest_ms, amount))

    for index, (start_ms, _) in enumerate(taken):
        total = largest = 0
        for at_ms, amount in taken[index:]:
            total += amount
            largest = max(largest, amount)
            assert total * 1_000 <= rate * (at_ms - start_ms) + max(rate, largest) * 1_000


@given(rates, steps)
def test_who_comes_back_when_it_was_told_to_is_served(rate, steps):
    bucket = TokenBucket(rate, 0)
    now_ms = 0
    for amount, elapsed in steps:
        now_ms += max(0, elapsed)
        wait_ms = bucket.take(amount, now_ms)
        if wait_ms:
            assert bucket.take(amount, now_ms + wait_ms - 1) == 1, "and no sooner"
            now_ms += wait_ms
            assert bucket.take(amount, now_ms) == 0


@given(rates, st.integers(1, 5_000), st.integers(1, 20))
def test_who_never_stops_asking_gets_the_whole_rate(rate, amount, seconds):
    bucket = TokenBucket(rate, 0)
    now_ms = total = 0
    while now_ms < seconds * 1_000:
        wait_ms = bucket.take(amount, now_ms)
        now_ms += wait_ms
        total += 0 if wait_ms else amount

    assert total + amount >= rate * seconds


def test_what_is_larger_than_the_bucket_passes_and_is_paid_for():
    bucket = TokenBucket(10, 0)

    assert bucket.take(25, 0) == 0
    assert bucket.take(1, 0) == 1_600, "a debt of 15 and one more"
    assert bucket.take(25, 2_499) == 1
    assert bucket.take(25, 2_500) == 0


def test_a_clock_that_goes_back_changes_nothing():
    bucket = TokenBucket(10, 5_000)

    assert bucket.take(10, 5_000) == 0
    assert bucket.take(10, 1_000) == 1_000
    assert bucket.take(10, 5_999) == 1
    assert bucket.take(10, 6_000) == 0


def test_a_principal_at_its_rate_is_told_when_to_come_back():
    usage = Usage("billing", Quotas(requests_per_s=2, bytes_per_s=100), 0)
    usage.take_request(0)
    usage.take_request(0)
    usage.take_bytes(100, 0)

    with pytest.raises(QuotaExceeded, match="billing is at its quota of 2 requests/s") as requests:
        usage.take_request(0)
    with pytest.raises(QuotaExceeded) as size:
        usage.take_bytes(50, 0)

    assert (requests.value.field, requests.value.limit) == ("requests/s", 2)
    assert (requests.value.retry_after_ms, size.value.retry_after_ms) == (500, 500)
    assert usage.wait_for_bytes(50, 0) == 500
    assert usage.wait_for_bytes(50, 500) == 0


def test_bytes_taken_ahead_of_their_time_are_waited_for():
    usage = Usage("billing", Quotas(bytes_per_s=100), 0)
    assert usage.take_bytes(80, 0, ahead_ms=500) == 0
    assert usage.take_bytes(70, 0, ahead_ms=500) == 500

    with pytest.raises(QuotaExceeded) as refusal:
        usage.take_bytes(1, 0, ahead_ms=500)

    assert refusal.value.retry_after_ms == 510
    assert usage.take_bytes(1, 10, ahead_ms=500) == 500


def test_requests_of_unknown_size_take_turns_once_too_much_was_sent():
    usage = Usage("billing", Quotas(bytes_per_s=100), 0)
    assert usage.turn_ms(0, ahead_ms=1_000) == 0
    usage.take_bytes(100, 0)
    assert usage.turn_ms(0, ahead_ms=1_000) == 0, "all is paid for: who comes may be small"
    usage.take_bytes(40, 0, ahead_ms=1_000)

    assert usage.turn_ms(0, ahead_ms=1_000) == 400
    usage.unread = 1
    assert usage.turn_ms(100, ahead_ms=1_000) == 300 + 400, "behind one that may be as large"
    usage.unread = 2
    with pytest.raises(QuotaExceeded) as refusal:
        usage.turn_ms(100, ahead_ms=1_000)
    assert refusal.value.retry_after_ms == 1_100
    usage.unread = 0
    assert usage.turn_ms(400, ahead_ms=1_000) == 0


def test_who_has_no_quotas_has_no_bounds():
    usage = Usage("billing", Quotas(), 0)

    for _ in range(1_000):
        usage.take_request(0)
        usage.take_bytes(1 << 40, 0)
        usage.open_connection()
    usage.check_count("topics", 1_000_000)


def test_connections_are_counted_until_they_are_closed():
    usage = Usage("billing", Quotas(connections=1), 0)
    usage.open_connection()

    with pytest.raises(QuotaExceeded, match="1 connections"):
        usage.open_connection()
    usage.close_connection()
    usage.open_connection()


def test_links_of_the_native_protocol_are_counted_by_themselves():
    """A client has two of them, and one connection of gRPC."""
    usage = Usage("billing", Quotas(connections=1), 0)
    usage.open_connection()
    usage.open_connection(is_link=True)
    usage.open_connection(is_link=True)

    with pytest.raises(QuotaExceeded, match="1 connections"):
        usage.open_connection(is_link=True)
    usage.close_connection()
    with pytest.raises(QuotaExceeded):
        usage.open_connection(is_link=True)
    usage.close_connection(is_link=True)
    usage.open_connection(is_link=True)


@pytest.mark.parametrize("what", ["topics", "partitions", "groups", "streams"])
def test_a_count_that_is_reached_does_not_pass_with_time(what):
    usage = Usage("billing", Quotas(**{what: 3}), 0)

    usage.check_count(what, 3)
    with pytest.raises(CapacityReached, match=f"{what} of billing exceeds its limit of 3"):
        usage.check_count(what, 4)


def test_all_tokens_of_a_principal_share_one_bucket():
    table = UsageTable()
    quotas = Quotas(requests_per_s=1)

    table.usage_of("billing", quotas, 0).take_request(0)
    with pytest.raises(QuotaExceeded):
        table.usage_of("billing", Quotas(requests_per_s=1), 0).take_request(0)
    table.usage_of("other", quotas, 0).take_request(0)


def test_another_quota_holds_at_once_and_the_same_rate_is_not_given_again():
    table = UsageTable()
    before = Quotas(requests_per_s=1, bytes_per_s=10)
    table.usage_of("billing", before, 0).take_request(0)

    raised = table.usage_of("billing", Quotas(requests_per_s=1, bytes_per_s=99), 0)

    raised.take_bytes(99, 0)
    with pytest.raises(QuotaExceeded):
        raised.take_request(0)


def test_who_is_gone_is_forgotten_once_its_connections_are():
    table = UsageTable()
    usage = table.usage_of("billing", Quotas(connections=1), 0)
    usage.open_connection()
    usage.open_connection(is_link=True)

    table.forget(lambda name: False)
    assert table.usage_of("billing", usage.quotas, 0) is usage
    usage.close_connection()
    table.forget(lambda name: False)
    assert table.usage_of("billing", usage.quotas, 0) is usage
    usage.close_connection(is_link=True)
    table.forget(lambda name: False)
    assert table.usage_of("billing", usage.quotas, 0) is not usage


@pytest.mark.parametrize("value", [0, -1, (1 << 50) + 1])
def test_a_quota_out_of_range_is_refused(value):
    with pytest.raises(BadInput, match="topics"):
        Quotas(topics=value)
