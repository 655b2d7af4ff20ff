"""`waterclock publish`: one message, a message for later, one that repeats, or the lines of a file.

It returns when what it published is durable. Lines are read as they come and published as they are
read, so it also serves at the end of a pipe that never closes.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, cast

import typer

from waterclock.cli.arguments import headers_of, maybe_bytes
from waterclock.cli.commands.repeats import tell_recurrence
from waterclock.cli.local_zone import here
from waterclock.cli.node_call import call
from waterclock.cli.options import Acks, Address, AsJson, Cron, Expires, Header, Key, Topic, Zone
from waterclock.cli.output.terminal import (
    bytes_json,
    bytes_text,
    counted,
    due_text,
    print_json,
    progress,
    say,
    tell_made,
    time_text,
)
from waterclock.model.errors import BadInput, WaterclockError
from waterclock.model.message import check_acks

if TYPE_CHECKING:
    from waterclock.client.client import Client
    from waterclock.client.results import Receipt
    from waterclock.client.unary.client import UnaryClient
    from waterclock.model.message import Acks as AcksLevel
    from waterclock.model.message import Message
    from waterclock.model.views import Recurrence

MessageId = Annotated[
    str | None,
    typer.Option("--id", metavar="ID", help="Publishing an id again changes nothing."),
]
ID_CHARS = 60
STDIN = Path("-")


class _Wanted(NamedTuple):
    """What was asked for, whichever way it is published."""

    topic: str
    value: bytes | None
    key: bytes | None
    headers: dict[str, bytes] | None
    at: str | None
    message_id: bytes | None
    expires: str | None
    partition: int | None
    acks: "AcksLevel"


def publish(
    topic: Topic,
    value: Annotated[
        str | None,
        typer.Argument(metavar="VALUE|-", help="The message; - reads lines from stdin."),
    ] = None,
    key: Key = None,
    header: Header = None,
    at: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Deliver then: 5m, 18:00, 'tomorrow 9:00', 2026-12-24."),
    ] = None,
    message_id: MessageId = None,
    expires: Expires = None,
    partition: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Which partition.", show_default="by key, or id"),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", metavar="FILE", help="Each line is a message; - is stdin."),
    ] = None,
    acks: Acks = "quorum",
    is_tombstone: Annotated[
        bool, typer.Option("--tombstone", help="No value: on a compacted topic, deletes the key.")
    ] = False,
    cron: Cron = None,
    zone: Zone = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of what --cron repeats.")
    ] = None,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Publish a message, now, for later or again and again; or each line of a file."""
    if value == "-" and file is None:
        value, file = None, STDIN
    if sum((value is not None, file is not None, is_tombstone)) != 1:
        raise BadInput("give one of VALUE, --file FILE, --tombstone, or - to read lines from stdin")
    if cron is None and (zone or name):
        raise BadInput("--zone and --name belong to --cron")
    wanted = _Wanted(
        topic,
        maybe_bytes(value),
        maybe_bytes(key),
        headers_of(header),
        None if at is None else here(at),
        maybe_bytes(message_id),
        None if expires is None else here(expires),
        partition,
        _acks(acks),
    )
    if file is not None:
        _publish_lines(file, wanted, cron, address, as_json=as_json)
    elif cron is not None:
        made = call(address, lambda client: _repeat(client, wanted, cron, zone or "UTC", name))
        tell_recurrence(made, as_json=as_json)
    else:
        _publish_one(wanted, address, as_json=as_json)


def _acks(text: str) -> "AcksLevel":
    check_acks(text)
    return cast("AcksLevel", text)


# One message


def _publish_one(wanted: _Wanted, address: str | None, *, as_json: bool) -> None:
    receipt, due_ms, now_ms = call(address, lambda client: _publish(client, wanted))
    tell_made(receipt.topic, receipt.made_partitions)
    if as_json:
        print_json(_plain(receipt, due_ms))
        return
    place = f"{receipt.topic} {receipt.partition}/{receipt.offset}"
    what = place if receipt.is_new else f"{place}: published before, nothing changed"
    line = f"{what}, id {bytes_text(receipt.message_id, chars_max=ID_CHARS)}"
    if due_ms is not None and receipt.is_new:
        line += f", due {due_text(due_ms, now_ms)} ({time_text(due_ms)})"
    say(line)


