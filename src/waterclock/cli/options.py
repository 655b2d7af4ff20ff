"""Options that several commands share, each written once so that it means the same everywhere.

Names of topics are completed in a shell by asking the node. Somebody has pressed a key and waits: a
node that does not answer in half a second offers no names, and an error is not printed, as it would
be printed into the line that is being typed.
"""

import socket
from contextlib import suppress
from typing import Annotated

import typer

CONNECT_S = 0.2
ANSWER_MS = 500


def topic_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the topics whose names begin so, none if the node cannot be asked."""
    from waterclock.client.target import target_of
    from waterclock.model.errors import BadInput

    try:
        target = target_of(context.params.get("address"))
    except BadInput:
        return []
    for address in target.addresses:
        host, _, port = address.rpartition(":")
        with suppress(OSError):
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
            found = _topics(address)
            return [name for name in found if name.startswith(incomplete)]
    return []


def _topics(address: str) -> list[str]:
    from waterclock.client.settings import ClientSettings
    from waterclock.client.unary.client import UnaryClient
    from waterclock.client.unary.connection import finished
    from waterclock.model.errors import WaterclockError

    settings = ClientSettings(connect_timeout_ms=ANSWER_MS, call_timeout_ms=ANSWER_MS)
    try:
        with UnaryClient(address, settings) as client:
            return [topic.name for topic in finished(client.topics.list())]
    except WaterclockError:
        return []


Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        "-a",
        metavar="HOST:PORT[,...]",
        help="Where the node listens for gRPC; of a cluster, several.",
        show_default="of the credential, WATERCLOCK_ADDRESS, or localhost:9000",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]

Topic = Annotated[
    str,
    typer.Argument(metavar="TOPIC", help="The name of a topic.", autocompletion=topic_names),
]
SomeTopic = Annotated[
    str | None,
    typer.Argument(
        metavar="TOPIC",
        help="The name of a topic.",
        show_default="all topics",
        autocompletion=topic_names,
    ),
]
Stream = Annotated[str, typer.Argument(metavar="STREAM", help="The name of a stream.")]
Group = Annotated[str, typer.Argument(metavar="GROUP", help="The name of a group.")]

Key = Annotated[str | None, typer.Option(metavar="KEY", help="The key of the message.")]
Header = Annotated[
    list[str] | None,
    typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header; may be given again."),
]
Expires = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Do not deliver it after this: +1h counts from when due."),
]
Acks = Annotated[
    str,
    typer.Option(
        metavar="quorum|leader|all",
        help="Of a cluster: wait until a majority of replicas has flushed it, its leader, all.",
    ),
]
Cron = Annotated[
    str | None,
    typer.Option(metavar="RULE", help="Again and again, as in '0 9 * * *'; six fields: seconds."),
]
Zone = Annotated[
    str | None,
    typer.Option(metavar="ZONE", help="Of --cron, as in Europe/Berlin.", show_default="UTC"),
]
Wait = Annotated[
    str | None,
    typer.Option(
        "--timeout", metavar="TIME", help="How long to wait, as in 5s.", show_default="30s"
    ),
]
Limit = Annotated[int, typer.Option(min=1, max=10_000, metavar="N", help="How many, at most.")]
Raw = Annotated[bool, typer.Option("--raw", help="Print the values alone, as they are.")]


def pass_on(context: typer.Context, *, address: str | None, as_json: bool) -> None:
    """Let a subcommand have what was typed before its name, unless it has its own."""
    assert context.invoked_subcommand is not None
    context.default_map = {
        context.invoked_subcommand: {"address": address, "as_json": as_json or None}
    }
