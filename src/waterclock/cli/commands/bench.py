"""`waterclock bench`: how fast is a node from here? A quick load test of a running node.

It works on a topic of its own, which is deleted at the end, and measures as a client sees it: this
machine, the network and the node together. The project's comparisons with others are in
`benchmarks/`, not here.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from waterclock.cli.connection import call
from waterclock.cli.options import Address, AsJson
from waterclock.cli.output.figures import QUANTILES, ms_text, quantiles, rate_text
from waterclock.cli.output.terminal import console, counted, print_json, size_text, table
from waterclock.model.errors import WaterclockError

if TYPE_CHECKING:
    import pyarrow as pa

    from waterclock.client.client import Client

GROUP = "bench"
LATENCY_MESSAGES = 500
LATENCY_PER_S = 250
"""Singles at a gentle pace: how long one message takes when nothing else is in its way."""

app = typer.Typer(no_args_is_help=True, help="Measure a running node from here.")

Messages = Annotated[int, typer.Option(min=1, metavar="N", help="How many messages.")]
Size = Annotated[int, typer.Option(min=1, metavar="BYTES", help="Bytes of each value.")]
Batch = Annotated[int, typer.Option(min=1, metavar="N", help="Messages sent together.")]
InFlight = Annotated[int, typer.Option(min=1, max=256, metavar="N", help="Batches on their way.")]
Partitions = Annotated[int, typer.Option(min=1, metavar="N", help="Of the topic that is made.")]


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent."""

    messages: int
    size: int
    batch: int
    in_flight: int
    partitions: int

    def __str__(self) -> str:
        return (
            f"{counted(self.messages, 'message')} of {self.size} B in batches of {self.batch:,},"
            f" {self.in_flight} in flight, {counted(self.partitions, 'partition')}"
        )


@dataclass(frozen=True, slots=True)
class Measured:
    what: str
    messages: int
    seconds: float
    latency: str
    """Of what the milliseconds are."""
    latency_ms: list[float]


