"""`waterclock groups`: how far groups have come, and setting where they go on."""

from typing import TYPE_CHECKING, Annotated

import typer

from waterclock.cli.arguments import position_of
from waterclock.cli.local_zone import here
from waterclock.cli.node_call import call
from waterclock.cli.options import Address, AsJson, Group, SomeTopic, Topic, Yes, pass_on
from waterclock.cli.output.messages import view_json
from waterclock.cli.output.terminal import (
    ask,
    console,
    counted,
    print_json,
    say,
    styled,
    table,
)
from waterclock.model.errors import BadInput

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from waterclock.client.unary.client import UnaryClient
    from waterclock.model.views import GroupInfo

app = typer.Typer(invoke_without_command=True)


@app.callback()
def groups(context: typer.Context, address: Address = None, as_json: AsJson = False) -> None:
    """See how far groups have come, move and delete them. Alone, it lists them."""
    if context.invoked_subcommand is None:
        list_groups(None, address, as_json)
    else:
        pass_on(context, address=address, as_json=as_json)


@app.command("list")
def list_groups(topic: SomeTopic = None, address: Address = None, as_json: AsJson = False) -> None:
    """Show all groups: members, lag, and what is being worked on."""
    found = call(address, lambda client: client.groups.list(topic))
    if as_json:
        print_json({"groups": [plain(group) for group in found]})
    elif found:
        tell_all(console(), found)
    else:
        say("No groups yet: subscribing in one makes it.")


@app.command("show")
def show(topic: Topic, group: Group, address: Address = None, as_json: AsJson = False) -> None:
    """Show where a group stands in each partition, and who works there."""
    _answer(call(address, lambda client: client.groups.get(topic, group)), as_json=as_json)


@app.command("delete")
def delete(
    topic: Topic, group: Group, yes: Yes = False, address: Address = None, as_json: AsJson = False
) -> None:
    """Forget a group and how far it has come."""

    async def work(client: "UnaryClient") -> None:
        found = await client.groups.get(topic, group)
        what = f"group {found.name} of {found.topic}, with a lag of {found.lag:,}"
        ask(f"Delete {what}? It would begin anew.", is_agreed=yes)
        await client.groups.delete(topic, group)

    call(address, work)
    if as_json:
        print_json({"topic": topic, "group": group, "deleted": True})
    else:
        say(f"Deleted group {group} of {topic}.")


@app.command("seek")
def seek(
    topic: Topic,
    group: Group,
    to: Annotated[
        str | None,
        typer.Option(metavar="earliest|latest|TIME", help="Go on there; -1h is an hour ago."),
    ] = None,
    offset: Annotated[
        list[str] | None,
        typer.Option(metavar="PARTITION/OFFSET", help="Instead; once for each partition."),
    ] = None,
    yes: Yes = False,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Set where a group goes on, while it has no members: what lies between is skipped, or comes
    again."""
    if (to is None) is (offset is None):
        raise BadInput("say where to go on: --to earliest, --to latest, --to TIME or --offset 0/12")
    aim = here(to) if to is not None else dict(position_of(text) for text in offset or ())

    async def work(client: "UnaryClient") -> "GroupInfo":
        found = await client.groups.get(topic, group)
        what = f"group {found.name} of {found.topic}, with a lag of {found.lag:,}"
        ask(f"Move {what}, to {to or ', '.join(offset or ())}?", is_agreed=yes)
        return await client.groups.seek(topic, group, aim)

    _answer(call(address, work), as_json=as_json)


def plain(group: "GroupInfo") -> dict[str, object]:
    """Return a group for machines, with the sums over its partitions."""
    return view_json(group) | {"lag": group.lag, "missed": group.missed}


def _answer(group: "GroupInfo", *, as_json: bool) -> None:
    if as_json:
        print_json(plain(group))
    else:
        tell(console(), group)


def tell_all(out: "Console", groups: "list[GroupInfo]") -> None:
    """Show a line for each group."""
    lines = table(out, "topic", "group", ">members", ">lag", ">unacked", ">waiting", ">missed")
    for group in groups:
        lines.add_row(
            group.topic,
            group.name,
            f"{len(group.members):,}",
            _lag(group.lag, is_idle=not group.members),
            f"{sum(place.unacked for place in group.partitions):,}",
            f"{sum(place.waiting for place in group.partitions):,}",
            f"{group.missed:,}",
        )
    out.print(lines)


def tell(out: "Console", group: "GroupInfo") -> None:
    """Show one group, partition by partition."""
    members = counted(len(group.members), "member")
    out.print(f"{group.name} of {group.topic}: {members}, lag {group.lag:,}", style="bold")
    out.print()
    columns = (">partition", ">committed", ">end", ">lag", ">unacked", ">waiting", ">missed")
    lines = table(out, *columns, "member")
    for place in group.partitions:
        lines.add_row(
            str(place.partition),
            f"{place.committed:,}",
            f"{place.end_offset:,}",
            _lag(place.lag, is_idle=not place.member),
            f"{place.unacked:,}",
            f"{place.waiting:,}",
            f"{place.missed:,}",
            place.member or styled("nobody", style="dim"),
        )
    out.print(lines)


def _lag(lag: int, *, is_idle: bool) -> "Text":
    """Return a lag; one that nobody works on stands out."""
    return styled(f"{lag:,}", style="bold yellow" if lag and is_idle else "")
