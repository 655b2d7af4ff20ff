"""The log of a program: one line for each record, as text or as JSON, and no secret in it.

Records are written as `event key=value`: `log.info("topic_made topic=%s partitions=%d", name, n)`.
As JSON the first word is the event and the values are fields with the names they have in the text,
numbers as numbers. Whatever a record says, credentials, tokens and passwords in URLs are not shown,
and it stays on one line: what clients send cannot pass for a record of its own. Tracebacks alone
have several lines, and in JSON not even those.
"""

import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable
from contextvars import ContextVar
from itertools import count
from typing import Any, Final

from waterclock.model.sections import LogFormat, LogLevel

REQUEST_ID: Final[ContextVar["str | int | LateRequestId"]] = ContextVar(
    "waterclock_request_id", default=""
)
"""The request that is being answered, if one is; shown with all that is logged meanwhile. A number
is made a text when somebody asks: few requests are ever logged."""

_GIVEN_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_RUN = os.urandom(4).hex()
_NUMBERS = count(1)

HIDDEN = "[redacted]"
_WORD = "[A-Za-z0-9_=-]"
# Each word is looked at once, and never again from its middle: clients choose what is looked at.
_SECRETS = re.compile(
    r"(?P<credential>wc1\.)[A-Za-z0-9_.=-]+"
    rf"|(?<!{_WORD})(?={_WORD}++\.{_WORD})(?P<before>{_WORD}*?)eyJ{_WORD}+\.{_WORD}+\.?{_WORD}*"
    r"|(?P<scheme>://)[^\s/@\"':]*+:[^\s/@\"']*+@",
    re.IGNORECASE,
)
_FIELD = re.compile(r"(?:(?P<name>\w+)=)?%(?:%|[#0 +-]*\d*(?:\.\d+)?(?P<kind>[a-zA-Z]))")
_LITERAL = re.compile(r"(?<!\S)(\w+)=([^\s%]+)(?=\s|$)")
_EVENT = re.compile(r"[a-z][a-z0-9_]*")
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), 127)} | {
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\\t",
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}


def begin_request(given: str | None) -> str:
    """Note that a request is answered from here on, by the id it bears or by one of ours."""
    found = _id_of(given)
    REQUEST_ID.set(found)
    return found


def begin_unnamed_request() -> None:
    """Note that a request is answered from here on that bears no id."""
    REQUEST_ID.set(next(_NUMBERS))


class LateRequestId:
    """The id of a request that most likely nobody asks for: looked up, or made, when somebody does.

    Over gRPC, reading what the client gave takes longer than all else that is done for an id.
    """

    __slots__ = ("_given", "call", "known")

    def __init__(self, given: Callable[[Any], str | None], call: object) -> None:
        """`given` returns what the client gave with a call."""
        self._given = given
        self.call: object = call
        """Set it to None when it is answered: what goes on in its name would keep all of it."""
        self.known = ""
        """Empty if nobody has asked for it."""

    def __repr__(self) -> str:
        return f"<LateRequestId {self.known or 'nobody asked for'}>"

    @property
    def text(self) -> str:
        if not self.known:
            self.known = _id_of(None if self.call is None else self._given(self.call))
        return self.known


def request_id() -> str:
    """Return the id of the request that is being answered; empty if none is."""
    found = REQUEST_ID.get()
    if isinstance(found, int):
        return _numbered(found)
    return found if isinstance(found, str) else found.text


def _id_of(given: str | None) -> str:
    is_good = given is not None and _GIVEN_ID.fullmatch(given) is not None
    return given if is_good and given is not None else _numbered(next(_NUMBERS))


def _numbered(number: int) -> str:
    return f"{_RUN}-{number}"


def redacted(text: str) -> str:
    """Return a text without the credentials, tokens and passwords in it."""
    return _SECRETS.sub(_hidden, text)


class TextFormatter(logging.Formatter):
    """Lines for people."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = record.message.translate(_CONTROLS)
        asked = request_id()
        return super().formatMessage(record) + (f" request_id={asked}" if asked else "")

    def format(self, record: logging.LogRecord) -> str:
        return redacted(super().format(record))


class JsonFormatter(logging.Formatter):
    """Lines for machines, each an object: time, level, event, logger, message, fields."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        said: dict[str, object] = {
            "time": _time_text(record.created),
            "level": record.levelname.lower(),
            "event": event_of(record),
            "logger": record.name,
            "message": redacted(message),
            "fields": fields_of(record),
        }
        if asked := request_id():
            said["request_id"] = redacted(asked)
        if record.exc_info:
            said["traceback"] = redacted(self.formatException(record.exc_info))
        return json.dumps(said, ensure_ascii=False).translate(_LINE_ENDS)


_LINE_ENDS = {0x2028: "\\u2028", 0x2029: "\\u2029", 0x85: "\\u0085"}
"""What JSON allows as it is, and some programs take for the end of a line."""


def event_of(record: logging.LogRecord) -> str:
    """Return the first word of a record, if it names an event."""
    word = str(record.msg).split(" ", 1)[0].rstrip(":")
    return word if _EVENT.fullmatch(word) else "log"


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """Return the values of a record that have names in its text."""
    template = str(record.msg)
    fields: dict[str, object] = {
        name: redacted(value) for name, value in _LITERAL.findall(template)
    }
    args = record.args if isinstance(record.args, tuple) else (record.args,)
    values = iter(args)
    for found in _FIELD.finditer(template):
        if found["kind"] is None:  # of a percent sign
            continue
        value = next(values, None)
        if found["name"] is not None:
            is_plain = isinstance(value, bool | int | float) or value is None
            shown = repr(value) if found["kind"] == "r" else str(value)
            fields[found["name"]] = value if is_plain else redacted(shown)
    return fields


def begin_log(*, level: LogLevel, format: LogFormat = "text") -> None:  # noqa: A002
    """Let the log go to stderr. Again, with others, is how it is changed."""
    root = logging.getLogger()
    ours = next((each for each in root.handlers if isinstance(each, StandardErrorHandler)), None)
    if ours is None:
        ours = StandardErrorHandler()
        root.addHandler(ours)
    ours.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    root.setLevel(level.upper())


class StandardErrorHandler(logging.Handler):
    """The handler of `begin_log`: it writes to what stderr is at the time."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record as one line."""
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except Exception:  # logging's way: a line that cannot be written ends nobody's work
            self.handleError(record)


def _hidden(found: re.Match[str]) -> str:
    if found["scheme"] is not None:
        return f"{found['scheme']}{HIDDEN}@"
    return f"{found['credential'] or found['before'] or ''}{HIDDEN}"


def _time_text(seconds: float) -> str:
    whole, milliseconds = divmod(int(seconds * 1_000), 1_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{milliseconds:03d}Z"
