"""`waterclock topics`: what topics there are, and making, changing and deleting them."""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from waterclock.cli.calling import call
from waterclock.cli.consent import ask
from waterclock.cli.options import Address, AsJson, Topic, Yes
from waterclock.cli.terminal import (
    console,
    counted,
    one_line,
    print_json,
    size_text,
    span_text,
    table,
)

if TYPE_CHECKING:
    from waterclock.client.results import PartitionInfo, TopicInfo

app = typer.Typer(help="List, make, change and delete topics.", invoke_without_command=True)

Partitions = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", help="How many logs share the messages.", show_default="the node's"
    ),
]
Retention = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Keep messages so long, as in 7d; 0 for ever."),
]
RetentionBytes = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Keep so much of each partition, as in 10GiB; 0 all."),
]
Compacted = Annotated[
    bool | None,
    typer.Option("--compacted/--not-compacted", help="Keep the latest message of each key."),
]
Retries = Annotated[
    int | None,
    typer.Option(min=0, metavar="N", help="Failures that are followed by another attempt."),
]
AckTimeout = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="How long a member may keep a message, as in 30s."),
]


@app.callback()
def topics(context: typer.Context, address: Address = None, as_json: AsJson = False) -> None:
    """List, make, change and delete topics. Alone: list."""
    if context.invoked_subcommand is None:
        list_topics(address, as_json)


@app.command("list")
def list_topics(address: Address = None, as_json: AsJson = False) -> None:
    """Show all topics: partitions, messages, size and what is scheduled."""
    found = call(address, lambda client: client.topics())
    if as_json:
        print_json({"topics": [plain(topic) for topic in found]})
    elif found:
        out = console()
        out.print(listing(out, found))
    else:
        console().print("No topics yet: publishing to one makes it.")


@app.command("show")
def show(topic: Topic, address: Address = None, as_json: AsJson = False) -> None:
    """Show the settings and the partitions of a topic."""
    found = call(address, lambda client: client.topic(topic))
    if as_json:
        print_json(plain(found))
    else:
        tell(console(), found)


@app.command("create")
def create(
    topic: Topic,
    partitions: Partitions = None,
    retention: Retention = None,
    retention_bytes: RetentionBytes = None,
    compacted: Compacted = None,
    retries: Retries = None,
    ack_timeout: AckTimeout = None,
    if_absent: Annotated[
        bool, typer.Option("--if-absent", help="It is no error if the topic exists.")
    ] = False,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Make a topic."""
    settings = _settings(partitions, retention, retention_bytes, compacted, retries, ack_timeout)
    found = call(address, lambda c: c.create_topic(topic, if_absent=if_absent, **settings))
    _answer(found, as_json=as_json)


@app.command("update")
def update(
    topic: Topic,
    partitions: Partitions = None,
    retention: Retention = None,
    retention_bytes: RetentionBytes = None,
    compacted: Compacted = None,
    retries: Retries = None,
    ack_timeout: AckTimeout = None,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Change settings of a topic; those not named stay. Partitions can only be added."""
    settings = _settings(partitions, retention, retention_bytes, compacted, retries, ack_timeout)
    if not settings:
        raise BadInput("nothing to change: name a setting, as in --partitions 8")
    found = call(address, lambda client: client.update_topic(topic, **settings))
    _answer(found, as_json=as_json)


@app.command("delete")
def delete(
    topic: Topic, yes: Yes = False, address: Address = None, as_json: AsJson = False
) -> None:
    """Delete a topic with all its messages, scheduled ones included."""
    if not yes:
        found = call(address, lambda client: client.topic(topic))
        ask(
            f"Delete {found.name} with {counted(messages(found), 'message')} and"
            f" {scheduled(found):,} scheduled, for good?",
            is_agreed=False,
        )
    call(address, lambda client: client.delete_topic(topic))
    if as_json:
        print_json({"topic": topic, "deleted": True})
    else:
        console().print(f"Deleted {topic}.")


# What was typed


def _settings(
    partitions: int | None,
    retention: str | None,
    retention_bytes: str | None,
    compacted: bool | None,
    retries: int | None,
    ack_timeout: str | None,
) -> dict[str, Any]:
    """Return the settings that were named."""
    given = {
        "partitions": partitions,
        "retention": None if retention is None else _span("--retention", retention),
        "retention_bytes": None
        if retention_bytes is None
        else _parsed("--retention-bytes", retention_bytes, SIZE),
        "is_compacted": compacted,
        "retries_max": retries,
        "ack_timeout": None if ack_timeout is None else _span("--ack-timeout", ack_timeout),
    }
    return {name: value for name, value in given.items() if value is not None}


def _span(option: str, text: str) -> timedelta:
    return timedelta(milliseconds=_parsed(option, text, DURATION))


def _parsed(option: str, text: str, units: Units) -> int:
    try:
        return units.parse(text)
    except ValueError as error:
        raise BadInput(f"{option} {text!r} is {error}: write it as in {_EXAMPLES[units.noun]}") from error


_EXAMPLES = {SIZE.noun: "512MiB", DURATION.noun: "7d or 30s"}
