"""`waterclock send`: a message to a stream, or each line of stdin.

A message is JSON; what is no JSON is sent as text. Lines go one after the other, so they arrive in
their order; each is sent before the next is read.
"""

import json
import time
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn

import typer

from waterclock.cli.node_call import call
from waterclock.cli.options import Address, AsJson, Stream, Wait
from waterclock.cli.output.terminal import bytes_text, counted, print_json, progress, say
from waterclock.model.errors import BadInput, WaterclockError

if TYPE_CHECKING:
    from waterclock.client.client import Client
    from waterclock.client.streams.results import Sent, StoredAt
    from waterclock.client.unary.client import UnaryClient

ID_CHARS = 60


class _Wanted(NamedTuple):
    """What was asked for, whatever the message."""

    stream: str
    message_id: str | None
    timeout: str | None
    patience: str | None
    size: int | None
    is_stored: bool
    ttl: str | None


def send(
    stream: Stream,
    message: Annotated[
        str, typer.Argument(metavar="MESSAGE|-", help="JSON, or text; - sends lines from stdin.")
    ],
    size: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Messages a new stream holds; 0: wait for a receiver.",
            show_default="100",
        ),
    ] = None,
    timeout: Wait = None,
    patience: Annotated[
        str | None,
        typer.Option(
            "--block", metavar="TIME", help="Wait so long for room, rather than overwrite."
        ),
    ] = None,
    is_stored: Annotated[
        bool, typer.Option("--store", help="Store it, for those who come later.")
    ] = False,
    ttl: Annotated[
        str | None, typer.Option(metavar="TIME", help="Of no use after this, as in 1h.")
    ] = None,
    message_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Storing an id again changes nothing.")
    ] = None,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Send a message to a stream, to whoever waits there, or each line of stdin."""
    wanted = _Wanted(stream, message_id, timeout, patience, size, is_stored, ttl)
    if is_stored and (timeout or patience or size is not None):
        raise BadInput("--store: what is stored waits for nobody: no --timeout, --block or --size")
    if message == "-":
        _send_lines(wanted, address, as_json=as_json)
        return
    sent = call(address, lambda client: _send(client, wanted, value_of(message)))
    if as_json:
        print_json(_plain(sent))
    else:
        say(_sent_line(sent))


def value_of(text: str) -> Any:  # noqa: ANN401 - any JSON
    """Return what was typed, read as JSON; what is none is text."""
    try:
        return json.loads(text, parse_constant=_refused, parse_float=_finite)
    except (ValueError, RecursionError):
        return text.encode(errors="surrogateescape").decode(errors="replace")


def _refused(name: str) -> NoReturn:
    raise ValueError(name)  # NaN and Infinity, which JSON has not


def _finite(digits: str) -> float:
    number = float(digits)
    return number if isfinite(number) else _refused(digits)


async def _send(
    client: "Client | UnaryClient",
    wanted: _Wanted,
    value: Any,  # noqa: ANN401 - any JSON
) -> "Sent | StoredAt":
    if wanted.is_stored:
        return await client.streams.send_and_store(
            wanted.stream, value, message_id=wanted.message_id, ttl=wanted.ttl
        )
    return await client.streams.send(
        wanted.stream,
        value,
        message_id=wanted.message_id,
        timeout=wanted.timeout,
        size=wanted.size,
        blocking_timeout=wanted.patience,
        ttl=wanted.ttl,
    )


def _plain(sent: "Sent | StoredAt") -> dict[str, object]:
    from waterclock.client.streams.results import Sent

    facts: dict[str, object] = {
        "stream": sent.stream,
        "id": sent.message_id,
        "position": sent.position,
        "resume_token": sent.resume_token,
    }
    if isinstance(sent, Sent):
        return facts | {"is_delivered": sent.is_delivered}
    return facts | {"is_new": sent.is_new}


def _sent_line(sent: "Sent | StoredAt") -> str:
    from waterclock.client.streams.results import Sent

    if isinstance(sent, Sent):
        what = "delivered" if sent.is_delivered else "sent"
    else:
        what = "stored" if sent.is_new else "stored before, nothing changed"
    name, id_ = (
        bytes_text(text.encode(), chars_max=ID_CHARS) for text in (sent.stream, sent.message_id)
    )
    return f"{name} {sent.position}: {what}, id {id_}"


# Many lines


def _send_lines(wanted: _Wanted, address: str | None, *, as_json: bool) -> None:
    if wanted.message_id is not None:
        raise BadInput("--id is for one message; stdin has many")
    from waterclock.cli import connection
    from waterclock.cli.line_source import STDIN, opened
    from waterclock.cli.output.figures import rate_text

    started = time.perf_counter()
    with opened(STDIN) as number:
        count = connection.call(address, lambda client: _sent_lines(client, wanted, number))
    seconds = time.perf_counter() - started
    if as_json:
        print_json({"stream": wanted.stream, "messages": count, "seconds": round(seconds, 3)})
        return
    rate = rate_text(count, seconds)
    name = bytes_text(wanted.stream.encode(errors="replace"), chars_max=ID_CHARS)
    line = f"Sent {counted(count, 'message')} to {name} in {seconds:.2f} s ({rate})."
    say(line)


async def _sent_lines(client: "Client", wanted: _Wanted, number: int) -> int:
    """Send lines as they come; return how many."""
    from waterclock.cli.line_source import lines_of, size_of

    count = 0
    try:
        with progress("sending", size_of(number)) as advance:
            async for lines in lines_of(number, advance=advance):
                for line in lines:
                    await _send(client, wanted, value_of(line.decode(errors="replace")))
                    count += 1
    except WaterclockError:
        typer.echo(f"{counted(count, 'line')} had been sent before this:", err=True)
        raise
    return count
