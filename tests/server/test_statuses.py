"""Errors as clients hear them."""

import inspect

import pytest
from grpc import StatusCode

from waterclock.model import errors
from waterclock.model.errors import (
    BadBatch,
    BadInput,
    CapacityReached,
    Closed,
    Forbidden,
    LimitExceeded,
    NotAuthenticated,
    NotFound,
    OffsetOutOfRange,
    Overloaded,
    PartitionFaulty,
    QuotaExceeded,
    Stopping,
    StorageFull,
    UnknownTopic,
    WaterclockError,
)
from waterclock.server.statuses import STATUSES, code_of, status_of

FACTS = {
    LimitExceeded: ("batch messages", 10),
    CapacityReached: ("batch messages", 10),
    BadBatch: ("body", "torn"),
    errors.BadConfig: ("log.fsync", "is not a setting"),
    NotFound: ("group", "g"),
    UnknownTopic: ("orders",),
    errors.AlreadyExists: ("topic", "orders"),
    Overloaded: ("calls", 7),
}


CLIENTS_OWN = {
    WaterclockError,
    errors.CannotDecrypt,
    errors.Gone,
    errors.MatchTimeout,
    errors.NodeFailed,
    errors.TimedOut,
}
"""No node raises these."""

MADE = [
    OffsetOutOfRange(9, start=1, end=5),
    Forbidden("publish", "topic 'orders'", principal="billing"),
    QuotaExceeded("requests/s", 7, principal="billing", retry_after_ms=250),
]
"""Errors whose facts have names."""


def every_error() -> list[WaterclockError]:
    kinds = [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, WaterclockError) and kind not in {*CLIENTS_OWN, *map(type, MADE)}
    ]
    made = [kind(*FACTS.get(kind, ("why",))) for kind in kinds]
    return [*made, *MADE]


@pytest.mark.parametrize("error", every_error(), ids=lambda error: type(error).__name__)
def test_every_error_of_ours_has_a_code_and_its_name(error):
    status = status_of(error, "Broker/Publish")

    assert status.code not in (StatusCode.UNKNOWN, StatusCode.INTERNAL, StatusCode.OK)
    assert dict(status.trailers)["waterclock-error"] == type(error).__name__
    assert status.details == str(error)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BadInput("x"), StatusCode.INVALID_ARGUMENT),
        (LimitExceeded("key bytes", 5), StatusCode.INVALID_ARGUMENT),
        (CapacityReached("topics", 5), StatusCode.RESOURCE_EXHAUSTED),
        (Overloaded("calls", 5), StatusCode.RESOURCE_EXHAUSTED),
        (StorageFull("x"), StatusCode.RESOURCE_EXHAUSTED),
        (Stopping("x"), StatusCode.UNAVAILABLE),
        (Closed("x"), StatusCode.UNAVAILABLE),
        (PartitionFaulty("x"), StatusCode.FAILED_PRECONDITION),
        (errors.FrameDamaged("x"), StatusCode.DATA_LOSS),
        (UnknownTopic("x"), StatusCode.NOT_FOUND),
        (OffsetOutOfRange(9, start=1, end=5), StatusCode.OUT_OF_RANGE),
        (errors.AlreadyExists("topic", "x"), StatusCode.ALREADY_EXISTS),
        (errors.Busy("x"), StatusCode.FAILED_PRECONDITION),
        (NotAuthenticated("x"), StatusCode.UNAUTHENTICATED),
        (MADE[1], StatusCode.PERMISSION_DENIED),
        (MADE[2], StatusCode.RESOURCE_EXHAUSTED),
    ],
)
def test_the_nearest_class_decides(error, code):
    assert code_of(error) is code


def test_facts_are_told_in_metadata():
    limit = status_of(LimitExceeded("key bytes", 5, got=9), "")
    range_ = status_of(OffsetOutOfRange(9, start=1, end=5), "")

    assert limit.trailers == (
        ("waterclock-error", "LimitExceeded"),
        ("waterclock-field", "key bytes"),
        ("waterclock-limit", "5"),
        ("waterclock-got", "9"),
    )
    assert dict(range_.trailers) == {
        "waterclock-error": "OffsetOutOfRange",
        "waterclock-offset": "9",
        "waterclock-start": "1",
        "waterclock-end": "5",
    }


def test_facts_are_short_printable_ascii_whatever_the_name():
    for name in ("é\n", "\x00" * 5_000, "x" * 5_000, "☃" * 500):
        for _, fact in status_of(UnknownTopic(name), "").trailers:
            assert fact.isascii()
            assert fact.isprintable()
            assert len(fact) <= 250
        assert len(status_of(UnknownTopic(name), "").details) <= 1_000


def test_a_bug_of_ours_is_logged_once_with_the_id_the_client_gets(caplog):
    try:
        raise ZeroDivisionError("planted secret")
    except ZeroDivisionError as error:
        status = status_of(error, "Broker/Publish")

    ((key, error_id),) = status.trailers
    assert status.code is StatusCode.INTERNAL
    assert key == "waterclock-error-id"
    assert error_id in status.details
    assert "secret" not in status.details
    assert len(caplog.records) == 1
    assert caplog.text.count(error_id) == 1
    assert "Traceback" in caplog.text
    assert "planted secret" in caplog.text


def test_an_error_of_ours_in_a_group_is_told_unless_a_bug_is_beside_it(caplog):
    inner = ExceptionGroup("", [ExceptionGroup("", [BadInput("x")])])
    mixed = ExceptionGroup("", [BadInput("x"), ZeroDivisionError()])

    assert status_of(inner, "").code is StatusCode.INVALID_ARGUMENT
    assert status_of(mixed, "").code is StatusCode.INTERNAL


def test_the_table_has_no_row_that_says_what_its_parent_says():
    for kind, code in STATUSES.items():
        above = [parent for parent in kind.__mro__[1:] if parent in STATUSES]
        if above:
            assert STATUSES[above[0]] is not code, kind
