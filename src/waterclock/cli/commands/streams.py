"""`waterclock streams`: what streams there are in memory, resizing and deleting them."""

from typing import TYPE_CHECKING, Annotated

import typer

from waterclock.cli.node_call import call
from waterclock.cli.options import Address, AsJson, Stream, Yes, pass_on
from waterclock.cli.output.terminal import (
    ask,
    bytes_text,
    console,
    counted,
    print_json,
    say,
    table,
)
from waterclock.model.errors import NotFound

if TYPE_CHECKING:
    from rich.console import Console

    from waterclock.client.unary.client import UnaryClient
    from waterclock.model.views import StreamInfo

NAME_CHARS = 100

app = typer.Typer(invoke_without_command=True)


@app.callback()
def streams(context: typer.Context, address: Address = None, as_json: AsJson = False) -> None:
    """List, look at, resize and delete streams. Alone, it lists them."""
    if context.invoked_subcommand is None:
        list_streams(address, as_json)
    else:
        pass_on(context, address=address, as_json=as_json)


@app.command("list")
def list_streams(address: Address = None, as_json: AsJson = False) -> None:
    """Show the names of all streams in memory."""
    found = call(address, lambda client: client.streams.list())
    if as_json:
        print_json({"streams": found})
    elif found:
        for name in found:
            say(_name(name))
    else:
        say("No streams: sending to one makes it.")


@app.command("show")
def show(stream: Stream, address: Address = None, as_json: AsJson = False) -> None:
    """Show what is in a stream, who waits there, and how far consumers have come."""
    _answer(call(address, lambda client: client.streams.get(stream)), as_json=as_json)


@app.command("resize")
def resize(
    stream: Stream,
    size: Annotated[int, typer.Argument(min=0, metavar="N", help="Messages it is to hold.")],
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Let a stream hold another number of messages; of too many, the oldest go."""
    _answer(call(address, lambda client: client.streams.resize(stream, size)), as_json=as_json)


@app.command("delete")
def delete(
    stream: Stream, yes: Yes = False, address: Address = None, as_json: AsJson = False
) -> None:
    """Delete a stream with all its messages, stored ones included."""

    async def work(client: "UnaryClient") -> None:
        try:
            held = counted((await client.streams.get(stream)).messages, "message")
        except NotFound:  # there may be some in the store
            held = "nothing"
        what = f"stream {_name(stream)}, with {held} in memory and all that is stored"
        ask(f"Delete {what}?", is_agreed=yes)
        await client.streams.delete(stream)

    call(address, work)
    if as_json:
        print_json({"stream": stream, "deleted": True})
    else:
        say(f"Deleted stream {_name(stream)}.")


def plain(stream: "StreamInfo") -> dict[str, object]:
    """Return a stream for machines."""
    return {
        "stream": stream.name,
        "size": stream.size,
        "messages": stream.messages,
        "first_position": stream.first_position,
        "last_position": stream.last_position,
        "waiting": stream.waiting,
        "waiting_senders": stream.waiting_senders,
        "consumers": dict(stream.consumers),
    }


def _answer(stream: "StreamInfo", *, as_json: bool) -> None:
    if as_json:
        print_json(plain(stream))
    else:
        tell(console(), stream)


def tell(out: "Console", stream: "StreamInfo") -> None:
    """Show one stream, and its consumers."""
    size = "" if stream.size is None else f" of {stream.size:,}"
    what = f"{counted(stream.messages, 'message')}{size} in memory, {stream.waiting:,} waiting"
    out.print(f"{_name(stream.name)}: {what}", style="bold", soft_wrap=True)
    if stream.messages:
        out.print(f"positions {stream.first_position:,} to {stream.last_position:,}")
    if not stream.consumers:
        return
    out.print()
    lines = table(out, "consumer", ">position", ">behind")
    for name, position in stream.consumers.items():
        behind = max(stream.last_position - position, 0)
        lines.add_row(_name(name), f"{position:,}", f"{behind:,}")
    out.print(lines)


def _name(name: str) -> str:
    return bytes_text(name.encode(), chars_max=NAME_CHARS)
