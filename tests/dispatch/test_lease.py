"""The lease: asked for in time, counted from before the question, given up before it runs out."""

import json
from dataclasses import asdict
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.dispatch.core.lease import (
    HANDICAP_MS,
    Ask,
    BadLock,
    Call,
    Fence,
    Lease,
    LeaseConfig,
    LockValue,
    StepDown,
    parse_lock_value,
)


@pytest.fixture
def lease() -> Lease:
    return Lease(LeaseConfig(lease_ms=2_000), Random(1))


@pytest.fixture
def held(lease: Lease) -> Lease:
    """Asked at 1000, answered at 1100 with epoch 7."""
    assert lease.tick(1_000) == [Ask(Call.ACQUIRE, 1_000)]
    assert lease.acquired(7, asked_ms=1_000, now_ms=1_100)
    return lease


def test_it_is_asked_for_once_until_answered(lease):
    assert lease.tick(5) == [Ask(Call.ACQUIRE, 5)]
    assert lease.tick(500) == []
    assert lease.next_deadline() is None
    assert not lease.is_held(500)


def test_it_is_held_from_before_the_question_less_a_tenth(held):
    assert held.is_held(1_100)
    assert held.is_held(2_799)
    assert not held.is_held(2_800)


def test_it_is_renewed_long_before_its_end(held):
    assert held.next_deadline() == 1_600
    assert held.tick(1_599) == []
    assert held.tick(1_600) == [Ask(Call.RENEW, 1_600)]

    assert held.renewed(asked_ms=1_600, now_ms=1_610) == []
    assert held.is_held(3_399)
    assert not held.is_held(3_400)


def test_without_an_answer_the_holder_steps_down_by_its_own_clock(held):
    held.tick(1_600)
    assert held.next_deadline() == 2_800

    assert held.tick(2_800) == [StepDown(7, "the lease was not renewed in time")]
    assert held.epoch is None


def test_a_failed_renewal_is_tried_again(held):
    held.tick(1_600)
    held.failed(1_700)

    assert held.tick(1_825) == [Ask(Call.RENEW, 1_825)]
    assert held.is_held(1_825)


def test_a_renewal_that_comes_after_the_end_does_not_revive(held):
    held.tick(1_600)

    assert held.renewed(asked_ms=1_600, now_ms=3_000) == [
        StepDown(7, "the lease was renewed too late")
    ]
    assert not held.is_held(3_000)


def test_a_renewal_answered_after_stepping_down_changes_nothing(held):
    held.tick(1_600)
    held.tick(2_800)

    assert held.renewed(asked_ms=1_600, now_ms=2_900) == []
    assert not held.is_held(2_900)
    assert held.tick(2_900) == [Ask(Call.ACQUIRE, 2_900)]


def test_an_answer_that_comes_too_late_is_no_lease(lease):
    lease.tick(1_000)

    assert not lease.acquired(7, asked_ms=1_000, now_ms=2_800)
    assert not lease.is_held(2_800)


def test_who_is_told_another_leads_steps_down_at_once(held):
    assert held.lost(1_200) == [StepDown(7, "another has the lease")]
    assert not held.is_held(1_200)
    assert held.lost(1_201) == []


def test_who_is_refused_asks_again_when_the_lock_may_be_free(lease):
    lease.tick(1_000)
    lease.refused(ttl_ms=1_900, now_ms=1_001)
    assert 1_251 <= (lease.next_deadline() or 0) <= 1_301

    lease.tick(1_301)
    lease.refused(ttl_ms=20, now_ms=1_302)
    assert 1_322 <= (lease.next_deadline() or 0) <= 1_372


def test_who_has_a_handicap_lets_others_go_first(lease):
    lease.handicap_ms = HANDICAP_MS
    assert lease.tick(1_000) == [Ask(Call.LOOK, 1_000)]
    lease.seen_free(1_001)
    assert lease.tick(1_400) == []
    assert lease.tick(1_401) == [Ask(Call.ACQUIRE, 1_401)]


def test_who_has_a_handicap_waits_from_when_the_lock_was_seen_free_not_from_its_own_start(lease):
    lease.handicap_ms = HANDICAP_MS
    lease.tick(1_000)
    for ttl_ms in range(1, 400):
        lease.refused(ttl_ms=ttl_ms, now_ms=1_300)
        look_ms = lease.next_deadline() or 0
        assert look_ms < 1_300 + ttl_ms or ttl_ms <= look_ms - 1_300 <= ttl_ms + 50
        assert lease.tick(look_ms) == [Ask(Call.LOOK, look_ms)]

    lease.seen_free(2_000)
    lease.tick(2_400)
    lease.refused(ttl_ms=1_000, now_ms=2_401)  # another was faster

    assert lease.tick(3_500) == [Ask(Call.LOOK, 3_500)]


def test_who_lost_its_handicap_takes_the_lock_at_once(lease):
    lease.handicap_ms = HANDICAP_MS
    lease.tick(1_000)
    lease.refused(ttl_ms=100, now_ms=1_000)
    lease.handicap_ms = 0

    assert lease.tick(1_200) == [Ask(Call.ACQUIRE, 1_200)]


def test_the_handicap_is_longer_than_others_take_to_find_the_lock_free():
    for lease_ms in (300, 500, 2_000, 60_000):
        poll_ms = LeaseConfig(lease_ms=lease_ms).poll_ms
        assert poll_ms + poll_ms // 5 < HANDICAP_MS


def test_a_take_over_needs_no_more_than_half_a_second_beyond_the_lease():
    for lease_ms in (300, 500, 2_000, 10_000, 60_000):
        config = LeaseConfig(lease_ms=lease_ms)
        late_ms = config.poll_ms // 5

        assert late_ms <= 50
        assert config.renew_ms * 2 < lease_ms - config.margin_ms


def test_who_stops_asks_for_nothing_more(held):
    assert held.stop() == [StepDown(7, "stopping")]
    assert held.tick(9_000) == []
    assert held.next_deadline() is None
    assert not held.acquired(8, asked_ms=9_000, now_ms=9_000)


def test_the_fence_lets_nothing_older_pass():
    fence = Fence()

    assert [fence.lets(epoch) for epoch in (5, 5, 4, 9, 5, 9)] == [
        True, True, False, True, False, True,
    ]  # fmt: skip


@given(
    st.builds(
        LockValue,
        st.text(min_size=1, max_size=20),
        st.integers(1, 65_535),
        st.text(max_size=20),
        st.integers(0, 1 << 60),
    )
)
def test_the_lock_says_where_the_leader_is(value):
    assert parse_lock_value(json.dumps(asdict(value)).encode()) == value


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_a_lock_of_somebody_else_is_refused(raw):
    with pytest.raises(BadLock):
        parse_lock_value(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"[" * 4_000,
        b"1" * 5_000,
        b'{"host":"h","port":0,"token":"t","epoch":1}',
        b'{"host":"h","port":true,"token":"t","epoch":1}',
        b'{"host":"","port":1,"token":"t","epoch":1}',
        b'{"host":"h","port":1,"token":"t"}',
        b'{"host":"h","port":1,"token":"t","epoch":-1}',
        b"9" * 4_090,
    ],
)
def test_a_hostile_lock_is_refused(raw):
    with pytest.raises(BadLock):
        parse_lock_value(raw)
