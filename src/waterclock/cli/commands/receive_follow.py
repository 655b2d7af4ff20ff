"""`waterclock receive --follow`: all messages of a stream, as they come, until it is ended."""

import asyncio
import shlex
from contextlib import suppress
from typing import TYPE_CHECKING

import typer

from waterclock.cli.connection import READER_GONE, call_until_ended
from waterclock.cli.output.stream_messages import StreamPrinter
from waterclock.cli.output.terminal import counted, note, program
from waterclock.model.errors import Gone, WaterclockError

if TYPE_CHECKING:
    from waterclock.client.client import Client
    from waterclock.client.streams.following import Following

CONFIRM_S = 2.0
"""How long a node may take to hear what was printed, after Ctrl-C too."""


def follow_stream(watch: "Follow", address: str | None) -> None:
    """Print a stream until it is ended, then say how to go on."""
    call_until_ended(address, watch.run)
    note(f"{counted(watch.shown, 'message')}.")
    if watch.resume_token is not None:
        consumer = ["--consumer", watch.consumer] if watch.consumer else []
        words = ["receive", watch.stream, "--follow", *consumer, "--resume", watch.resume_token]
        note(f"To go on after the last: {program()} {shlex.join(words)}")


class Follow:
    """A stream that is followed, printed."""

    def __init__(
        self,
        stream: str,
        consumer: str | None,
        resume: str | None,
        limit: int | None,
        printer: StreamPrinter,
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


def _missing(count: int) -> str:
    if not count:
        return "Messages may be missing"
    return f"{counted(count, 'message')} {'is' if count == 1 else 'are'} missing"
