"""Which scheduled messages are meant: options that listing and bulk cancelling share."""

from typing import Annotated, TypedDict

import typer

from waterclock.cli.arguments import headers_of, maybe_bytes
from waterclock.cli.local_zone import here

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
