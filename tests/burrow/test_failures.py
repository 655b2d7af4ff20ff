"""Failures: what is tried again, and when it is enough."""

from waterclock.burrow.core.config import EngineConfig
from waterclock.burrow.core.failures import Failed, Failures, PermanentError
from waterclock.burrow.core.records import Record


def record(attempt=1):
    made = Record("t", 0, 0, None, None)
    made.attempt = attempt
    return made


def test_so_many_retries_and_then_no_more():
    failures = Failures(EngineConfig(max_retries=2))

    finals = [failures.is_final(record(attempt), OSError()) for attempt in (1, 2, 3)]

    assert finals == [False, False, True]


def test_without_a_limit_it_is_tried_for_ever():
    assert not Failures(EngineConfig(max_retries=None)).is_final(record(10**6), OSError())


def test_a_permanent_error_is_final_at_once():
    class Malformed(PermanentError):
        pass

    failures = Failures(EngineConfig(permanent=(ValueError,)))

    assert failures.is_final(record(), Malformed())
    assert failures.is_final(record(), UnicodeError())
    assert not failures.is_final(record(), KeyError())


def test_only_what_fails_in_a_row_is_too_much():
    failures = Failures(EngineConfig(errors_max=3))

    assert not failures.left(2)
    failures.succeeded()
    assert not failures.left(2)
    assert failures.left(1)


def test_failed_names_its_records_and_keeps_the_error():
    error = OSError("away")

    assert Failed([record()], error).error is error
    assert str(Failed([record()], "no luck")) == "1 records failed: no luck"
