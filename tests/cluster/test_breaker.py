"""A peer that fails again and again is left alone, and tried again."""

from hypothesis import given
from hypothesis import strategies as st

from waterclock.cluster.peer_link.breaker import FAILURES_MAX, PAUSE_MS, PAUSE_MS_MAX, Breaker


def opened() -> Breaker:
    breaker = Breaker()
    for _ in range(FAILURES_MAX):
        assert breaker.allows(0)
        breaker.failed(0)
    return breaker


def test_it_opens_after_failures_in_a_row_only():
    breaker = Breaker()
    for _ in range(3 * FAILURES_MAX):
        breaker.failed(0)
        if breaker._failures == FAILURES_MAX - 1:
            breaker.succeeded()
    assert breaker.allows(0)
    assert not opened().allows(PAUSE_MS - 1)


def test_after_a_pause_one_goes_to_see_and_its_success_lets_all_go():
    breaker = opened()
    assert breaker.state == "open"
    assert [breaker.allows(PAUSE_MS) for _ in range(3)] == [True, False, False]
    assert breaker.state == "half open"
    breaker.succeeded()
    assert breaker.state == "closed"
    assert all(breaker.allows(PAUSE_MS) for _ in range(3))


def test_pauses_double_up_to_a_bound():
    breaker, time_ms, pauses = opened(), 0, []
    for _ in range(12):
        begun_ms = time_ms
        while not breaker.allows(time_ms):
            time_ms += 100
        pauses.append(time_ms - begun_ms)
        breaker.failed(time_ms)
    assert pauses[:4] == [PAUSE_MS, PAUSE_MS * 2, PAUSE_MS * 4, PAUSE_MS * 8]
    assert pauses[-1] == PAUSE_MS_MAX


@given(st.lists(st.sampled_from(["allow", "fail", "succeed", "wait"]), max_size=60))
def test_whatever_happens_a_peer_is_tried_again_in_the_end(steps):
    breaker, time_ms = Breaker(), 0
    for step in steps:
        if step == "allow":
            breaker.allows(time_ms)
        elif step == "fail":
            breaker.failed(time_ms)
        elif step == "succeed":
            breaker.succeeded()
        else:
            time_ms += 100
    if breaker.is_trying:
        breaker.failed(time_ms)
    assert breaker.allows(time_ms + PAUSE_MS_MAX)
