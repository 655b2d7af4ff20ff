"""Messages as they stream by: one line each, for people or for machines."""

import sys
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Literal, Protocol, cast

from waterclock.cli.output.figures import ms_text
from waterclock.cli.output.terminal import (
    bytes_json,
    bytes_text,
    console,
    print_json,
    styled,
    time_text,
)

if TYPE_CHECKING:
    from rich.text import Text

    from waterclock.model.views import View

KEY_CHARS = 40
VALUE_CHARS = 500
"""On a terminal; in a pipe a value is shown whole."""
VALUE_CHARS_MAX = 100_000_000

Form = Literal["text", "json", "raw"]


class StoredMessage(Protocol):
    """What a line needs of a message: its facts and its place."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def id(self) -> bytes: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Mapping[str, bytes]: ...
    @property
    def due(self) -> datetime | None: ...
    @property
    def appended(self) -> datetime: ...


class MessagePrinter:
    """Prints messages in one form: lines for people, JSON lines, or the values as they are."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self._out = console()
        self._value_chars = VALUE_CHARS if self._out.is_terminal else VALUE_CHARS_MAX

    def show(self, message: StoredMessage, *, attempt: int | None = None) -> None:
        """Print one message, at once."""
        match self._form:
            case "json":
                print_json(message_json(message, attempt=attempt))
            case "raw":
                sys.stdout.buffer.write((message.value or b"") + b"\n")
                sys.stdout.buffer.flush()
            case "text":
                self._out.print(self._line(message, attempt), soft_wrap=True)
                self._out.file.flush()

    def _line(self, message: StoredMessage, attempt: int | None) -> "Text":
        line = styled(f"{message.partition}/{message.offset}", style="dim")
        line.append(f"  {time_text(millis_of(message.appended))}")
        if message.key is not None:
            line.append(f"  {bytes_text(message.key, chars_max=KEY_CHARS)}", style="cyan not dim")
        line.append(f"  {value_text(message.value, self._value_chars)}", style="not dim")
        notes = []
        if (late := late_ms(message)) is not None:
            notes.append(f"{ms_text(late)} late")
        if attempt is not None and attempt > 1:
            notes.append(f"attempt {attempt}")
        if notes:
            line.append(f"  ({', '.join(notes)})", style="yellow not dim")
        return line


def form_of(*, as_json: bool, is_raw: bool) -> Form:
    """Return the form that was asked for."""
    return "json" if as_json else "raw" if is_raw else "text"


def value_text(value: bytes | None, chars_max: int) -> str:
    """Return a value as people read it."""
    return "(tombstone)" if value is None else bytes_text(value, chars_max=chars_max)


def millis_of(time: datetime) -> int:
    """Return a time as milliseconds since 1970."""
    return round(time.timestamp() * 1_000)


def late_ms(message: StoredMessage) -> int | None:
    """Return how long after its time a message for later was fired; None if it was for now."""
    if message.due is None:
        return None
    return max(millis_of(message.appended) - millis_of(message.due), 0)


def message_json(message: StoredMessage, *, attempt: int | None = None) -> dict[str, object]:
    """Return a message for machines."""
    due = message.due
    plain: dict[str, object] = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "id": bytes_json(message.id),
        "key": bytes_json(message.key),
        "value": bytes_json(message.value),
        "headers": headers_json(message.headers),
        "due_ms": None if due is None else millis_of(due),
        "appended_ms": millis_of(message.appended),
        "late_ms": late_ms(message),
    }
    return plain if attempt is None else plain | {"attempt": attempt}


def headers_json(headers: Mapping[str, bytes]) -> dict[str, object]:
    """Return headers for machines."""
    return {name: bytes_json(value) for name, value in headers.items()}


def view_json(view: "View") -> dict[str, object]:
    """Return a view for machines: its fields by name, null for empty text."""
    return {name: _field_json(getattr(view, name)) for name in view.__struct_fields__}


def _field_json(value: object) -> object:
    if hasattr(value, "__struct_fields__"):
        return view_json(cast("View", value))
    if isinstance(value, tuple | list):
        return [_field_json(each) for each in value]
    if isinstance(value, dict):
        return {str(name): each for name, each in value.items()}
    return None if value == "" else value
