"""`waterclock dlq`: messages that failed too often or were rejected, by the topic they came from.

`redrive` publishes them again where they came from; `purge` lets them go.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from waterclock.cli.arguments import headers_of, maybe_bytes, position_of
from waterclock.cli.node_call import call
from waterclock.cli.options import Address, AsJson, Header, Limit, SomeTopic, Topic, Yes, pass_on
from waterclock.cli.output.messages import headers_json, value_text
from waterclock.cli.output.terminal import (
    ask,
    bytes_json,
    bytes_text,
    console,
    counted,
    grid,
    one_line,
    print_json,
    say,
    styled,
    table,
    time_text,
)
from waterclock.model.errors import BadInput, NotFound
from waterclock.model.names import DEAD_LETTERS

if TYPE_CHECKING:
    from rich.console import Console

    from waterclock.client.unary.client import UnaryClient
    from waterclock.model.views import DeadLetter

LIMIT = 20
PAGE_MAX = 1_000
"""What a node lists at a time."""
KEY_CHARS = 24
VALUE_CHARS = 40
WHOLE_CHARS = 100_000

app = typer.Typer(invoke_without_command=True)

Positions = Annotated[
    list[str] | None,
    typer.Argument(metavar="POSITION...", help="Which, as `list` shows them: 0/12."),
]
All = Annotated[bool, typer.Option("--all", help="All there are now.")]


@app.callback()
def dlq(context: typer.Context, address: Address = None, as_json: AsJson = False) -> None:
    """Look at dead letters, publish them again or let them go. Alone, it counts them."""
    if context.invoked_subcommand is None:
        list_dead_letters(address=address, as_json=as_json)
    else:
        pass_on(context, address=address, as_json=as_json)


@app.command("list")
def list_dead_letters(
    topic: SomeTopic = None, limit: Limit = LIMIT, address: Address = None, as_json: AsJson = False
) -> None:
    """Show the dead letters of a topic; without one, how many each topic has."""
    if topic is None:
        _tell_counts(call(address, _counts), as_json=as_json)
        return
    found, total = call(address, lambda client: _first(client, topic, limit))
    if as_json:
        print_json(
            {"topic": topic, "total": total, "dead_letters": [plain(each) for each in found]}
        )
    elif found:
        tell_all(console(), found, total)
    else:
        say(f"{topic} has no dead letters.")


@app.command("show")
def show(
    topic: Topic,
    position: Annotated[str, typer.Argument(metavar="POSITION", help="As `list` shows it: 0/12.")],
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Show a dead letter whole: value, headers, and what became of it."""
    (letter,) = call(address, lambda client: _chosen(client, topic, [position]))
    if as_json:
        print_json(plain(letter))
    else:
        tell(console(), letter)


