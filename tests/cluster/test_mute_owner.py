"""A node that is linked and says nothing: who asked is answered all the same."""

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from tests.server.http_client import raw_client
from waterclock.cluster.forwarded import ForwardedAnswer
from waterclock.server.cluster import forwarder as forwarding
from waterclock.server.cluster.forwarder import Forwarder
from waterclock.server.cluster.ownership import RingOwnership
from waterclock.server.cluster.reply import Reply
from waterclock.server.http.messages import Request, Response
from waterclock.server.http.server import serve_http

POLL = Request(b"GET", b"/streams/receive", b"streamId=s", [], b"")


class Mute:
    """Takes every request."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []

    def ask(self, node_id: str, method: int, body: bytes, caller: Any) -> Any:
        return SimpleNamespace(cancel=self.cancelled.append)


class Speaking:
    """Answers every request."""

    def ask(self, node_id: str, method: int, body: bytes, caller: Any) -> Any:
        answer = ForwardedAnswer(False, b"text/plain", b"", node_id.encode()).encode()
        asyncio.get_running_loop().call_soon(partial(caller.answered, 200, answer, is_last=True))
        return SimpleNamespace()


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


@pytest.mark.parametrize(("asks", "handed_to"), [(Speaking(), ["owner"]), (Mute(), [])])
async def test_a_connection_is_for_a_process_that_answers_what_comes_over_it(asks, handed_to):
    found: list[str] = []
    shared: Any = SimpleNamespace(was_forwarded=lambda connection, owner: found.append(owner))
    owners = RingOwnership("front")
    owners.update({"owner": "http://owner:8080"})
    async with asyncio.TaskGroup() as tasks:
        forwarder = Forwarder(asks, owners, lambda _: Response(500), tasks)
        forwarder.shared_connections = shared
        sweeping = tasks.create_task(forwarder.run())
        async with (
            serve_http(lambda _: forwarder.forward(POLL, "s", 50), host="127.0.0.1", port=0) as it,
            raw_client(it.port) as client,
        ):
            status = (await client.get("/")).status
        sweeping.cancel()

    assert (status, found) == (200 if handed_to else 503, handed_to)


async def test_a_poll_is_told_when_its_time_is_over_that_a_message_may_be_lost():
    response, mute = await answered(POLL, 50)

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
