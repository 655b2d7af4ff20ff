"""`waterclock cluster`: who is in it, owns how much, leads which partition; what has happened.

What moves replicas is in `placement`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from waterclock.cli.commands.cluster import placement
from waterclock.cli.node_call import call
from waterclock.cli.options import Address, AsJson, pass_on
from waterclock.cli.output.messages import view_json
from waterclock.cli.output.terminal import (
    console,
    counted,
    one_line,
    print_json,
    say,
    styled,
    table,
    time_text,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from waterclock.client.client import Client
    from waterclock.model.cluster_views import (
        EventView,
        MemberView,
        ReplicationView,
        ReplicaView,
        RingView,
    )

FOLLOW_MS = 500
STYLES = {"alive": "green", "suspect": "yellow", "leaving": "yellow", "failed": "bold red"}
PRESENT = ("alive", "suspect", "leaving")
KINDS = {
    "joined": "green", "linked": "green", "ring": "cyan", "left": "yellow", "leaving": "yellow",
    "unlinked": "yellow", "failed": "bold red", "gone": "bold red", "refused": "bold red",
    "conflicted": "bold red", "blocked": "bold red",
}  # fmt: skip

app = typer.Typer(invoke_without_command=True)
for each in (placement.drain, placement.replace, placement.move, placement.placement):
    app.command(each.__name__)(each)


@app.callback()
def cluster(context: typer.Context, address: Address = None, as_json: AsJson = False) -> None:
    """See who is in the cluster and what happened, and move replicas. Alone, it lists members."""
    if context.invoked_subcommand is None:
        members(address, as_json)
    else:
        pass_on(context, address=address, as_json=as_json)


@app.command("members")
def members(address: Address = None, as_json: AsJson = False) -> None:
    """Show all members, as the node that is asked sees them."""
    found = call(address, lambda client: client.cluster.members())
    if as_json:
        print_json({"members": [view_json(member) for member in found]})
    else:
        tell_members(console(), found)


@app.command("ring")
def ring(address: Address = None, as_json: AsJson = False) -> None:
    """Show who owns how much of the streams, and how many are in memory."""
    found = call(address, lambda client: client.cluster.ring())
    if as_json:
        print_json(view_json(found))
    else:
        tell_ring(console(), found)


@app.command("status")
def status(
    is_problem_only: Annotated[
        bool, typer.Option("--problems", help="Only partitions that lack a leader or a replica.")
    ] = False,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Show who leads which partition, under which epoch, and how far the other replicas are."""
    found = call(address, lambda client: client.cluster.replication())
    chosen = [each for each in found if each.is_under_replicated or not is_problem_only]
    if as_json:
        shown = [view_json(each) | _judged(each) for each in chosen]
        print_json({"partitions": shown})
    elif found:
        tell_replication(console(), chosen, len(found))
    else:
        say("No topic is replicated: there is none, or the node has no cluster.etcd.")


@app.command("events")
def events(
    is_followed: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what happens; Ctrl-C ends it.")
    ] = False,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Show who came and went, as far as the node that is asked remembers."""

    def show(found: "Sequence[EventView]") -> None:
        for event in found:
            if as_json:
                print_json(view_json(event))
            else:
                console().print(_event_line(event), soft_wrap=True)

    async def follow(client: "Client") -> None:
        known: list[EventView] = []
        while True:
            found = await client.cluster.events()
            show(news(known, found))
            known = found
            await client._connection.pause(FOLLOW_MS)

    if is_followed:
        from waterclock.cli.connection import call_until_ended

        call_until_ended(address, follow)
        return
    found = call(address, lambda client: client.cluster.events())
    show(found)
    if not found and not as_json:
        say("Nothing has happened: no member came or went since the node was started.")


def news(known: "Sequence[EventView]", found: "Sequence[EventView]") -> "Sequence[EventView]":
    """Return what of a list is new since it was last asked for: its oldest may be gone by now."""
    starts = range(len(known) + 1)
    start = next(at for at in starts if list(found[: len(known) - at]) == list(known[at:]))
    return found[len(known) - start :]


# What is shown


def tell_members(out: "Console", found: "list[MemberView]") -> None:
    """Show a line for each member, the node that was asked first."""
    lines = table(out, "name", "state", "HTTP", "gossip", "peer link", "zone", ">level")
    for member in sorted(found, key=lambda each: (not each.is_self, each.name)):
        lines.add_row(
            styled(one_line(member.name), style="bold" if member.is_self else ""),
            styled(member.state, style=STYLES.get(member.state, "dim")),
            one_line(member.http) or "-",
            member.address or "-",
            _link(member),
            one_line(member.zone) or "-",
            str(member.level or "-"),
        )
    out.print(lines)


def _link(member: "MemberView") -> "Text":
    """Return where other nodes ask a member; one that should be there and cannot be stands out."""
    if not member.peer:
        return styled("-")
    is_missed = member.state in PRESENT and not (member.is_linked or member.is_self)
    shown = one_line(member.peer)
    return styled(f"{shown} (no link)", style="yellow") if is_missed else styled(shown)


def tell_ring(out: "Console", found: "RingView") -> None:
    """Show who owns how much."""
    count = counted(len(found.nodes), "node")
    out.print(f"ring {found.version:010x} of {count}", style="bold")
    lines = table(out, "name", ">share", ">streams in memory")
    for node in found.nodes:
        streams = "unknown" if node.streams < 0 else f"{node.streams:,}"
        lines.add_row(one_line(node.name), f"{node.share:.1%}", streams)
    out.print(lines)


def tell_replication(out: "Console", found: "Sequence[ReplicationView]", count: int) -> None:
    """Show a line for each of some partitions, of so many."""
    lines = table(
        out, "topic", ">partition", "leader", ">epoch", "state", ">committed", "~replicas", ">lag"
    )
    for view in found:
        replicas = styled(", ").join(_replica(each, view) for each in view.replicas)
        if view.voters < view.factor:
            replicas.append(f" ({view.voters} of {view.factor})", style="yellow")
        lines.add_row(
            one_line(view.topic),
            str(view.partition),
            styled(one_line(view.leader) or "nobody", style="" if view.leader else "bold red"),
            str(view.epoch),
            view.state,
            f"{view.committed_end:,}" if view.committed_end >= 0 else "-",
            replicas,
            f"{view.lag:,}" if view.lag >= 0 else "-",
        )
    if found:
        out.print(lines)
    bad = sum(each.is_under_replicated for each in found)
    text = f"{counted(count, 'partition')}, {bad:,} under-replicated"
    out.print(text, style="bold red" if bad else "green")


def _replica(replica: "ReplicaView", view: "ReplicationView") -> "Text":
    name = one_line(replica.name)
    if replica.name == view.leader:
        return styled(name, style="bold")
    if not replica.is_voter:
        return styled(f"{name} (learns)", style="cyan")
    return styled(name) if replica.is_linked else styled(f"{name} (away)", style="yellow")


def _judged(view: "ReplicationView") -> dict[str, object]:
    return {"lag": view.lag, "is_under_replicated": view.is_under_replicated}


def _event_line(event: "EventView") -> "Text":
    line = styled(f"{time_text(event.time_ms)}  ", style="dim")
    line.append(f"{event.kind:<10}", style=KINDS.get(event.kind, ""))
    line.append(f" {one_line(event.member)}" if event.member else "", style="bold")
    return line.append(f" {one_line(event.detail)}" if event.detail else "")