async def _publish(client: "UnaryClient", wanted: _Wanted) -> "tuple[Receipt, int | None, int]":
    from waterclock.client.due import instant_ms

    now_ms = client.now_ms()
    due_ms = None if wanted.at is None else instant_ms(wanted.at, now_ms, field="--at")
    receipt = await client.publish(
        wanted.topic,
        wanted.value,
        key=wanted.key,
        headers=wanted.headers,
        due_ms=due_ms,
        message_id=wanted.message_id,
        expires=wanted.expires,
        partition=wanted.partition,
        acks=wanted.acks,
    )
    return receipt, due_ms, now_ms


def _plain(receipt: "Receipt", due_ms: int | None) -> dict[str, object]:
    return {
        "topic": receipt.topic,
        "partition": receipt.partition,
        "offset": receipt.offset,
        "id": bytes_json(receipt.message_id),
        "is_new": receipt.is_new,
        "due_ms": due_ms,
    }


async def _repeat(
    client: "UnaryClient", wanted: _Wanted, cron: str, zone: str, name: str | None
) -> "Recurrence":
    from waterclock.client.due import Cron as CronRule
    from waterclock.client.schedule import recurrence_name

    if wanted.at or wanted.message_id or wanted.partition is not None or wanted.acks != "quorum":
        raise BadInput("--cron: what repeats has no --at, --id, --partition or --acks of its own")
    rule = CronRule(cron, zone)
    return await client.schedule.repeat(
        name or recurrence_name(wanted.topic, rule, wanted.value, wanted.key),
        wanted.topic,
        wanted.value,
        cron=rule,
        key=wanted.key,
        headers=wanted.headers,
        expires_after=wanted.expires,
    )


# Many lines


def _publish_lines(
    file: Path, wanted: _Wanted, cron: str | None, address: str | None, *, as_json: bool
) -> None:
    if cron is not None or wanted.message_id is not None:
        raise BadInput("--cron and --id are for one message; a file has many")
    from waterclock.cli import connection
    from waterclock.cli.line_source import opened
    from waterclock.cli.output.figures import rate_text

    started = time.perf_counter()
    with opened(file) as number:
        count = connection.call(address, lambda client: _send_lines(client, number, wanted))
    seconds = time.perf_counter() - started
    if as_json:
        print_json({"topic": wanted.topic, "messages": count, "seconds": round(seconds, 3)})
    else:
        rate = rate_text(count, seconds)
        line = (
            f"Published {counted(count, 'message')} to {wanted.topic} in {seconds:.2f} s ({rate})."
        )
        say(line)


async def _send_lines(client: "Client", number: int, wanted: _Wanted) -> int:
    """Publish lines as they come; return how many."""
    from waterclock.cli.connection import node_now_ms
    from waterclock.cli.line_source import lines_of, size_of

    count = 0
    try:
        with progress("publishing", size_of(number)) as advance:
            async for lines in lines_of(number, advance=advance):
                messages = _messages(lines, wanted, node_now_ms(client))
                receipts = await client.publish_many(
                    wanted.topic, messages, partition=wanted.partition, acks=wanted.acks
                )
                tell_made(wanted.topic, max(each.made_partitions for each in receipts))
                count += len(messages)
    except WaterclockError:
        typer.echo(f"{counted(count, 'line')} had been published before this:", err=True)
        raise
    return count


def _messages(lines: list[bytes], wanted: _Wanted, now_ms: int) -> "list[Message]":
    from waterclock.client.due import instant_ms
    from waterclock.log.expiry import HEADER as EXPIRES_HEADER
    from waterclock.model.message import Message

    due_ms = None if wanted.at is None else instant_ms(wanted.at, now_ms, field="--at")
    headers = wanted.headers
    if wanted.expires is not None:
        until_ms = instant_ms(wanted.expires, max(now_ms, due_ms or 0), field="--expires")
        headers = {**(headers or {}), EXPIRES_HEADER: b"%d" % until_ms}
    return [Message(line, key=wanted.key, headers=headers, due_ms=due_ms) for line in lines]
