"""`waterclock topics`: what topics there are, and making, changing and deleting them."""

from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from waterclock.cli.node_call import call
from waterclock.cli.options import Address, AsJson, Topic, Yes, pass_on
from waterclock.cli.output.messages import view_json
from waterclock.cli.output.terminal import (
    ask,
    console,
    counted,
    one_line,
    print_json,
    say,
    size_text,
    span_text,
    styled,
    table,
)
from waterclock.model.errors import BadInput

if TYPE_CHECKING:
    from rich.console import Console

    from waterclock.client.unary.client import UnaryClient
    from waterclock.model.views import TopicInfo

app = typer.Typer(invoke_without_command=True)

Partitions = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="How many logs share the messages."),
]
Retention = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Keep messages so long, as in 7d; 0s: for ever."),
]
RetentionBytes = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Keep so much of each partition, as in 10GiB; 0: all."),
]
WaitForGroups = Annotated[
    bool | None,
    typer.Option(
        "--wait-for-groups/--no-wait-for-groups",
        help="Keep what some group has yet to read for longer than that.",
    ),
]
Compacted = Annotated[
    bool | None,
    typer.Option("--compacted/--not-compacted", help="Keep the latest message of each key."),
]
Retries = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Failures that are followed by another attempt."),
]
AckTimeout = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="How long a member may keep a message, as in 30s."),
]
ReplicationFactor = Annotated[
    int | None,
    typer.Option(
        "--replication-factor",
        "--replicas",
        min=1,
        max=5,
        metavar="N",
        help="Copies of each partition, in a cluster.",
    ),
]


class Settings(TypedDict):
    """What can be said about a topic; None leaves it as it is."""

    partitions: int | None
    retention: str | None
    retention_bytes: int | None
    retention_wait_for_groups: bool | None
    is_compacted: bool | None
    retries_max: int | None
    ack_timeout: str | None
    replication_factor: int | None


@app.callback()
def topics(context: typer.Context, address: Address = None, as_json: AsJson = False) -> None:
    """List, make, change and delete topics. Alone, it lists them."""
    if context.invoked_subcommand is None:
        list_topics(address, as_json)
    else:
        pass_on(context, address=address, as_json=as_json)


@app.command("list")
def list_topics(address: Address = None, as_json: AsJson = False) -> None:
    """Show all topics: partitions, offsets, size and what is scheduled."""
    found = call(address, lambda client: client.topics.list())
    if as_json:
        print_json({"topics": [plain(topic) for topic in found]})
    elif found:
        tell_all(console(), found)
    else:
        say("No topics yet: publishing to one makes it.")


@app.command("show")
def show(topic: Topic, address: Address = None, as_json: AsJson = False) -> None:
    """Show the settings and the partitions of a topic."""
    _answer(call(address, lambda client: client.topics.get(topic)), as_json=as_json)


