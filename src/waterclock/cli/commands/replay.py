"""`waterclock replay`: print a stretch of the past, once, in order, without a group.

With `--name` it can be broken off and goes on there the next time, with the bounds it began with;
what was printed of the batch at hand comes again. `waterclock replays` lists those replays and
forgets them.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from waterclock.cli.connection import call
from waterclock.cli.local_zone import here
from waterclock.cli.options import Address, AsJson, Raw, Topic
from waterclock.cli.output.messages import MessagePrinter, form_of
from waterclock.cli.output.terminal import counted, note
from waterclock.model.errors import BadInput

if TYPE_CHECKING:
    from waterclock.client.client import Client
    from waterclock.client.consumer.replay import Replay


def replay(
    topic: Topic,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="From then on: -1h, '1h ago', 2026-12-24T18:00Z."),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Before then.", show_default="now")
    ] = None,
    by_due: Annotated[
        bool, typer.Option("--by-due", help="Times are due times, not when it was published.")
    ] = False,
    first: Annotated[
        int | None,
        typer.Option("--from-offset", min=0, metavar="OFFSET", help="From this offset on."),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="So many at most.")
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option(min=0, metavar="N", help="Only this partition; may be given again."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Can be broken off and goes on there.")
    ] = None,
    compacted: Annotated[
        bool,
        typer.Option("--compacted", help="The last message of each key, then what came after."),
    ] = False,
    is_raw: Raw = False,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Print messages of the past: by time, by offset, or all there are."""
    if first is not None and (since or until):
        raise BadInput("give times or --from-offset, not both")
    if compacted and (since or until or first is not None):
        raise BadInput("--compacted shows all there is: give no times and no --from-offset")
    if by_due and not (since or until):
        raise BadInput("--by-due needs --since or --until")
    printer = MessagePrinter(form_of(as_json=as_json, is_raw=is_raw))

    async def work(client: "Client") -> int:
        messages = client.replay(
            topic,
            name=name or "",
            since=None if since is None else here(since),
            until=None if until is None else here(until),
            by_due=by_due,
            offset=first,
            partitions=partition or (),
            compacted=compacted,
        )
        return await _print(messages, printer, count)

    note(f"{counted(call(address, work), 'message')}.")


async def _print(messages: "Replay", printer: MessagePrinter, count: int | None) -> int:
    shown = 0
    async for message in messages:
        printer.show(message)
        shown += 1
        if shown == count:
            break
    return shown
