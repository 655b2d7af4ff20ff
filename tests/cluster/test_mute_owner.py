"""A node that is linked and says nothing: who asked is answered all the same."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from waterclock.server.cluster import forwarder as forwarding
from waterclock.server.cluster.forwarder import Forwarder
from waterclock.server.cluster.ownership import RingOwnership
from waterclock.server.cluster.reply import Reply
from waterclock.server.http.messages import Request, Response


class Mute:
    """Takes every request."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []

    def ask(self, node_id: str, method: int, body: bytes, caller: Any) -> Any:
        return SimpleNamespace(cancel=self.cancelled.append)


class Client:
    is_waiting = True

    def __init__(self) -> None:
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def take(self, answer: Any) -> None:
        self.answer.set_result(answer)


async def answered(request: Request, timeout_ms: int) -> tuple[Response, Mute]:
    owners, mute = RingOwnership("front"), Mute()
    owners.update({"owner": "http://owner:8080"})
    async with asyncio.TaskGroup() as tasks:
        forwarder = Forwarder(mute, owners, lambda _: Response(500), tasks)
        sweeping = tasks.create_task(forwarder.run())
        client = Client()
        Reply(client, tasks).run(lambda _: forwarder.forward(request, "s", timeout_ms), request)
        try:
            return await client.answer, mute
        finally:
            sweeping.cancel()


async def test_a_poll_is_told_when_its_time_is_over_that_a_message_may_be_lost():
    poll = Request(b"GET", b"/streams/receive", b"streamId=s", [], b"")

    response, mute = await answered(poll, 50)

    assert response.status == 503
    assert b'"owner":"http://owner:8080"' in response.body
    assert b"it may have done it, or not" in response.body
    assert mute.cancelled == ["it took too long"]


async def test_who_sends_is_told_that_nobody_knows(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(forwarding, "LATE_S", 0)
    send = Request(b"POST", b"/streams/send", b"", [], b"{}")

    response, _ = await answered(send, 0)

    assert response.status == 503
    assert b"it may have done it, or not" in response.body