@app.command("create")
def create(
    topic: Topic,
    partitions: Partitions = None,
    retention: Retention = None,
    retention_bytes: RetentionBytes = None,
    wait_for_groups: WaitForGroups = None,
    compacted: Compacted = None,
    retries: Retries = None,
    ack_timeout: AckTimeout = None,
    replication_factor: ReplicationFactor = None,
    if_absent: Annotated[
        bool, typer.Option("--if-absent", help="It is no error if the topic exists.")
    ] = False,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Make a topic; what is not given is as the node's configuration says."""
    settings = _settings(
        partitions,
        retention,
        retention_bytes,
        wait_for_groups,
        compacted,
        retries,
        ack_timeout,
        replication_factor,
    )

    async def work(client: "UnaryClient") -> "TopicInfo":
        return await client.topics.create(topic, if_absent=if_absent, **settings)

    made = call(address, work)
    _answer(made, as_json=as_json)


@app.command("update")
def update(
    topic: Topic,
    partitions: Partitions = None,
    retention: Retention = None,
    retention_bytes: RetentionBytes = None,
    wait_for_groups: WaitForGroups = None,
    compacted: Compacted = None,
    retries: Retries = None,
    ack_timeout: AckTimeout = None,
    replication_factor: ReplicationFactor = None,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Change settings of a topic; those not named stay. Partitions can only be added."""
    settings = _settings(
        partitions,
        retention,
        retention_bytes,
        wait_for_groups,
        compacted,
        retries,
        ack_timeout,
        replication_factor,
    )
    if all(value is None for value in settings.values()):
        raise BadInput("nothing to change: name a setting, as in --partitions 8")
    changed = call(address, lambda client: client.topics.update(topic, **settings))
    _answer(changed, as_json=as_json)


@app.command("delete")
def delete(
    topic: Topic, yes: Yes = False, address: Address = None, as_json: AsJson = False
) -> None:
    """Delete a topic with all its messages, scheduled ones included."""

    async def work(client: "UnaryClient") -> None:
        found = await client.topics.get(topic)
        what = f"its {size_text(_size(found))} of messages and {_scheduled(found):,} scheduled"
        ask(f"Delete {found.name} with {what}, for good?", is_agreed=yes)
        await client.topics.delete(topic)

    call(address, work)
    if as_json:
        print_json({"topic": topic, "deleted": True})
    else:
        say(f"Deleted {topic}.")


def _settings(
    partitions: int | None,
    retention: str | None,
    retention_bytes: str | None,
    wait_for_groups: bool | None,
    compacted: bool | None,
    retries: int | None,
    ack_timeout: str | None,
    replication_factor: int | None,
) -> Settings:
    return Settings(
        partitions=partitions,
        retention=retention,
        retention_bytes=None if retention_bytes is None else _bytes(retention_bytes),
        retention_wait_for_groups=wait_for_groups,
        is_compacted=compacted,
        retries_max=retries,
        ack_timeout=ack_timeout,
        replication_factor=replication_factor,
    )


def _bytes(text: str) -> int:
    from waterclock.model.units import SIZE

    try:
        return SIZE.parse(text)
    except ValueError as error:
        raise BadInput(f"--retention-bytes {text!r} is {error}: write it as in 10GiB") from error


# For machines


def plain(topic: "TopicInfo") -> dict[str, object]:
    """Return a topic for machines, its settings among the rest; what is kept for ever is null."""
    found, settings = view_json(topic), view_json(topic.settings)
    return {
        "topic": found["topic"],
        **settings,
        "retention_ms": settings["retention_ms"] or None,
        "retention_bytes": settings["retention_bytes"] or None,
        "partitions": found["partitions"],
    }


# For people


def _answer(topic: "TopicInfo", *, as_json: bool) -> None:
    if as_json:
        print_json(plain(topic))
    else:
        tell(console(), topic)


def tell_all(out: "Console", topics: "list[TopicInfo]") -> None:
    """Show a line for each topic."""
    lines = table(out, "topic", ">partitions", ">offsets", ">size", ">scheduled", "~problem")
    for topic in topics:
        problems = [each for each in topic.partitions if each.problem]
        lines.add_row(
            topic.name,
            f"{len(topic.partitions):,}",
            f"{_offsets(topic):,}",
            size_text(_size(topic)),
            f"{_scheduled(topic):,}",
            styled(f"{counted(len(problems), 'partition')}", style="bold red") if problems else "",
        )
    out.print(lines)


def tell(out: "Console", topic: "TopicInfo") -> None:
    """Show one topic: what was said about it, then its partitions."""
    out.print(f"{topic.name}: {', '.join(_said(topic))}", style="bold", soft_wrap=True)
    out.print()
    lines = table(out, ">partition", ">start", ">end", ">size", ">scheduled", "~problem")
    for each in topic.partitions:
        lines.add_row(
            str(each.partition),
            f"{each.start_offset:,}",
            f"{each.end_offset:,}",
            size_text(each.size_bytes),
            f"{each.scheduled:,}",
            styled(one_line(each.problem), style="bold red"),
        )
    out.print(lines)


def _said(topic: "TopicInfo") -> list[str]:
    said = [counted(len(topic.partitions), "partition")]
    kept = []
    if retention := topic.settings.retention_ms:
        kept.append(f"for {span_text(retention)}")
    if topic.retention_bytes is not None:
        kept.append(f"up to {size_text(topic.retention_bytes)} a partition")
    said.append(f"kept {' and '.join(kept)}" if kept else "kept as the node is configured")
    if topic.retention_wait_for_groups is not None:
        waits = "waits" if topic.retention_wait_for_groups else "does not wait"
        said.append(f"retention {waits} for groups")
    if topic.is_compacted:
        said.append("compacted")
    if topic.retries_max is not None:
        said.append(f"at most {topic.retries_max} retries")
    if (timeout := topic.settings.ack_timeout_ms) is not None:
        said.append(f"ack within {span_text(timeout)}")
    if topic.replication_factor is not None:
        said.append(counted(topic.replication_factor, "replica"))
    return said


def _offsets(topic: "TopicInfo") -> int:
    return sum(each.end_offset - each.start_offset for each in topic.partitions)


def _size(topic: "TopicInfo") -> int:
    return sum(each.size_bytes for each in topic.partitions)


def _scheduled(topic: "TopicInfo") -> int:
    return sum(each.scheduled for each in topic.partitions)
