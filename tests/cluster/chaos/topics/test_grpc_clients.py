"""What programs with the client see of a round is in its result."""

import asyncio
from typing import Any, cast

from rich.console import Console

import waterclock
from tests.cluster.chaos.topics.__main__ import round_text, show_table
from tests.cluster.chaos.topics.grpc_clients import GrpcClients
from tests.cluster.chaos.topics.oracle import verdict_on
from tests.cluster.chaos.topics.record import RoundRecord, RunClock
from tests.cluster.chaos.topics.rounds import RoundResult
from tests.cluster.chaos.topics.test_oracle import PLAN
from waterclock.model.errors import Unreachable


class Failing:
    """A client that never comes through."""

    def __init__(self) -> None:
        self.subscribed = asyncio.Event()

    async def publish(self, *_: Any, **__: Any) -> None:
        raise Unreachable("n1")

    def subscribe(self, *_: Any, **__: Any) -> None:
        self.subscribed.set()
        raise Unreachable("n1")


async def test_errors_that_the_client_raises_are_told_with_the_round():
    record, client = RoundRecord(PLAN), Failing()
    clients = GrpcClients(record, RunClock(), "t", cast(waterclock.Client, client))

    assert await clients.publish("m1", 0, None, "quorum") is None
    consuming = asyncio.ensure_future(clients.consume("g0", "c0"))
    await client.subscribed.wait()
    consuming.cancel()

    result = RoundResult(PLAN, verdict_on(record), 1.0, [])
    assert result.verdict.counts["client errors"] == 2
    assert "client errors 2" in round_text(result)
    console = Console(width=200, record=True, quiet=False)
    show_table(console, [result])
    assert "client errors" in console.export_text()
