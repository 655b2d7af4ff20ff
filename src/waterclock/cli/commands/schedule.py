"""`waterclock schedule`: what is to come, as a table and as a histogram, and changing it.

A pending message is named by its position as `schedule list` shows it, or by its id, which means
all that are pending under it. A message that a cancel calls "cancelled" is never delivered. If some
message could not be changed, because it has fired or was never there, the command ends with 1. What
repeats is in `repeats`.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from waterclock.cli.arguments import headers_of, ids_of, maybe_bytes, position_of
from waterclock.cli.commands.repeats import pause, repeat, repeats, resume, unrepeat
from waterclock.cli.local_zone import here
from waterclock.cli.node_call import call
from waterclock.cli.options import Address, AsJson, Limit, SomeTopic, Topic, Yes, pass_on
from waterclock.cli.output.figures import bars
from waterclock.cli.output.messages import headers_json, millis_of, value_text
from waterclock.cli.output.terminal import (
    ask,
    bytes_json,
    bytes_text,
    console,
    counted,
    due_text,
    one_line,
    print_json,
    say,
    size_text,
    span_text,
    table,
    time_text,
)
from waterclock.model.errors import BadInput

if TYPE_CHECKING:
    from rich.console import Console

    from waterclock.client.results import Outcome, Receipt
    from waterclock.client.unary.client import UnaryClient
    from waterclock.model.views import CancelCount, Horizon, ScheduledMessage

    Pending = bytes | Receipt
    Change = Callable[[Sequence[Pending]], Awaitable[Sequence[Outcome]]]

LIMIT = 20
PAGE_MAX = 1_000
"""What a node lists at a time."""
ID_CHARS = 36
KEY_CHARS = 24
VALUE_CHARS = 40

KeyIs = Annotated[str | None, typer.Option("--key", metavar="KEY", help="Only of this key.")]
KeyBegins = Annotated[
    str | None, typer.Option("--key-prefix", metavar="TEXT", help="Only of keys that begin so.")
]
HeaderIs = Annotated[
    list[str] | None,
    typer.Option("--header", "-H", metavar="NAME=VALUE", help="Only with this header."),
]
DueFrom = Annotated[
    str | None, typer.Option("--from", metavar="TIME", help="Only due then or later, as in +1h.")
]
DueUntil = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="Only due before then, as in +1d.")
]


class ScheduledFilter(TypedDict):
    """What must hold of a message, all of it; None asks nothing."""

    key: bytes | None
    key_prefix: bytes | None
    headers: dict[str, bytes] | None
    start: str | None
    end: str | None


def filter_of(
    key: str | None,
    key_prefix: str | None,
    header: list[str] | None,
    start: str | None,
    end: str | None,
) -> ScheduledFilter:
    """Return what was asked for."""
    return ScheduledFilter(
        key=maybe_bytes(key),
        key_prefix=maybe_bytes(key_prefix),
        headers=headers_of(header),
        start=None if start is None else here(start),
        end=None if end is None else here(end),
    )


app = typer.Typer(invoke_without_command=True)


@app.callback()
def schedule(context: typer.Context, address: Address = None, as_json: AsJson = False) -> None:
    """See what is to come; cancel, move and repeat it. Alone, it lists."""
    if context.invoked_subcommand is None:
        list_scheduled(address=address, as_json=as_json)
    else:
        pass_on(context, address=address, as_json=as_json)


@app.command("list")
def list_scheduled(
    topic: SomeTopic = None,
    key: KeyIs = None,
    key_prefix: KeyBegins = None,
    header: HeaderIs = None,
    start: DueFrom = None,
    end: DueUntil = None,
    limit: Limit = LIMIT,
    with_values: Annotated[bool, typer.Option("--values", help="Show the values too.")] = False,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Show what is to come, the soonest first, and how much of it comes when."""
    chosen = filter_of(key, key_prefix, header, start, end)
    found, horizons = call(
        address, lambda client: _upcoming(client, topic, chosen, limit, with_values=with_values)
    )
    if as_json:
        print_json(
            {
                "scheduled": [plain(each) for each in found],
                "horizons": horizons_json(horizons),
                "total": sum(horizon.count for horizon in horizons),
            }
        )
    else:
        tell(console(), found, horizons, topic=topic, with_values=with_values)


@app.command("count")
def count(topic: SomeTopic = None, address: Address = None, as_json: AsJson = False) -> None:
    """Count what is to come, by when it is due."""
    horizons = call(address, lambda client: client.schedule.count_scheduled(topic))
    total = sum(horizon.count for horizon in horizons)
    if as_json:
        print_json({"horizons": horizons_json(horizons), "total": total})
    else:
        tell_horizons(console(), horizons, topic=topic)


app.command("repeat")(repeat)
app.command("repeats")(repeats)
app.command("pause")(pause)
app.command("resume")(resume)
app.command("unrepeat")(unrepeat)


async def _upcoming(
    client: "UnaryClient",
    topic: str | None,
    chosen: ScheduledFilter,
    limit: int,
    *,
    with_values: bool,
) -> "tuple[list[ScheduledMessage], list[Horizon]]":
    """Return the soonest messages, of one topic or of all, and the counts of everything."""
    found: list[ScheduledMessage] = []
    async for each in client.schedule.scheduled(
        topic, **chosen, with_values=with_values, page_size=min(limit, PAGE_MAX)
    ):
        found.append(each)
        if len(found) == limit:
            break
    return found, await client.schedule.count_scheduled(topic)


