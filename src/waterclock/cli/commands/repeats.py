"""`waterclock schedule repeat`, `repeats`, `pause`, `resume` and `unrepeat`: messages published
again and again.

A recurrence has a name; making one anew under its name replaces it. The occurrence that is next
waits among the scheduled messages of its topic.
"""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from waterclock.cli.arguments import headers_of, maybe_bytes, typed_bytes
from waterclock.cli.local_zone import here
from waterclock.cli.node_call import call
from waterclock.cli.options import (
    Address,
    AsJson,
    Cron,
    Expires,
    Header,
    Key,
    SomeTopic,
    Topic,
    Yes,
    Zone,
)
from waterclock.cli.output.terminal import (
    ask,
    console,
    due_text,
    print_json,
    say,
    span_text,
    table,
    tell_made,
    time_text,
)
from waterclock.model.errors import NotFound

if TYPE_CHECKING:
    from rich.console import Console

    from waterclock.model.views import Recurrence

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the recurrence.")]


def repeat(
    name: Name,
    topic: Topic,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="The message.")],
    at: Annotated[
        str | None,
        typer.Option(metavar="RULE", help="'every day at 9:00', 'every 90s', '0 9 * * MON'."),
    ] = None,
    cron: Cron = None,
    every: Annotated[
        str | None, typer.Option(metavar="TIME", help="At a fixed interval, as in 90s.")
    ] = None,
    zone: Zone = None,
    key: Key = None,
    header: Header = None,
    jitter: Annotated[
        str | None, typer.Option(metavar="TIME", help="Later by chance, by up to so much.")
    ] = None,
    start: Annotated[
        str | None, typer.Option(metavar="TIME", help="Not before.", show_default="now")
    ] = None,
    end: Annotated[
        str | None, typer.Option(metavar="TIME", help="Not after.", show_default="for ever")
    ] = None,
    expires: Expires = None,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Publish a message again and again, by a rule; replaces one of that name."""
    # What a rule in words says of a day is said of the days here, unless a zone is given.
    rule = at if at is None or zone is not None else here(at)
    made = call(
        address,
        lambda client: client.schedule.repeat(
            name,
            topic,
            typed_bytes(value),
            at=rule,
            cron=cron,
            every=every,
            zone=zone,
            key=maybe_bytes(key),
            headers=headers_of(header),
            jitter=jitter,
            start=None if start is None else here(start),
            end=None if end is None else here(end),
            expires_after=expires,
        ),
    )
    tell_recurrence(made, as_json=as_json)


def repeats(topic: SomeTopic = None, address: Address = None, as_json: AsJson = False) -> None:
    """Show what repeats, and when it comes next."""
    found = call(address, lambda client: client.schedule.recurrences(topic))
    if as_json:
        print_json({"recurrences": [plain(each) for each in found]})
    elif found:
        _tell(console(), found)
    else:
        say("Nothing repeats: see `waterclock schedule repeat --help`.")


def unrepeat(
    name: Name, yes: Yes = False, address: Address = None, as_json: AsJson = False
) -> None:
    """End a recurrence, with the occurrence that waits."""
    ask(f"End {name}, with the occurrence that waits?", is_agreed=yes)
    if not call(address, lambda client: client.schedule.stop_repeating(name)):
        raise NotFound("recurrence", name)
    if as_json:
        print_json({"name": name, "ended": True})
    else:
        say(f"Ended {name}.")


def pause(name: Name, address: Address = None, as_json: AsJson = False) -> None:
    """Keep a recurrence and let nothing of it come; the occurrence that waits is cancelled."""
    found = call(address, lambda client: client.schedule.pause_repeating(name))
    if as_json:
        print_json(plain(found))
    else:
        say(f"Paused {name}; `waterclock schedule resume {name}` lets it go on.")


def resume(name: Name, address: Address = None, as_json: AsJson = False) -> None:
    """Let a paused recurrence come again, from now on; what it missed is not made up for."""
    found = call(address, lambda client: client.schedule.resume_repeating(name))
    tell_recurrence(found, as_json=as_json)


def tell_recurrence(made: "Recurrence", *, as_json: bool) -> None:
    """Say what will repeat from now on."""
    tell_made(made.topic, made.made_partitions)
    if as_json:
        print_json(plain(made))
        return
    line = f"{made.name} repeats on {made.topic}: {_rule(made)}"
    if made.next_ms:
        line += f", next {_next(made)} ({time_text(made.next_ms)})"
    say(line)


def plain(found: "Recurrence") -> dict[str, object]:
    """Return a recurrence for machines."""
    return {
        "name": found.name,
        "topic": found.topic,
        "cron": found.cron,
        "every_ms": found.every_ms,
        "zone": found.zone,
        "next_ms": found.next_ms or None,
        "is_paused": found.is_paused,
    }


def _tell(out: "Console", found: "list[Recurrence]") -> None:
    lines = table(out, "name", "topic", "rule", "next", "")
    for each in found:
        never = "paused" if each.is_paused else "never again"
        following = time_text(each.next_ms) if each.next_ms else never
        lines.add_row(each.name, each.topic, _rule(each), following, _next(each))
    out.print(lines)


def _rule(found: "Recurrence") -> str:
    if found.cron is not None:
        return f"{found.cron} {found.zone}"
    assert found.every_ms is not None
    return f"every {span_text(found.every_ms)}"


def _next(found: "Recurrence") -> str:
    now_ms = time.time_ns() // 1_000_000
    return due_text(found.next_ms, now_ms) if found.next_ms else ""
