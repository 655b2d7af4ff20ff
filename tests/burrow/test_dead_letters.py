"""A dead letter says why it died, and where it came from."""

from waterclock.burrow.core.records import Record
from waterclock.burrow.runtime.dead_letters import REASON_CHARS_MAX, headers_of


def test_a_dead_letter_keeps_its_headers_and_says_what_became_of_it():
    record = Record("orders", 3, 17, b"k", b"v", [("trace", b"t"), ("dlq-reason", b"old")], 5)
    record.attempt = 4

    assert headers_of(record, ValueError("no such customer"), now_ms=99) == [
        ("trace", b"t"),
        ("dlq-reason", b"ValueError: no such customer"),
        ("dlq-attempts", b"4"),
        ("dlq-topic", b"orders"),
        ("dlq-partition", b"3"),
        ("dlq-offset", b"17"),
        ("dlq-message-ms", b"5"),
        ("dlq-failed-ms", b"99"),
    ]


def test_a_long_reason_is_cut():
    found = dict(headers_of(Record("t", 0, 0, None, None), ValueError("x" * 5_000), now_ms=0))

    assert len(found["dlq-reason"] or b"") == REASON_CHARS_MAX


def test_any_error_can_be_told():
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("no")

    record = Record("orders", 0, 1, None, b"1")
    for error in (KeyError("\ud800"), Mute()):
        found = dict(headers_of(record, error, now_ms=1))
        assert (found["dlq-reason"] or b"").decode().startswith(type(error).__name__)
