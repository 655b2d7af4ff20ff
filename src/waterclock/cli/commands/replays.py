"""`waterclock replays`: how far named replays have come, and forgetting them."""

from typing import TYPE_CHECKING, Annotated

import typer

from waterclock.cli.node_call import call
from waterclock.cli.options import Address, AsJson, Yes, pass_on
from waterclock.cli.output.terminal import ask, console, print_json, say, table
from waterclock.model.errors import NotFound

if TYPE_CHECKING:
    from rich.console import Console

    from waterclock.model.views import ReplayInfo

app = typer.Typer(invoke_without_command=True)


@app.callback()
def replays(context: typer.Context, address: Address = None, as_json: AsJson = False) -> None:
    """See how far named replays have come, and forget them. Alone, it lists them."""
    if context.invoked_subcommand is None:
        list_replays(address, as_json)
    else:
        pass_on(context, address=address, as_json=as_json)


@app.command("list")
def list_replays(address: Address = None, as_json: AsJson = False) -> None:
    """Show the named replays and how far they have come."""
    found = call(address, lambda client: client.replays.list())
    if as_json:
        print_json({"replays": [plain(each) for each in found]})
    elif found:
        tell_all(console(), found)
    else:
        say("No named replays: `waterclock replay TOPIC --name NAME` begins one.")


@app.command("delete")
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
        say(f"Forgot replay {name}.")


def plain(found: "ReplayInfo") -> dict[str, object]:
    """Return a replay for machines: offsets by partition."""
    return {
        "name": found.name,
        "topic": found.topic,
        "done": {each.partition: each.offset for each in found.done},
        "ends": {each.partition: each.offset for each in found.ends},
    }


def tell_all(out: "Console", found: "list[ReplayInfo]") -> None:
    """Show a line for each partition of each replay."""
    lines = table(out, "name", "topic", ">partition", ">done", ">end", ">left")
    for each in found:
        for done, end in zip(each.done, each.ends, strict=True):
            left = max(end.offset - done.offset, 0)
            offsets = f"{done.offset:,}", f"{end.offset:,}", f"{left:,}"
            lines.add_row(each.name, each.topic, str(end.partition), *offsets)
    out.print(lines)
