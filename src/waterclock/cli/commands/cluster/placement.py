"""`waterclock cluster drain|replace|move`: where replicas should be, and how far that is.

What is wanted is kept by the cluster: a command that is ended takes nothing back.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from waterclock.cli.options import Address, AsJson, Topic
from waterclock.cli.output.messages import view_json
from waterclock.cli.output.terminal import busy, console, counted, one_line, print_json, table

if TYPE_CHECKING:
    from rich.console import Console

    from waterclock.client.client import Client
    from waterclock.model.cluster_views import DrainView, PlacementView

LOOK_S = 0.5
STUCK_LOOKS = 4
"""So often nothing but what is stuck is left, before it is believed: news may be late."""

NodeName = Annotated[str, typer.Argument(metavar="NODE", help="The name of a node.")]
IsLeft = Annotated[bool, typer.Option("--no-wait", help="Do not wait until it is done.")]
Undo = Annotated[bool, typer.Option("--undo", help="Want it no more; what has moved stays.")]


def drain(
    node: NodeName,
    undo: Annotated[bool, typer.Option("--undo", help="Let it have replicas again.")] = False,
    is_left: IsLeft = False,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Move all leaders, then all replicas off a node, so that it can be taken away."""

    async def work(client: "Client") -> "PlacementView":
        if undo:
            return await client.cluster.undrain(node)
        found = await client.cluster.drain(node)
        return found if is_left else await _until_empty(client, node)

    found = _call(address, work)
    if undo:
        _tell(found, f"{node} may have replicas again.", as_json=as_json)
    else:
        _tell_drained(found, node, as_json=as_json)


