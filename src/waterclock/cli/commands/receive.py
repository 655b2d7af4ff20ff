"""`waterclock receive`: the next message of a stream, or with `--follow` all there are and will be.

To receive takes part: of those who wait without a name, one gets the message. To follow only
reads, from the oldest message on. A pipe whose reader is gone ends it, as Ctrl-C does; it then
says how to go on.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from waterclock.cli.node_call import call
from waterclock.cli.options import Address, AsJson, Raw, Stream, Wait
from waterclock.cli.output.messages import form_of
from waterclock.cli.output.stream_messages import StreamPrinter
from waterclock.cli.output.terminal import note
from waterclock.model.errors import BadInput

if TYPE_CHECKING:
    from waterclock.client.streams.results import StreamMessage
    from waterclock.client.unary.client import UnaryClient

DEFAULT_TIMEOUT = "30s"
LIMIT_MAX = 1_000
EXIT_NOTHING = 1


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
    printer = StreamPrinter(form_of(as_json=as_json, is_raw=is_raw))
    if follow:
        if timeout is not None:
            raise BadInput("--follow waits for ever: no --timeout")
        from waterclock.cli.commands.receive_follow import Follow, follow_stream

        follow_stream(Follow(stream, consumer, resume, limit, printer), address)
        return
    if limit is not None and limit > LIMIT_MAX:
        raise BadInput(f"--limit: at most {LIMIT_MAX} at once; --follow has no limit")
    wait = timeout or DEFAULT_TIMEOUT

    async def work(client: "UnaryClient") -> "list[StreamMessage]":
        return await client.streams.receive(
            stream, timeout=wait, consumer=consumer, resume=resume, limit=limit or 1
        )

    found = call(address, work)
    for message in found:
        printer.show(message)
    if not found:
        note(f"Nothing came within {wait}.")
        raise typer.Exit(EXIT_NOTHING)
