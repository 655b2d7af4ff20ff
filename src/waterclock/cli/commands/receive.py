"""`waterclock receive`: the next message of a stream, or with `--follow` all there are and will be.

To receive takes part: of those who wait without a name, one gets the message. To follow only
reads, from the oldest message on. A pipe whose reader is gone ends it, as Ctrl-C does; it then
says how to go on.
"""

import asyncio
import json
import shlex
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from waterclock.cli.connection import READER_GONE, call, call_until_ended
from waterclock.cli.options import Address, AsJson, Raw, Stream, Wait
from waterclock.cli.output.messages import VALUE_CHARS, VALUE_CHARS_MAX, Form, form_of, millis_of
from waterclock.cli.output.terminal import bytes_text, console, counted, note, print_json, program
from waterclock.model.errors import BadInput, Gone, WaterclockError

if TYPE_CHECKING:
    from waterclock.client.client import Client
    from waterclock.client.streams.following import Following
    from waterclock.client.streams.results import StreamMessage

DEFAULT_TIMEOUT = "30s"
LIMIT_MAX = 1_000
EXIT_NOTHING = 1
CONFIRM_S = 2.0
"""How long a node may take to hear what was printed, after Ctrl-C too."""


def receive(
    stream: Stream,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print all there are, and go on.")
    ] = False,
    timeout: Wait = None,
    consumer: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Get every message, from where NAME has come to."),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(metavar="TOKEN", help="Go on after this; or earliest, or latest."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", "-n", min=1, metavar="N", help="Up to so many; with --follow, end then."
        ),
    ] = None,
    is_raw: Raw = False,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Print the next message of a stream, or wait for it; or all of them, as they come."""
    printer = _Printer(form_of(as_json=as_json, is_raw=is_raw))
    if follow:
        if timeout is not None:
            raise BadInput("--follow waits for ever: no --timeout")
        _follow(_Follow(stream, consumer, resume, limit, printer), address)
        return
    if limit is not None and limit > LIMIT_MAX:
        raise BadInput(f"--limit: at most {LIMIT_MAX} at once; --follow has no limit")
    wait = timeout or DEFAULT_TIMEOUT

    async def work(client: "Client") -> "list[StreamMessage]":
        return await client.streams.receive(
            stream, timeout=wait, consumer=consumer, resume=resume, limit=limit or 1
        )

    found = call(address, work)
    for message in found:
        printer.show(message)
    if not found:
        note(f"Nothing came within {wait}.")
        raise typer.Exit(EXIT_NOTHING)


def _follow(watch: "_Follow", address: str | None) -> None:
    call_until_ended(address, watch.run)
    note(f"{counted(watch.shown, 'message')}.")
    if watch.resume_token is not None:
        consumer = ["--consumer", watch.consumer] if watch.consumer else []
        words = ["receive", watch.stream, "--follow", *consumer, "--resume", watch.resume_token]
        note(f"To go on after the last: {program()} {shlex.join(words)}")


class _Follow:
    """A stream that is followed, printed."""

    def __init__(
        self,
        stream: str,
        consumer: str | None,
        resume: str | None,
        limit: int | None,
        printer: "_Printer",
    ) -> None:
        self.stream = stream
        self.consumer = consumer
        self.resume_token = resume
        self._limit = limit
        self._printer = printer
        self.shown = 0

    async def run(self, client: "Client") -> None:
        """Print messages until there were enough, or until a signal."""
        following = client.streams.follow(
            self.stream, consumer=self.consumer, resume=self.resume_token
        )
        note("Following. Ctrl-C ends it.")
        try:
            await self._print(following)
        except asyncio.CancelledError as end:
            if end.args != (READER_GONE,):  # otherwise nobody knows what was read
                await _confirm(following)
            raise
        await _confirm(following)

    async def _print(self, following: "Following") -> None:
        while self.shown != self._limit:
            try:
                message = await anext(following)
            except Gone as gone:
                typer.echo(f"{_missing(gone.missed)} here: {gone}", err=True)
                continue
            self._printer.show(message)
            self.shown += 1
            self.resume_token = message.resume_token


async def _confirm(following: "Following") -> None:
    """Have a named consumer go on after what was printed; a node that is away will repeat it."""
    with suppress(WaterclockError, TimeoutError):
        async with asyncio.timeout(CONFIRM_S):
            await following.confirm()


class _Printer:
    """Prints messages in one form: lines for people, JSON lines, or the values as they are."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self._out = console()
        self._value_chars = VALUE_CHARS if self._out.is_terminal else VALUE_CHARS_MAX

    def show(self, message: "StreamMessage") -> None:
        """Print one message, at once."""
        match self._form:
            case "json":
                print_json(_plain(message))
            case "raw":
                sys.stdout.write(f"{_text(message.value)}\n")
                sys.stdout.flush()
            case "text":
                self._out.print(self._line(message), soft_wrap=True)
                self._out.file.flush()

    def _line(self, message: "StreamMessage") -> Text:
        value = bytes_text(_text(message.value).encode(), chars_max=self._value_chars)
        line = Text(f"{message.position}", style="dim").append(f"  {value}", style="not dim")
        if message.missed:
            line.append(f"  ({message.missed:,} missed before it)", style="yellow not dim")
        return line


def _missing(count: int) -> str:
    if not count:
        return "Messages may be missing"
    return f"{counted(count, 'message')} {'is' if count == 1 else 'are'} missing"


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
