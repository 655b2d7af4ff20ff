"""Messages of streams as they come: one line each, for people or for machines."""

import json
import sys
from typing import TYPE_CHECKING

from waterclock.cli.output.messages import VALUE_CHARS, VALUE_CHARS_MAX, Form, millis_of
from waterclock.cli.output.terminal import bytes_text, console, print_json, styled, time_text

if TYPE_CHECKING:
    from waterclock.client.streams.results import StreamMessage


class StreamPrinter:
    """Prints messages in one form: lines for people, JSON lines, or the values as they are."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self._out = console() if form == "text" and sys.stdout.isatty() else None

    def show(self, message: "StreamMessage") -> None:
        """Print one message, at once."""
        match self._form:
            case "json":
                print_json(_plain(message))
            case "raw":
                sys.stdout.write(f"{_text(message.value)}\n")
                sys.stdout.flush()
            case "text":
                self._show_text(message)

    def _show_text(self, message: "StreamMessage") -> None:
        chars_max = VALUE_CHARS_MAX if self._out is None else VALUE_CHARS
        value = bytes_text(_text(message.value).encode(), chars_max=chars_max)
        missed = f"  ({message.missed:,} missed before it)" if message.missed else ""
        place = f"{message.position}  {time_text(millis_of(message.sent))}"
        if self._out is None:
            print(f"{place}  {value}{missed}", flush=True)
            return
        line = styled(place, "dim").append(f"  {value}", style="not dim")
        self._out.print(line.append(missed, style="yellow not dim"), soft_wrap=True)
        self._out.file.flush()


def _text(value: object) -> str:
    """Return a value as it is typed: text plainly, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _plain(message: "StreamMessage") -> dict[str, object]:
    return {
        "stream": message.stream,
        "id": message.id,
        "position": message.position,
        "message": message.value,
        "sent_ms": millis_of(message.sent),
        "missed": message.missed,
        "resume_token": message.resume_token,
    }
