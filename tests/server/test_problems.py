"""Errors as HTTP tells them: the same table as gRPC's, with the facts."""

import msgspec
import pytest

from waterclock.model.errors import (
    AlreadyExists,
    BadInput,
    Busy,
    CapacityReached,
    Closed,
    Damaged,
    Fenced,
    Forbidden,
    LimitExceeded,
    NotAuthenticated,
    NotLeader,
    OffsetOutOfRange,
    Overloaded,
    PartitionFaulty,
    QuotaExceeded,
    Stopping,
    StorageFull,
    UnknownTopic,
)
from waterclock.server.http.problems import HTTP_STATUSES, BadField, problem_of
from waterclock.server.statuses import STATUSES


@pytest.mark.parametrize(
    ("error", "status", "facts"),
    [
        (BadInput("limit must not be negative"), 400, {"error": "BadInput", "field": "limit"}),
        (BadInput("page: is none"), 400, {"error": "BadInput", "field": "page"}),
        (BadInput("nothing is named"), 400, {"error": "BadInput"}),
        (BadField("a.b", "is odd"), 400, {"error": "BadInput", "field": "a.b"}),
        (
            LimitExceeded("limit", 5, got=6),
            400,
            {"error": "LimitExceeded", "field": "limit", "limit": 5, "got": 6},
        ),
        (LimitExceeded("key bytes", 5), 413, {"field": "key bytes", "limit": 5}),
        (CapacityReached("topics", 5), 429, {"field": "topics", "limit": 5}),
        (Overloaded("calls", 9), 429, {"error": "Overloaded", "field": "calls", "limit": 9}),
        (UnknownTopic("t"), 404, {"error": "UnknownTopic", "what": "topic", "name": "t"}),
        (OffsetOutOfRange(9, start=1, end=3), 404, {"offset": 9, "start": 1, "end": 3}),
        (AlreadyExists("topic", "t"), 409, {"name": "t"}),
        (Busy("it is"), 409, {}),
        (PartitionFaulty("bad"), 409, {}),
        (Stopping("bye"), 503, {"error": "Stopping"}),
        (NotLeader("orders/3", leader="b"), 503, {"error": "NotLeader", "leader": "b"}),
        (Fenced("b went"), 503, {"error": "Fenced"}),
        (Closed("it is"), 503, {}),
        (StorageFull("full"), 507, {}),
        (Damaged("bytes"), 500, {}),
        (ExceptionGroup("", [Busy("one"), Busy("two")]), 409, {"detail": "one"}),
    ],
)
def test_an_error_of_ours_is_told_with_its_facts(error, status, facts):
    answer = problem_of(error)

    response = msgspec.json.decode(answer.body)
    assert (answer.status, response["status"]) == (status, status)
    assert facts.items() <= response.items()
    assert (b"Retry-After" in answer.headers) == (status in (429, 503))


def test_who_is_not_known_is_told_what_to_send():
    answer = problem_of(NotAuthenticated("no credential was sent"))

    assert (answer.status, answer.headers) == (401, b"WWW-Authenticate: Bearer\r\n")
    assert msgspec.json.decode(answer.body)["error"] == "NotAuthenticated"


def test_who_lacks_a_right_is_told_which_and_on_what():
    answer = problem_of(Forbidden("publish", "topic 'orders'", principal="billing"))

    assert (answer.status, answer.headers) == (403, b"")
    facts = {"error": "Forbidden", "right": "publish", "resource": "topic 'orders'"}
    assert facts.items() <= msgspec.json.decode(answer.body).items()


@pytest.mark.parametrize(("wait_ms", "seconds"), [(1, b"1"), (1_000, b"1"), (1_001, b"2")])
def test_who_is_at_its_quota_is_told_how_long_to_wait_in_whole_seconds(wait_ms, seconds):
    error = QuotaExceeded("requests/s", 7, principal="billing", retry_after_ms=wait_ms)

    answer = problem_of(error)

    assert (answer.status, answer.headers) == (429, b"Retry-After: %s\r\n" % seconds)
    assert msgspec.json.decode(answer.body)["retry_after_ms"] == wait_ms


def test_an_error_that_is_none_of_ours_has_an_id_and_no_secrets(caplog):
    answer = problem_of(KeyError("secret"))

    assert answer.status == 500
    assert b"secret" not in answer.body
    assert "secret" in caplog.text


def test_every_code_of_the_table_has_a_status():
    assert set(STATUSES.values()) <= set(HTTP_STATUSES)