def replace(
    node: Annotated[str, typer.Argument(metavar="OLD", help="A node that will not come back.")],
    target: Annotated[str, typer.Argument(metavar="NEW", help="Who has its replicas instead.")],
    is_left: IsLeft = False,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Make the replicas of a node that is gone anew on another, at once."""

    async def work(client: "Client") -> "PlacementView":
        found = await client.cluster.replace(node, target)
        return found if is_left else await _until_empty(client, node)

    _tell_drained(_call(address, work), node, as_json=as_json)


def move(
    topic: Topic,
    partition: Annotated[int, typer.Argument(metavar="PARTITION", min=0, help="Its number.")],
    target: Annotated[
        str, typer.Option("--to", metavar="NODE", help="The node that gets it.")
    ] = "",
    source: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="NODE",
            help="Whose replica goes.",
            show_default="whichever can best be spared",
        ),
    ] = "",
    is_leader_only: Annotated[
        bool, typer.Option("--leader", help="Move the leader only, to one that has a replica.")
    ] = False,
    undo: Undo = False,
    is_left: IsLeft = False,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Move a replica of a partition, or its leader, to a node."""
    if bool(target) == undo:
        raise typer.BadParameter("name a node, or --undo what was wanted", param_hint="--to")

    async def work(client: "Client") -> "PlacementView":
        orders = client.cluster
        if undo:
            return await orders.undo_move(topic, partition)
        if is_leader_only:
            if source:
                raise typer.BadParameter("it is moved from wherever it is", param_hint="--from")
            found = await orders.move_leader(topic, partition, target=target)
        else:
            found = await orders.move(topic, partition, target=target, source=source)
        return found if is_left else await _until_moved(client, topic, partition)

    found = _call(address, work)
    what = f"{one_line(topic)}/{partition}"
    if undo:
        text = f"{what} is moved no further."
    elif _is_moving(found, topic, partition):
        text = f"{what} moves to {target}."
    else:
        text = f"{target} {'leads' if is_leader_only else 'has a replica of'} {what}."
    _tell(found, text, as_json=as_json)


# Waiting


def _call(
    address: str | None, work: "Callable[[Client], Awaitable[PlacementView]]"
) -> "PlacementView":
    from waterclock.cli.connection import call

    return call(address, work)


async def _until_empty(client: "Client", node: str) -> "PlacementView":
    """Return when a node has nothing any more, or only what has nowhere to go."""
    looks = 0

    def is_over(found: "PlacementView") -> bool:
        nonlocal looks
        left = _drain_of(found, node)
        is_stuck = left is not None and not left.leaders and left.replicas == left.stuck
        looks = looks + 1 if is_stuck else 0
        return left is None or left.is_done or looks >= STUCK_LOOKS

    def describe(found: "PlacementView") -> str:
        left = _drain_of(found, node)
        assert left is not None
        return f"{node}: {_left(left)} left"

    return await _until(client.cluster.placement, is_over, describe)


async def _until_moved(client: "Client", topic: str, partition: int) -> "PlacementView":
    def is_over(found: "PlacementView") -> bool:
        return not _is_moving(found, topic, partition)

    return await _until(
        client.cluster.placement, is_over, lambda _: f"{topic}/{partition} is being moved"
    )


async def _until(
    look: "Callable[[], Awaitable[PlacementView]]",
    is_over: "Callable[[PlacementView], bool]",
    describe: "Callable[[PlacementView], str]",
) -> "PlacementView":
    import asyncio  # commands that ask only once do without

    with busy("asking") as say:
        while not is_over(found := await look()):
            say(describe(found))
            await asyncio.sleep(LOOK_S)
    return found


def _drain_of(found: "PlacementView", node: str) -> "DrainView | None":
    return next((each for each in found.drains if each.node == node), None)


def _is_moving(found: "PlacementView", topic: str, partition: int) -> bool:
    return any((each.topic, each.partition) == (topic, partition) for each in found.moves)


# What is shown


def placement(address: Address = None, as_json: AsJson = False) -> None:
    """Show what is drained, replaced and moved, and how much of it is left."""
    found = _call(address, lambda client: client.cluster.placement())
    if as_json:
        print_json(view_json(found))
    elif found.drains or found.moves:
        tell_placement(console(), found)
    else:
        console().print("Nothing is drained, replaced or moved.")


def tell_placement(out: "Console", found: "PlacementView") -> None:
    """Show a line for each node and partition."""
    if found.drains:
        lines = table(out, "node", "replaced by", "alive", ">leaders", ">replicas", ">stuck")
        for drain in found.drains:
            is_there = "yes" if drain.is_alive else "no"
            counts = (f"{each:,}" for each in (drain.leaders, drain.replicas, drain.stuck))
            lines.add_row(one_line(drain.node), one_line(drain.target) or "-", is_there, *counts)
        out.print(lines)
    if found.moves:
        lines = table(out, "topic", ">partition", "what", "to", "from")
        for move in found.moves:
            what = "leader" if move.is_leader_only else "replica"
            ends = (one_line(move.target), one_line(move.source) or "-")
            lines.add_row(one_line(move.topic), str(move.partition), what, *ends)
        out.print(lines)


def _tell(found: "PlacementView", text: str, *, as_json: bool) -> None:
    if as_json:
        print_json(view_json(found))
    else:
        console().print(text, style="green", soft_wrap=True)


def _tell_drained(found: "PlacementView", node: str, *, as_json: bool) -> None:
    """Tell how much is left of a node; what is stuck fails the command."""
    left = _drain_of(found, node)
    if left is None or left.is_done:
        text = f"{node} leads nothing and has no replicas: it can be taken away."
        _tell(found, text, as_json=as_json)
        return
    is_stuck = not left.leaders and left.replicas == left.stuck
    if as_json:
        print_json(view_json(found))
    elif is_stuck:
        count = counted(left.stuck, "replica")
        text = f"{node} leads nothing; {count} can go nowhere: they move when another node is there"
        console().print(text, style="yellow", soft_wrap=True)
    else:
        console().print(f"{node} is being emptied: {_left(left)} left.", soft_wrap=True)
    if is_stuck:
        raise typer.Exit(1)


def _left(drain: "DrainView") -> str:
    return f"{counted(drain.leaders, 'leader')}, {counted(drain.replicas, 'replica')}"
