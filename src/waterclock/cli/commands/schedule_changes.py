"""`waterclock schedule cancel`, `move` and `cancel-where`: changing what is to come.

A pending message is named by its position as `schedule list` shows it, or by its id, which means
all that are pending under it. A cancel that says "cancelled" is a promise: they are never
delivered. If some message could not be changed, because it has fired or was never there, the
command ends with 1.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from waterclock.cli.arguments import ids_of, maybe_bytes, position_of
from waterclock.cli.commands.scheduled_filter import (
    DueFrom,
    DueUntil,
    HeaderIs,
    KeyBegins,
    KeyIs,
    filter_of,
)
from waterclock.cli.confirmation import ask
from waterclock.cli.connection import call
from waterclock.cli.local_zone import here
from waterclock.cli.options import Address, AsJson, Topic, Yes
from waterclock.cli.output.terminal import console, counted, one_line, print_json, table
from waterclock.model.errors import BadInput

if TYPE_CHECKING:
    from waterclock.client.client import Client
    from waterclock.client.results import CancelCount, Outcome, Receipt

    Pending = bytes | Receipt
    Change = Callable[[Sequence[Pending]], Awaitable[Sequence[Outcome]]]

EXIT_NOT_ALL = 1

Ids = Annotated[
    list[str],
    typer.Argument(metavar="ID...", help="Ids of messages, or places as in 0/12."),
]
OfKey = Annotated[str | None, typer.Option("--key", metavar="KEY", help="Only those of this key.")]


def cancel(
    topic: Topic,
    ids: Ids,
    key: OfKey = None,
    yes: Yes = False,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Cancel scheduled messages by id; ends with 1 if some had fired or are unknown."""
    ask(f"Cancel {counted(len(ids), 'message')} of {topic}?", is_agreed=yes)
    keys = maybe_bytes(key)

    async def work(client: "Client") -> "list[Outcome]":
        async def change(pending: "Sequence[Pending]") -> "Sequence[Outcome]":
            return await client.cancel_many(topic, pending, keys=[keys] * len(pending))

        return await _changed(topic, ids, change)

    _tell(ids, call(address, work), done="cancelled", as_json=as_json)


def move(
    topic: Topic,
    ids: Ids,
    to: Annotated[
        str, typer.Option(metavar="TIME", help="The new due time: +1h, 18:00, 'tomorrow 9:00'.")
    ],
    key: OfKey = None,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Give scheduled messages another due time; ends with 1 if some had fired or are unknown."""
    keys = maybe_bytes(key)

    async def work(client: "Client") -> "list[Outcome]":
        async def change(pending: "Sequence[Pending]") -> "Sequence[Outcome]":
            return await client.reschedule_many(
                topic, pending, here(to), keys=[keys] * len(pending)
            )

        return await _changed(topic, ids, change)

    _tell(ids, call(address, work), done="moved", as_json=as_json)


def cancel_where(
    topic: Topic,
    key: KeyIs = None,
    key_prefix: KeyBegins = None,
    header: HeaderIs = None,
    start: DueFrom = None,
    end: DueUntil = None,
    everything: Annotated[bool, typer.Option("--all", help="All of the topic.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count them, and no more.")] = False,
    yes: Yes = False,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Cancel all scheduled messages that match everything given."""
    chosen = filter_of(key, key_prefix, header, start, end)
    if everything is any(value is not None for value in chosen.values()):
        raise BadInput("say which, as in --key-prefix order-, or --all of the topic")

    async def work(client: "Client") -> "CancelCount":
        found = await client.cancel_where(topic, **chosen, everything=everything, dry_run=True)
        if dry_run or not found.matched:
            return found
        ask(f"Cancel {counted(found.matched, 'message')} of {topic}?", is_agreed=yes)
        return await client.cancel_where(topic, **chosen, everything=everything)

    found = call(address, work)
    if as_json:
        print_json({"topic": topic, "matched": found.matched, "cancelled": found.cancelled})
    elif dry_run:
        console().print(f"{counted(found.matched, 'message')} would be cancelled.")
    else:
        console().print(f"{counted(found.cancelled, 'message')} cancelled.")


async def _changed(topic: str, texts: Sequence[str], change: "Change") -> "list[Outcome]":
    """Change the messages; return what came of each. What is unknown as typed is tried as the bytes
    that listings show so."""
    meanings = [_meanings(topic, text) for text in texts]
    outcomes = list(await change([each[0] for each in meanings]))
    again = [at for at, each in enumerate(meanings) if outcomes[at] == "unknown" and each[1:]]
    if again:
        second = await change([meanings[at][1] for at in again])
        for at, outcome in zip(again, second, strict=True):
            outcomes[at] = outcome
    return outcomes


def _meanings(topic: str, text: str) -> "list[Pending]":
    from waterclock.client.results import Receipt

    try:
        partition, offset = position_of(text)
    except BadInput:
        return [*ids_of(text)]
    # An id may look like a position, and is what was meant if it is there.
    return [*ids_of(text), Receipt(topic, partition, offset, b"", True)]


def _tell(texts: Sequence[str], outcomes: "list[Outcome]", *, done: str, as_json: bool) -> None:
    told = list(zip(texts, outcomes, strict=True))
    if as_json:
        found = [{"id": id_, "outcome": out, "reached": out.reached} for id_, out in told]
        print_json({"outcomes": found})
    else:
        out = console()
        lines = table(out, "~id", "outcome", "messages")
        for text, outcome in told:
            lines.add_row(one_line(text), outcome, f"{outcome.reached:,}")
        out.print(lines)
    if any(outcome != done for outcome in outcomes):
        raise typer.Exit(EXIT_NOT_ALL)
