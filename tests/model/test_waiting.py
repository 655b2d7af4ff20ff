"""Who waits says so at once, then ever more rarely, and says when it is over."""

import pytest

from waterclock.model.waiting import Waiting, span_text


def test_a_wait_is_told_at_once_then_ever_more_rarely_then_its_end():
    waiting = Waiting("Redis at here:6379")
    assert waiting.here(0.0) is None

    lines = [(second, waiting.away("connection refused", float(second))) for second in range(100)]

    assert [(second, text) for second, text in lines if text is not None] == [
        (0, "waiting for Redis at here:6379: connection refused"),
        (5, "waiting for Redis at here:6379, 5 s so far: connection refused"),
        (10, "waiting for Redis at here:6379, 10 s so far: connection refused"),
        (20, "waiting for Redis at here:6379, 20 s so far: connection refused"),
        (40, "waiting for Redis at here:6379, 40 s so far: connection refused"),
        (80, "waiting for Redis at here:6379, 80 s so far: connection refused"),
    ]
    assert waiting.is_waiting
    assert waiting.here(100.0) == "Redis at here:6379 is there, after 2 min"
    assert not waiting.is_waiting
    assert waiting.here(101.0) is None


def test_the_next_wait_begins_anew():
    waiting = Waiting("the node")
    waiting.away("gone", 0.0)
    waiting.here(100.0)

    assert waiting.away("gone again", 200.0) == "waiting for the node: gone again"
    assert waiting.away("gone again", 204.9) is None
    assert waiting.away("gone again", 205.0) == "waiting for the node, 5 s so far: gone again"


def test_a_long_wait_is_told_every_ten_minutes():
    waiting = Waiting("the node")

    lines = [second for second in range(10_000) if waiting.away("gone", float(second))]

    assert lines[-1] - lines[-2] == 600


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (89, "89 s"), (90, "2 min"), (7_200, "2.0 h")]
)
def test_spans_are_told_in_the_words_people_use(seconds, text):
    assert span_text(seconds) == text