@app.command("redrive")
def redrive(
    topic: Topic,
    positions: Positions = None,
    everything: All = False,
    value: Annotated[
        str | None, typer.Option(help="Publish this in place of the value of the one dead letter.")
    ] = None,
    header: Header = None,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Publish dead letters again where they came from, and take them off the list. One may be given
    another value, or other headers in place of all that it has."""
    _check_which(positions, everything)
    body, headers = maybe_bytes(value), headers_of(header)

    async def work(client: "UnaryClient") -> int:
        dead_letters = await _chosen(client, topic, positions) if positions else None
        return await client.dead_letters.redrive(topic, dead_letters, value=body, headers=headers)

    count = call(address, work)
    if as_json:
        print_json({"topic": topic, "redriven": count})
    else:
        say(f"{counted(count, 'dead letter')} published again to {topic}.")


@app.command("purge")
def purge(
    topic: Topic,
    positions: Positions = None,
    everything: All = False,
    yes: Yes = False,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Let dead letters go, for good."""
    _check_which(positions, everything)

    async def work(client: "UnaryClient") -> int:
        dead_letters = await _chosen(client, topic, positions) if positions else None
        count = (
            await client.dead_letters.count(topic) if dead_letters is None else len(dead_letters)
        )
        ask(f"Purge {counted(count, 'dead letter')} of {topic}, for good?", is_agreed=yes)
        return await client.dead_letters.purge(topic, dead_letters)

    gone = call(address, work)
    if as_json:
        print_json({"topic": topic, "purged": gone})
    else:
        say(f"{counted(gone, 'dead letter')} of {topic} purged.")


def _check_which(positions: list[str] | None, everything: bool) -> None:
    if bool(positions) is everything:
        raise BadInput("say which: positions as `dlq list` shows them, or --all")


async def _counts(client: "UnaryClient") -> dict[str, int]:
    names = [each.name for each in await client.topics.list()]
    origins = [name.removesuffix(DEAD_LETTERS) for name in names if name.endswith(DEAD_LETTERS)]
    counts = {origin: await client.dead_letters.count(origin) for origin in origins}
    return {origin: count for origin, count in counts.items() if count}


async def _first(client: "UnaryClient", topic: str, limit: int) -> "tuple[list[DeadLetter], int]":
    """Return the first dead letters, and how many there are."""
    found: list[DeadLetter] = []
    async for letter in client.dead_letters.list(topic, page_size=min(limit, PAGE_MAX)):
        found.append(letter)
        if len(found) == limit:
            break
    return found, await client.dead_letters.count(topic)


async def _chosen(client: "UnaryClient", topic: str, positions: list[str]) -> "list[DeadLetter]":
    """Return the dead letters at these positions; raise NotFound if one is not there."""
    wanted = {position_of(text): text for text in positions}
    found: dict[tuple[int, int], DeadLetter] = {}
    async for letter in client.dead_letters.list(topic):
        if (position := (letter.partition, letter.offset)) in wanted:
            found[position] = letter
            if len(found) == len(wanted):
                break
    for position, text in wanted.items():
        if position not in found:
            raise NotFound("dead letter", f"{text} of {topic}")
    return [*found.values()]


# For machines


def plain(letter: "DeadLetter") -> dict[str, object]:
    """Return a dead letter for machines."""
    return {
        "partition": letter.partition,
        "offset": letter.offset,
        "id": bytes_json(letter.message_id),
        "key": bytes_json(letter.key),
        "value": bytes_json(letter.value),
        "headers": headers_json(letter.headers),
        "group": letter.group,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "origin_partition": letter.origin_partition,
        "origin_offset": letter.origin_offset,
        "dead_lettered_ms": letter.dead_lettered_ms,
    }


# For people


def _tell_counts(counts: dict[str, int], *, as_json: bool) -> None:
    if as_json:
        print_json({"topics": [{"topic": name, "total": n} for name, n in counts.items()]})
    elif counts:
        out = console()
        lines = table(out, "topic", ">dead letters")
        for name, count in counts.items():
            lines.add_row(name, f"{count:,}")
        out.print(lines)
    else:
        say("No dead letters.")


def tell_all(out: "Console", dead_letters: "list[DeadLetter]", total: int) -> None:
    """Show a line for each dead letter."""
    lines = table(out, ">position", "since", "group", "reason", ">attempts", "~key", "~value")
    for letter in dead_letters:
        lines.add_row(
            f"{letter.partition}/{letter.offset}",
            time_text(letter.dead_lettered_ms),
            letter.group,
            one_line(letter.reason),
            str(letter.attempts),
            "" if letter.key is None else bytes_text(letter.key, chars_max=KEY_CHARS),
            value_text(letter.value, VALUE_CHARS),
        )
    out.print(lines)
    if total > len(dead_letters):
        out.print(
            styled(f"… and {total - len(dead_letters):,} more: --limit shows more", style="dim")
        )


def tell(out: "Console", letter: "DeadLetter") -> None:
    """Show one dead letter, everything there is."""
    facts = grid()
    origin = f"{letter.origin_partition}/{letter.origin_offset}"
    rows = [
        ("position", f"{letter.partition}/{letter.offset}, from {origin}"),
        ("id", bytes_text(letter.message_id, chars_max=WHOLE_CHARS)),
        ("since", f"{time_text(letter.dead_lettered_ms)} in group {letter.group}"),
        ("reason", f"{one_line(letter.reason)}, after {counted(letter.attempts, 'attempt')}"),
    ]
    if letter.key is not None:
        rows.append(("key", bytes_text(letter.key, chars_max=WHOLE_CHARS)))
    rows += [
        (f"header {one_line(name)}", bytes_text(value, chars_max=WHOLE_CHARS))
        for name, value in letter.headers.items()
    ]
    rows.append(("value", value_text(letter.value, WHOLE_CHARS)))
    for what, text in rows:
        facts.add_row(styled(what, style="dim"), styled(text, overflow="fold"))
    out.print(facts)