@app.command("publish")
def publish(
    messages: Messages = 500_000,
    size: Size = 128,
    batch: Batch = 1_000,
    in_flight: InFlight = 4,
    partitions: Partitions = 1,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Publish batches as fast as the node takes them; each is durable when it is answered."""
    load = Load(messages, size, batch, in_flight, partitions)
    _answer(load, call(address, lambda client: _publish(client, load)), as_json=as_json)


@app.command("consume")
def consume(
    messages: Messages = 500_000,
    size: Size = 128,
    batch: Batch = 1_000,
    in_flight: InFlight = 4,
    partitions: Partitions = 1,
    one_by_one: Annotated[
        bool, typer.Option("--each", help="Message by message, not in batches.")
    ] = False,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Fill a topic, consume it with acks, then see how long single messages take to arrive."""
    load = Load(messages, size, batch, in_flight, partitions)
    measured = call(address, lambda client: _consume(client, load, one_by_one=one_by_one))
    _answer(load, measured, as_json=as_json)


# The work


async def _publish(client: "Client", load: Load) -> Measured:
    async with _topic(client, load) as topic:
        with meter("publishing", load.messages) as advance:
            started = time.perf_counter()
            latency_ms = await _fill(client, topic, load, advance)
            seconds = time.perf_counter() - started
    return Measured("published", load.messages, seconds, "a batch acknowledged", latency_ms)


async def _consume(client: "Client", load: Load, *, one_by_one: bool) -> Measured:
    async with _topic(client, load) as topic:
        with meter("filling", load.messages) as advance:
            await _fill(client, topic, load, advance)
        with meter("consuming", load.messages) as advance:
            started = time.perf_counter()
            await _drain(client, topic, load.messages, advance, one_by_one=one_by_one)
            seconds = time.perf_counter() - started
        with meter("timing", LATENCY_MESSAGES) as advance:
            latency_ms = await _single_latency(client, topic, load.size, advance)
    latency = "published to received, one by one"
    return Measured("consumed", load.messages, seconds, latency, latency_ms)


@asynccontextmanager
async def _topic(client: "Client", load: Load) -> AsyncIterator[str]:
    """Make a topic, and delete it whatever happens."""
    name = f"bench-{os.urandom(6).hex()}"
    await client.topics.create(name, partitions=load.partitions)
    try:
        yield name
    finally:
        await client.topics.delete(name)


async def _fill(
    client: "Client", topic: str, load: Load, advance: Callable[[int], None]
) -> list[float]:
    """Publish all messages; return how long each batch took until it was durable."""
    rows = _rows(min(load.batch, load.messages), load.size)
    waiting = iter(range(0, load.messages, load.batch))
    latency_ms: list[float] = []
    problems: list[WaterclockError] = []

    async def send() -> None:
        # One that fails lets the others finish: a batch on its way must not come after the topic
        # is deleted, or it would make it anew.
        try:
            while not problems and (first := next(waiting, None)) is not None:
                count = min(load.batch, load.messages - first)
                started = time.perf_counter()
                await client.publish_arrow(topic, rows.slice(0, count))
                latency_ms.append(1_000 * (time.perf_counter() - started))
                advance(count)
        except WaterclockError as error:
            problems.append(error)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(load.in_flight):
            tasks.create_task(send())
    if problems:
        raise problems[0]
    return latency_ms


async def _drain(
    client: "Client",
    topic: str,
    messages: int,
    advance: Callable[[int], None],
    *,
    one_by_one: bool,
) -> None:
    """Consume and ack so many messages."""
    async with client.subscribe(topic, group=GROUP, prefetch=100_000) as subscription:
        count = 0
        if one_by_one:
            async for message in subscription:
                message.ack()
                count += 1
                if count % 1_000 == 0:
                    advance(1_000)
                if count >= messages:
                    return
        async for batch in subscription.batches():
            batch.ack()
            advance(len(batch))
            count += len(batch)
            if count >= messages:
                return


async def _single_latency(
    client: "Client", topic: str, size: int, advance: Callable[[int], None]
) -> list[float]:
    """Publish singles at a gentle pace, and return how long each took to arrive."""
    sent_at: dict[bytes, float] = {}
    latency_ms: list[float] = []
    value = os.urandom(size)

    async def send() -> None:
        beat = time.perf_counter()
        for number in range(LATENCY_MESSAGES):
            beat += 1 / LATENCY_PER_S
            await asyncio.sleep(max(beat - time.perf_counter(), 0))
            message_id = b"%s-%d" % (topic.encode(), number)
            sent_at[message_id] = time.perf_counter()
            await client.publish(topic, value, message_id=message_id)

    async with (
        client.subscribe(topic, group=GROUP) as subscription,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(send())
        async for message in subscription:
            latency_ms.append(1_000 * (time.perf_counter() - sent_at[message.id]))
            message.ack()
            advance(1)
            if len(latency_ms) == LATENCY_MESSAGES:
                break
    return latency_ms


def _rows(count: int, size: int) -> "pa.RecordBatch":
    """Return messages without ids, which the client makes anew each time they are sent."""
    import pyarrow as pa

    from waterclock.log.schema import binaries

    data = os.urandom(count * size)
    values = [data[at : at + size] for at in range(0, count * size, size)]
    return pa.RecordBatch.from_arrays([binaries(values)], names=["value"])


# Telling


class _Rate(ProgressColumn):
    """The rate of late."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else rate_text(speed, 1), style="bold")


@contextmanager
def meter(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show on stderr, if it is a terminal, how many messages are done, and how fast."""
    err = Console(stderr=True)
    columns = (TextColumn("{task.description:>10}"), BarColumn(), _Rate())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bars:
        task = bars.add_task(what, total=total)
        yield lambda count: bars.update(task, advance=count)


def _answer(load: Load, measured: Measured, *, as_json: bool) -> None:
    if as_json:
        print_json(plain(load, measured))
    else:
        tell(console(), load, measured)


def plain(load: Load, measured: Measured) -> dict[str, object]:
    """Return a measurement for machines."""
    spread = quantiles(measured.latency_ms)
    return {
        "what": measured.what,
        "messages": measured.messages,
        "size": load.size,
        "batch": load.batch,
        "in_flight": load.in_flight,
        "partitions": load.partitions,
        "seconds": round(measured.seconds, 4),
        "messages_per_s": round(measured.messages / measured.seconds, 1),
        "latency": measured.latency,
        "latency_ms": {name: round(value, 3) for name, value in spread.items()},
    }


def tell(out: Console, load: Load, measured: Measured) -> None:
    """Say how fast it was, and how the latencies are spread."""
    out.print(str(load), style="dim")
    speed = size_text(round(measured.messages * load.size / measured.seconds))
    line = Text(f"{rate_text(measured.messages, measured.seconds)} {measured.what}", "bold green")
    line.append(f", {speed}/s of values, in {measured.seconds:.2f} s", style="default not bold")
    out.print(line)
    out.print()
    lines = table(out, measured.latency, *(f">{name}" for name, _ in QUANTILES))
    spread = quantiles(measured.latency_ms)
    lines.add_row(f"{len(measured.latency_ms):,} times", *map(ms_text, spread.values()))
    out.print(lines)
