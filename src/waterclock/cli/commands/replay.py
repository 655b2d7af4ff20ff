"""`waterclock replay`: print a stretch of the past, once, in order, without a group.

With `--name` it can be broken off and goes on there the next time, with the bounds it began with;
what was printed of the batch at hand comes again. `waterclock replays` lists those replays and
forgets them.
"""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from waterclock.cli.connection import call
from waterclock.cli.local_zone import here
from waterclock.cli.options import Address, AsJson, Raw, Topic, Yes, pass_on
from waterclock.cli.output.messages import MessagePrinter, form_of
from waterclock.cli.output.terminal import ask, console, counted, note, print_json, table
from waterclock.model.errors import BadInput, NotFound

if TYPE_CHECKING:
    from waterclock.client.client import Client
    from waterclock.client.consumer.replay import Replay
    from waterclock.model.views import ReplayInfo

replays_app = typer.Typer(invoke_without_command=True)


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
    printer = MessagePrinter(form_of(as_json=as_json, is_raw=is_raw), with_times=True)

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


@replays_app.callback()
def replays(context: typer.Context, address: Address = None, as_json: AsJson = False) -> None:
    """See how far named replays have come, and forget them. Alone, it lists them."""
    if context.invoked_subcommand is None:
        list_replays(address, as_json)
    else:
        pass_on(context, address=address, as_json=as_json)


@replays_app.command("list")
def list_replays(address: Address = None, as_json: AsJson = False) -> None:
    """Show the named replays and how far they have come."""
    found = call(address, lambda client: client.replays.list())
    if as_json:
        print_json({"replays": [plain(each) for each in found]})
    elif found:
        tell_all(console(), found)
    else:
        console().print("No named replays: `waterclock replay TOPIC --name NAME` begins one.")


@replays_app.command("delete")
def delete(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of a replay.")],
    yes: Yes = False,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Forget a replay and how far it has come."""
    ask(f"Forget replay {name} and how far it has come?", is_agreed=yes)
    if not call(address, lambda client: client.replays.delete(name)):
        raise NotFound("replay", name)
    if as_json:
        print_json({"name": name, "deleted": True})
    else:
        console().print(f"Forgot replay {name}.")


def plain(found: "ReplayInfo") -> dict[str, object]:
    """Return a replay for machines: offsets by partition."""
    return {
        "name": found.name,
        "topic": found.topic,
        "done": {each.partition: each.offset for each in found.done},
        "ends": {each.partition: each.offset for each in found.ends},
    }


def tell_all(out: Console, found: "list[ReplayInfo]") -> None:
    """Show a line for each partition of each replay."""
    lines = table(out, "name", "topic", ">partition", ">done", ">end", ">left")
    for each in found:
        for done, end in zip(each.done, each.ends, strict=True):
            left = max(end.offset - done.offset, 0)
            offsets = f"{done.offset:,}", f"{end.offset:,}", f"{left:,}"
            lines.add_row(each.name, each.topic, str(end.partition), *offsets)
    out.print(lines)
