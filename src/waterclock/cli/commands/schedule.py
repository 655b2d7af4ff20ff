"""`waterclock schedule`: what is to come, as a table and as a histogram, and changing it.

The listing and the counts are here; `schedule_changes` cancels and moves, `repeats` repeats.
"""

import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from waterclock.cli.commands.repeats import repeat, repeats, unrepeat
from waterclock.cli.commands.schedule_changes import cancel, cancel_where, move
from waterclock.cli.commands.scheduled_filter import (
    DueFrom,
    DueUntil,
    HeaderIs,
    KeyBegins,
    KeyIs,
    ScheduledFilter,
    filter_of,
)
from waterclock.cli.connection import call
from waterclock.cli.options import Address, AsJson, Limit, SomeTopic, pass_on
from waterclock.cli.output.figures import bars
from waterclock.cli.output.messages import headers_json, millis_of, value_text
from waterclock.cli.output.terminal import (
    bytes_json,
    bytes_text,
    console,
    counted,
    due_text,
    print_json,
    size_text,
    span_text,
    table,
    time_text,
)

if TYPE_CHECKING:
    from waterclock.client.client import Client
    from waterclock.client.results import Horizon, ScheduledMessage

LIMIT = 20
PAGE_MAX = 1_000
"""What a node lists at a time."""
ID_CHARS = 36
KEY_CHARS = 24
VALUE_CHARS = 40

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
    horizons = call(address, lambda client: client.count_scheduled(topic))
    total = sum(horizon.count for horizon in horizons)
    if as_json:
        print_json({"horizons": horizons_json(horizons), "total": total})
    else:
        tell_horizons(console(), horizons, topic=topic)


app.command("cancel")(cancel)
app.command("move")(move)
app.command("cancel-where")(cancel_where)
app.command("repeat")(repeat)
app.command("repeats")(repeats)
app.command("unrepeat")(unrepeat)


async def _upcoming(
    client: "Client",
    topic: str | None,
    chosen: ScheduledFilter,
    limit: int,
    *,
    with_values: bool,
) -> "tuple[list[ScheduledMessage], list[Horizon]]":
    """Return the soonest messages, of one topic or of all, and the counts of everything."""
    names = [topic] if topic is not None else await _topics_with_some(client)
    found: list[ScheduledMessage] = []
    for name in names:
        wanted = len(found) + limit
        async for each in client.scheduled(
            name, **chosen, with_values=with_values, page_size=min(limit, PAGE_MAX)
        ):
            found.append(each)
            if len(found) == wanted:
                break
    found.sort(key=lambda each: (each.due, each.topic, each.partition, each.offset))
    return found[:limit], await client.count_scheduled(topic)


async def _topics_with_some(client: "Client") -> list[str]:
    topics = await client.topics.list()
    return [each.name for each in topics if any(part.scheduled for part in each.partitions)]


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
        "value": bytes_json(found.value),
        "value_bytes": found.value_bytes,
    }


def horizons_json(horizons: "list[Horizon]") -> list[dict[str, object]]:
    """Return the counts for machines: `within_ms` is 0 for overdue, null for later than all."""
    return [
        {
            "within_ms": None
            if each.within is None
            else round(each.within.total_seconds() * 1_000),
            "count": each.count,
        }
        for each in horizons
    ]


# For people


def tell(
    out: Console,
    found: "list[ScheduledMessage]",
    horizons: "list[Horizon]",
    *,
    topic: str | None,
    with_values: bool,
) -> None:
    """Show a line for each message, then the counts of all."""
    if found:
        now_ms = time.time_ns() // 1_000_000
        columns = ["due", ">in", "~key", "~id", ">size", ">place"]
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


def tell_horizons(out: Console, horizons: "list[Horizon]", *, topic: str | None) -> None:
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
            latest = span_text(round(each.within.total_seconds() * 1_000))
            counts.append((f"within {latest}", each.count))
        elif each.count:
            counts.append(("overdue", each.count))
    return counts
