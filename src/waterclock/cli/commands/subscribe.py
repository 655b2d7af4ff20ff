"""`waterclock subscribe`: see messages come, as a member of a group.

With `--group` it takes part in the work of that group: what it acks, nobody else gets. Without, it
watches through a group of its own, which begins at the end and is deleted when it ends. A message
is acked once it is printed. A pipe whose reader is gone ends it, as Ctrl-C does.
"""

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from waterclock.cli.connection import call_until_ended
from waterclock.cli.local_zone import here
from waterclock.cli.options import Address, AsJson, Raw, Topic
from waterclock.cli.output.messages import MessagePrinter, form_of
from waterclock.cli.output.terminal import counted, note, tell_made
from waterclock.model.errors import BadInput, WaterclockError

if TYPE_CHECKING:
    from waterclock.client.client import Client
    from waterclock.client.consumer.delivery import ReceivedMessage

PREFETCH = 1_000


def subscribe(
    topic: Topic,
    group: Annotated[
        str | None,
        typer.Option(
            "--group", "-g", metavar="NAME", help="Work in this group.", show_default="watch alone"
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="earliest|latest|TIME",
            help="Where a new group begins; a time is like -1h or 2026-12-24T18:00Z.",
            show_default="latest; earliest with --group",
        ),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option("--count", "-n", min=1, help="End after so many.", show_default="never"),
    ] = None,
    no_ack: Annotated[
        bool, typer.Option("--no-ack", help="Only look: all are given back at the end.")
    ] = False,
    nack: Annotated[
        bool, typer.Option("--nack", help="Fail each: it is tried again, then a dead letter.")
    ] = False,
    reject: Annotated[
        bool, typer.Option("--reject", help="Refuse each: it becomes a dead letter at once.")
    ] = False,
    is_raw: Raw = False,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Print messages as they come, and ack them. Ctrl-C ends it."""
    if no_ack + nack + reject > 1:
        raise BadInput("choose one of --no-ack, --nack and --reject")
    if (nack or reject) and group is None:
        raise BadInput("--nack and --reject need the --group for which a message is to fail")
    watch = _Watch(
        topic,
        group,
        here(start) if start else "earliest" if group else "latest",
        count,
        "none" if no_ack else "nack" if nack else "reject" if reject else "ack",
        MessagePrinter(form_of(as_json=as_json, is_raw=is_raw)),
    )
    call_until_ended(address, watch.run)
    note(f"{counted(watch.shown, 'message')}.")


class _Watch:
    """One subscription, printed."""

    def __init__(
        self,
        topic: str,
        group: str | None,
        start: str,
        count: int | None,
        answer: str,
        printer: MessagePrinter,
    ) -> None:
        self._topic = topic
        self._group = group
        self._start = start
        self._count = count
        self._answer = answer
        self._printer = printer
        self.shown = 0

    async def run(self, client: "Client") -> None:
        """Print messages until there were enough, or until a signal."""
        if self._group is not None:
            await self._follow(client, self._group)
            return
        own = f"watch-{os.urandom(6).hex()}"
        try:
            await self._follow(client, own)
        finally:
            # The node may be what went away.
            with suppress(WaterclockError):
                await client.groups.delete(self._topic, own)

    async def _follow(self, client: "Client", group: str) -> None:
        # What is only looked at is held: its lease is prolonged, so that looking fails nothing.
        async with client.subscribe(
            self._topic,
            group=group,
            start=self._start,
            prefetch=min(self._count or PREFETCH, PREFETCH),
            keep_alive=self._answer == "none",
        ) as messages:
            tell_made(self._topic, messages.made_partitions)
            note(f"Subscribed to {self._topic}{self._where()}. Ctrl-C ends it.")
            async for message in messages:
                self._printer.show(message, attempt=message.attempt)
                self._give(message)
                self.shown += 1
                if self.shown == self._count:
                    return

    def _where(self) -> str:
        return f", from {self._start}" if self._group is None else f" in group {self._group}"

    def _give(self, message: "ReceivedMessage") -> None:
        match self._answer:
            case "ack":
                message.ack()
            case "nack":
                message.nack()
            case "reject":
                message.reject()