EXIT_NOT_ALL = 1

Ids = Annotated[
    list[str],
    typer.Argument(metavar="ID...", help="Ids of messages, or positions as in 0/12."),
]
OfKey = Annotated[str | None, typer.Option("--key", metavar="KEY", help="Only those of this key.")]


@app.command()
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

    async def work(client: "UnaryClient") -> "list[Outcome]":
        async def change(pending: "Sequence[Pending]") -> "Sequence[Outcome]":
            return await client.schedule.cancel_many(topic, pending, keys=[keys] * len(pending))

        return await _changed(topic, ids, change)

    _tell_outcomes(ids, call(address, work), done="cancelled", as_json=as_json)


@app.command()
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

    async def work(client: "UnaryClient") -> "list[Outcome]":
        async def change(pending: "Sequence[Pending]") -> "Sequence[Outcome]":
            return await client.schedule.reschedule_many(
                topic, pending, here(to), keys=[keys] * len(pending)
            )

        return await _changed(topic, ids, change)

    _tell_outcomes(ids, call(address, work), done="moved", as_json=as_json)


@app.command()
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

    async def work(client: "UnaryClient") -> "CancelCount":
        found = await client.schedule.cancel_where(
            topic, **chosen, everything=everything, dry_run=True
        )
        if dry_run or not found.matched:
            return found
        ask(f"Cancel {counted(found.matched, 'message')} of {topic}?", is_agreed=yes)
        return await client.schedule.cancel_where(topic, **chosen, everything=everything)

    found = call(address, work)
    if as_json:
        print_json({"topic": topic, "matched": found.matched, "cancelled": found.cancelled})
    elif dry_run:
        say(f"{counted(found.matched, 'message')} would be cancelled.")
    else:
        say(f"{counted(found.cancelled, 'message')} cancelled.")


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


def _tell_outcomes(
    texts: Sequence[str], outcomes: "list[Outcome]", *, done: str, as_json: bool
) -> None:
    pairs = list(zip(texts, outcomes, strict=True))
    if as_json:
        found = [{"id": id_, "outcome": out, "reached": out.reached} for id_, out in pairs]
        print_json({"outcomes": found})
    else:
        out = console()
        lines = table(out, "~id", "outcome", "messages")
        for text, outcome in pairs:
            lines.add_row(one_line(text), outcome, f"{outcome.reached:,}")
        out.print(lines)
    if any(outcome != done for outcome in outcomes):
        raise typer.Exit(EXIT_NOT_ALL)


# For machines


def plain(found: "ScheduledMessage") -> dict[str, object]:
    """Return a scheduled message for machines; its value only if it was asked for."""
    return {
        "topic": found.topic,
        "partition": found.partition,
        "offset": found.offset,
        "id": bytes_json(found.message_id),
        "timer_id": found.timer_id,
        "key": bytes_json(found.key),
        "headers": headers_json(found.headers),
        "due_ms": millis_of(found.due),
        "appended_ms": found.appended_ms or None,
        "value": bytes_json(found.value),
        "value_bytes": found.value_bytes,
    }


def horizons_json(horizons: "list[Horizon]") -> list[dict[str, object]]:
    """Return the counts for machines: `within_ms` is 0 for overdue, null for later than all."""
    return [
        {"within_ms": None if each.within is None else each.within_ms, "count": each.count}
        for each in horizons
    ]


# For people


def tell(
    out: "Console",
    found: "list[ScheduledMessage]",
    horizons: "list[Horizon]",
    *,
    topic: str | None,
    with_values: bool,
) -> None:
    """Show a line for each message, then the counts of all."""
    if found:
        now_ms = time.time_ns() // 1_000_000
        columns = ["due", ">in", "~key", "~id", ">size", ">position"]
        lines = table(out, *([] if topic else ["topic"]), *columns, *["~value"] * with_values)
        for each in found:
            cells = [
                time_text(millis_of(each.due)),
                due_text(millis_of(each.due), now_ms).removeprefix("in "),
                "" if each.key is None else bytes_text(each.key, chars_max=KEY_CHARS),
                bytes_text(each.message_id, chars_max=ID_CHARS),
                size_text(each.value_bytes),
                f"{each.partition}/{each.offset}",
            ]
            values = [value_text(each.value, VALUE_CHARS)] * with_values
            lines.add_row(*([] if topic else [each.topic]), *cells, *values)
        out.print(lines)
        out.print()
    elif any(horizon.count for horizon in horizons):
        out.print("Nothing of that kind; of others:")
    tell_horizons(out, horizons, topic=topic)


def tell_horizons(out: "Console", horizons: "list[Horizon]", *, topic: str | None) -> None:
    """Show how many messages are due when."""
    total = sum(horizon.count for horizon in horizons)
    where = "in all topics" if topic is None else f"in {topic}"
    out.print(f"{counted(total, 'message')} scheduled {where}{':' if total else '.'}")
    if total:
        out.print(bars(out, _labelled(horizons)))


def _labelled(horizons: "list[Horizon]") -> list[tuple[str, int]]:
    """Name each horizon by the time up to which it counts; one that is over only if not empty."""
    counts = []
    latest = ""
    for each in horizons:
        if each.within is None:
            counts.append((f"beyond {latest}" if latest else "later", each.count))
        elif each.within:
            latest = span_text(each.within_ms)
            counts.append((f"within {latest}", each.count))
        elif each.count:
            counts.append(("overdue", each.count))
    return counts
