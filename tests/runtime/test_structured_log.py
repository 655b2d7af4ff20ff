"""What is logged is one line, machines can read it, and no secret is in it."""

import json
import logging
import re
from collections.abc import Iterator
from contextvars import copy_context

import pytest

from waterclock.runtime.structured_log import (
    REQUEST_ID,
    JsonFormatter,
    TextFormatter,
    begin_log,
    begin_request,
    redacted,
)

JWT = "eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJiaWxsaW5nIn0.c2lnbmF0dXJl-_planted"
CREDENTIAL = f"wc1.eyJncnBjIjoiaDo5MDAwIn0.{JWT}"
SECRETS = [JWT, CREDENTIAL, f"Bearer {CREDENTIAL}", "postgresql://me:pass-planted@host/db"]


def record(message: str, *args: object, error: Exception | None = None) -> logging.LogRecord:
    found = None if error is None else (type(error), error, error.__traceback__)
    return logging.LogRecord("waterclock.node", logging.INFO, "f.py", 1, message, args, found)


def as_json(message: str, *args: object, error: Exception | None = None) -> dict[str, object]:
    line = JsonFormatter().format(record(message, *args, error=error))
    assert len(line.splitlines()) == 1
    found: dict[str, object] = json.loads(line)
    return found


def test_a_record_is_an_event_with_fields():
    found = as_json("topic_made topic=%s partitions=%d lag=%g: by %s", "orders", 3, 1.5, "billing")

    assert str(found.pop("time")).endswith("Z")
    assert found == {
        "level": "info",
        "event": "topic_made",
        "logger": "waterclock.node",
        "message": "topic_made topic=orders partitions=3 lag=1.5: by billing",
        "fields": {"topic": "orders", "partitions": 3, "lag": 1.5},
    }


@pytest.mark.parametrize(
    ("message", "args", "event", "fields"),
    [
        ("stopped_at_once", (), "stopped_at_once", {}),
        ("timers_not_saved reason=stopped early", (), "timers_not_saved", {"reason": "stopped"}),
        ("full percent=%d%% folder=%s", (99, "/data"), "full", {"percent": 99, "folder": "/data"}),
        ("rewrote topic=%s/%d %r", ("t", 1, "x"), "rewrote", {"topic": "t"}),
        ("Unhandled %s", ("thing",), "log", {}),
        ("was kind=%r", ("a b",), "was", {"kind": "'a b'"}),
    ],
)
def test_fields_are_what_has_a_name_in_the_text(message, args, event, fields):
    found = as_json(message, *args)

    assert (found["event"], found["fields"]) == (event, fields)


def test_what_is_logged_while_a_request_is_answered_names_it():
    token = REQUEST_ID.set("r-17")
    try:
        assert as_json("denied topic=%s", "t")["request_id"] == "r-17"
        assert TextFormatter().format(record("denied")).endswith("denied request_id=r-17")
    finally:
        REQUEST_ID.reset(token)


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
def test_no_record_shows_a_secret_wherever_it_stands(formatter, secret):
    try:
        raise ValueError(f"cannot use {secret!r}")
    except ValueError as error:
        found = error
    token = REQUEST_ID.set(secret)
    try:
        line = formatter.format(record(f"used {secret} as=%s %r", secret, [secret], error=found))
    finally:
        REQUEST_ID.reset(token)

    assert "planted" not in line
    assert "c2lnbmF0dXJl" not in line
    assert line.count("[redacted]") >= 4


@pytest.mark.parametrize("part", ["a", "eyJ", "://", ":", "eyJa.", "a:b@://", "a=", "wc1"])
def test_however_long_a_text_is_its_secrets_are_found_and_nobody_waits_for_that(part):
    # By a pattern that looks at words from each of their letters, this would take hours.
    text = part * (1_000_000 // len(part))
    found = redacted(f"{text} token=eyJhbGci.eyJzdWIi.c2ln redis://user:SECRET@host")

    assert found.endswith(" token=[redacted] redis://[redacted]@host")


def test_what_is_no_secret_is_left_as_it_is():
    text = "topic=wc1 url=http://host:8080/a@b time=12:30 see eyJ and wc1."

    assert redacted(text) == text


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
@pytest.mark.parametrize("end", ["\n", "\r", "\x0b", "\u2028", "\x1b[2J"])
def test_nobody_forges_a_line(formatter, end):
    line = formatter.format(record("nacked reason=%s", f"bad{end}2026 INFO forged"))

    assert len(line.splitlines()) == 1
    assert "\x1b" not in line


@pytest.mark.parametrize("given", [None, "", "a b", "x" * 65, "id\n2026 INFO forged", "ö"])
def test_a_request_without_an_id_that_can_be_shown_gets_one(given):
    first, second = (copy_context().run(begin_request, given) for _ in range(2))

    assert re.fullmatch(r"[0-9a-f]{8}-\d+", first)
    assert first != second
    assert copy_context().run(begin_request, "trace-17.a_B") == "trace-17.a_B"


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield root
    root.setLevel(level)
    root.handlers[:] = handlers


def test_the_log_can_be_begun_again_with_another_level_and_format(root, capsys):
    begin_log(level="warning")
    logging.getLogger("waterclock.x").info("quiet")
    begin_log(level="info", format="json")
    logging.getLogger("waterclock.x").info("loud key=%d", 1)

    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["fields"] == {"key": 1}
